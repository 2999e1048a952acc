"""DroppedTables: finds held events that nobody needs, so that no topic is made for them.

A table was dropped, and its topic deleted, while the agent held events of the table. To publish them, the agent would
make the topic again. A connector publishes no record for such events: the rows do not exist.

Held events are unwanted only if all of this is so, because there is no way back:

- The broker does not have the topic.
- All of them can be read: damaged events may be of another table.
- This node wrote all of them, and answers now that it has none of their tables. A table that was made again under the
  same name has another id: its own events make the topic, and the earlier ones are sent before them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from change_agent.errors import PublishError
from change_agent.publishing.held_events import HeldEvents
from change_agent.schema.table_metadata import TableMetadataProvider
from schemas.mutation_event import MutationEvents

__all__ = ["DroppedTables", "TableOfNode", "UnwantedEvents", "have_gone"]

_NODE_ANSWER_S: Final = 10.0
# How long held events wait for the node's answer. After this time they are sent, and make the topic.
_PATIENCE_S: Final = 60.0


class TableOfNode(NamedTuple):
    """The ids of a table, and of the node whose log had its events."""

    node_id: UUID
    table_id: UUID


class UnwantedEvents(NamedTuple):
    """The first `size` bytes of a file of held events, which have so many events, are not needed by anybody."""

    size: int
    events: int


class DroppedTables:
    """Used by the threads that open topics, one for each topic at a time.

    `have_gone` returns True if the node answers now that it wrote the events of these tables and has none of them; None
    if it does not answer. `has_topic` creates nothing, and may raise PublishError.
    """

    def __init__(
        self,
        has_topic: Callable[[str], bool],
        have_gone: Callable[[Collection[TableOfNode]], bool | None],
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._has_topic: Final = has_topic
        self._have_gone: Final = have_gone
        self._patience_s: Final = patience_s
        # By topic: since when the node's answer is waited for (monotonic).
        self._waits_since: Final[dict[str, float]] = {}

    def unwanted(self, topic: str, path: Path, size: int) -> UnwantedEvents | None:
        """The first `size` bytes of this file if their events are unwanted, else None.

        Only these bytes count as written: a write that the disk refused may have left others behind them. Raises
        PublishError, also while it is not known.
        """
        if self._has_topic(topic):
            self._waits_since.pop(topic, None)
            return None
        try:
            held = HeldEvents(path, size)
            first = next((_table_of(message) for message, _ in held.read_all()), None)
            # A file may have gigabytes. So it is read only if its first event is of such a table.
            if first is None or not self._are_gone(topic, {first}):
                return None
            tables, events = set(), 0
            for message, _ in held.read_all():
                tables.add(_table_of(message))
                events += len(message.events)
        except OSError:  # the publisher has removed the file
            return None
        if held.take_damage():
            return None
        return UnwantedEvents(size, events) if self._are_gone(topic, tables) else None

    def _are_gone(self, topic: str, tables: Collection[TableOfNode]) -> bool:
        found = self._have_gone(tables)
        if found is not None:
            self._waits_since.pop(topic, None)
            return found
        if time.monotonic() - self._waits_since.setdefault(topic, time.monotonic()) < self._patience_s:
            raise PublishError(topic, "does not exist, and the node has not said yet whether it has the table")
        return False


def have_gone(provider: TableMetadataProvider, tables: Collection[TableOfNode]) -> bool | None:
    """True if the provider's node wrote the events of these tables, and answers now that it has none of them.

    None if it does not answer. Waits for its answer.
    """
    # The node may have got a table after its schema was read. So the absence of a table counts only after a new read.
    for reread in (False, True):
        known = provider.as_of(time.time_ns() // 1_000_000, _NODE_ANSWER_S, reread=reread)
        present = provider.present
        if known is None or present is None:
            return None
        if any(node_id != known.node_id or table_id in present for node_id, table_id in tables):
            return False
    return True


def _table_of(message: MutationEvents) -> TableOfNode:
    return TableOfNode(message.node_id, message.table_id)
