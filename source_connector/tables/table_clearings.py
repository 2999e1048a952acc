"""The truncations and drops of one table: from the messages of the nodes on its events topic to a single record.

    take ──> ASKING ─────────────────> WAITING ───────────────> STORING ──> its messages are settled
      ^      until all nodes have      until no row is read     until the broker has the record
      |      truncated the table       and no record is open    │
      └──── a node still says what an earlier record has ───────┘

From `take` to the end no read of the table begins (`holds`). Reads that are under way end first, and a failed read is
retried after the end. So all earlier records of the table stand at or before the positions in the clearing's record,
and all later ones hold rows that were read when all nodes had truncated the table. The changes that were known as
published are forgotten. So an event after the truncation is published again if its row is still there, even if a
replica's copy was published before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import partial
from typing import Final
from uuid import UUID

from runtime.notices import Notices
from schemas.errors import CdcError
from schemas.mutation_event import ClearingKind
from schemas.table_metadata import TableMetadata
from schemas.truncation import Truncation
from source_connector.events.events_message import EventsMessage
from source_connector.tables.clearing_record import SAME_MS, ClearingRecord, covers, node_clearings
from source_connector.tables.schema_changes import ClearingToPublish, SchemaChangeTopic
from source_connector.tables.schema_queries import SchemaQueries
from source_connector.tables.table_definition import definition_of
from source_connector.timers import Timers

__all__ = ["TableClearings"]

_log = logging.getLogger(__name__)

_ASK_AGAIN_S: Final = 0.5
# How long to wait for the nodes. A node that is down, or that cannot be queried, reports through its agent later.
_PATIENCE_S: Final = 15.0
# If a drop turned out to be none, reports of it by other agents are later by at most this time. One question suffices
# for them.
_SAME_DROP_MS: Final = 10_000


class _State(Enum):
    IDLE = auto()
    ASKING = auto()
    WAITING = auto()
    STORING = auto()


class TableClearings:
    """Used by the source's thread. `truncations` and `current_id` ask Cassandra; `forget` gets the cleared table's id.

    `pause_s`: if other instances also write to the data topic, their records of rows that were read before may come so
    much later.
    """

    def __init__(
        self,
        queries: SchemaQueries,
        changes: SchemaChangeTopic,
        timers: Timers,
        notices: Notices,
        *,
        truncations: Callable[[UUID], Mapping[UUID, Truncation | None]],
        current_id: Callable[[], object],
        is_quiet: Callable[[], bool],
        forget: Callable[[UUID], None],
        data_topic: str,
        pause_s: float,
    ) -> None:
        self._queries: Final = queries
        self._changes: Final = changes
        self._timers: Final = timers
        self._notices: Final = notices
        self._truncations: Final = truncations
        self._current_id: Final = current_id
        self._is_quiet: Final = is_quiet
        self._forget: Final = forget
        self._data_topic: Final = data_topic
        self._pause_s: Final = pause_s
        self._state = _State.IDLE
        self._waiting: list[tuple[EventsMessage, TableMetadata]] = []
        self._noted: Mapping[UUID, Truncation | None] = {}
        self._give_up_at = 0.0
        self._is_final = False
        self._asked = 0
        """How many messages were waiting when the last question was asked."""
        self._last: ClearingRecord | None = None
        self._undone: tuple[UUID, int] | None = None
        """Table id and latest time of the last drop after which the table still existed."""

    @property
    def holds(self) -> bool:
        """True while no row of the table may be read."""
        return self._state is not _State.IDLE

    def take(self, message: EventsMessage, table: TableMetadata) -> None:
        """Take a message with a clearing of this table. `table` is the table as it is known now."""
        if not self._changes.is_on:
            self._notices.say(
                "clearings",
                f"{table.full_name}: a truncation or drop is not published, because schema.changes.topic is none",
            )
            message.settle()
            return
        if self._last is not None and _is_covered(self._last, message):
            message.settle()
            return
        self._waiting.append((message, table))
        if self._state is _State.IDLE:
            self._begin()

    def work(self) -> None:
        """Store the record if it waits and the table is quiet now."""
        if self._state is _State.WAITING and self._is_quiet():
            self._store()

    def _begin(self) -> None:
        message, _ = self._waiting[0]
        self._give_up_at = time.monotonic() + (0.0 if self._may_be_undone(message) else _PATIENCE_S)
        self._ask()

    def _ask(self) -> None:
        self._state = _State.ASKING
        # Decided before the nodes are asked, so that their last answer is from after the end of the patience.
        self._is_final = time.monotonic() >= self._give_up_at
        self._asked = len(self._waiting)
        message, _ = self._waiting[0]
        assert message.clearing is not None
        if message.clearing.kind is ClearingKind.DROP:
            self._queries.ask(self._current_id, self._on_current_id)
        else:
            self._queries.ask(partial(self._truncations, message.table_id), self._answered)

    def _answered(self, noted: Mapping[UUID, Truncation | None] | CdcError) -> None:
        """Take the nodes' notes of a truncation."""
        message, table = self._waiting[0]
        assert message.clearing is not None
        if isinstance(noted, CdcError):
            self._notices.say(
                "clearings", f"{table.full_name}: its truncation waits, nothing is read meanwhile: {noted}"
            )
            self._timers.after(_ASK_AGAIN_S, self._ask)
            return
        least_ms = message.clearing.time_ms - SAME_MS
        lacking = [node for node, each in noted.items() if each is None or each.time_ms < least_ms]
        if lacking and not self._is_final:
            self._timers.after(_ASK_AGAIN_S, self._ask)
            return
        self._noted = noted
        self._timers.after(self._pause_s, self._wait)

    def _on_current_id(self, table_id: object) -> None:
        """Take the id that the table has after a drop; None if there is no table."""
        message, table = self._waiting[0]
        if isinstance(table_id, CdcError) or (table_id == message.table_id and not self._is_final):
            self._timers.after(_ASK_AGAIN_S, self._ask)
            return
        if table_id == message.table_id:
            self._is_there(message.table_id, table)
            return
        self._noted = {}
        self._wait()

    def _is_there(self, table_id: UUID, table: TableMetadata) -> None:
        """End without a record, because the table still exists. It settles all drops that came before the question."""
        if not self._may_be_undone(self._waiting[0][0]):
            _log.warning(
                "%s: a node has dropped it, and others still have it, or it came back under its id: no drop is published; "
                "check with nodetool describecluster that the nodes have one schema",
                table.full_name,
            )
        done = {
            id(each): each.clearing.time_ms
            for each, _ in self._waiting[: self._asked]
            if each.table_id == table_id and each.clearing is not None and each.clearing.kind is ClearingKind.DROP
        }
        self._undone = table_id, max(done.values())
        self._end(set(done))

    def _may_be_undone(self, message: EventsMessage) -> bool:
        """True for another node's (or partition's) report of a drop after which the table still existed.

        It may also be a later drop, reported by a node whose clock is behind. So Cassandra is asked, but only once: the
        last node that drops the table reports it when all have dropped it.
        """
        clearing = message.clearing
        assert clearing is not None
        if self._undone is None or clearing.kind is not ClearingKind.DROP:
            return False
        table_id, time_ms = self._undone
        return message.table_id == table_id and clearing.time_ms <= time_ms + _SAME_DROP_MS

    def _wait(self) -> None:
        self._state = _State.WAITING
        self.work()

    def _store(self) -> None:
        self._state = _State.STORING
        message, table = self._waiting[0]
        clearing = message.clearing
        assert clearing is not None
        self._changes.publish_clearing(
            ClearingToPublish(
                keyspace=table.keyspace,
                table=table.name,
                definition=None if clearing.kind is ClearingKind.DROP else definition_of(table),
                table_id=message.table_id,
                generation=table.generation,
                clearing=clearing,
                node_id=message.node_id,
                segment_id=message.segment_id,
                nodes=node_clearings(clearing, message.node_id, message.segment_id, self._noted),
                data_topic=self._data_topic,
                is_final=self._is_final,
                then=self._stored,
            )
        )

    def _stored(self, record: ClearingRecord | None) -> None:
        if record is None:
            self._state = _State.ASKING
            self._timers.after(_ASK_AGAIN_S, self._ask)
            return
        table = self._waiting[0][1]
        if lacking := self._noted.keys() - {UUID(each["node"]) for each in record["nodes"]}:
            _log.warning(
                "%s: nodes %s did not truncate it within %.0f s; rows that they still return may come back: verify the table",
                table.full_name,
                ", ".join(sorted(map(str, lacking))),
                _PATIENCE_S,
            )
        self._last = record
        self._forget(self._waiting[0][0].table_id)
        self._end({id(message) for message, _ in self._waiting if _is_covered(record, message)})

    def _end(self, done: set[int]) -> None:
        """Settle these messages. The others wait for a separate record."""
        waiting, self._waiting = self._waiting, []
        self._state = _State.IDLE
        for message, table in waiting:
            if id(message) in done:
                message.settle()
            else:
                self._waiting.append((message, table))
        if self._waiting:
            self._begin()


def _is_covered(record: ClearingRecord, message: EventsMessage) -> bool:
    assert message.clearing is not None
    return covers(record, message.table_id, message.clearing, message.node_id, message.segment_id)
