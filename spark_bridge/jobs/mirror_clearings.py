"""Truncations and drops that a mirror has not applied yet, and which of them it has reached.

A mirror applies a truncation when it has read all records before it: in each partition of the data topic, those up to
the position that the connector has noted. Records behind these positions are not affected.

Where Pulsar had deleted all records of a partition before the truncation, the connector notes no position. But the
mirror may have read these records.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from spark_bridge.jobs.mirror_state import Applied
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.positions import BEGINNING, Position
from spark_bridge.topics.resolved import utc_text
from spark_bridge.topics.table_clearing import DROP, TableClearing

__all__ = ["PendingClearings", "report_clearings"]

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingClearings:
    """`clearings`: those that are not applied yet, in the order of their topic. `known`: names of all on the topic."""

    clearings: Sequence[TableClearing]
    known: frozenset[str]
    options: BridgeOptions

    @classmethod
    def of(cls, clearings: Sequence[TableClearing], applied: Applied, options: BridgeOptions) -> Self:
        """The pending ones of all `clearings`, for a mirror with this progress.

        Raises PulsarUnreachableError, TopicError.
        """
        done = set(applied.cleared)
        pending = [each for each in clearings if each.name not in done]
        if applied.positions and any(None in each.positions for each in pending):
            with PulsarAdmin(options, patience_s=options.operation_timeout_seconds) as admin:
                names = admin.topic_partitions()
                pending = [_with_read(each, names, applied, admin) for each in pending]
        return cls(clearings=pending, known=frozenset(each.name for each in clearings), options=options)

    def still_known(self, applied: Applied) -> tuple[str, ...]:
        """Names of the applied clearings that the topic still has."""
        return tuple(each for each in applied.cleared if each in self.known)

    def left(self, applied: Applied) -> list[TableClearing]:
        """The clearings that are still not applied, by this later progress."""
        return [each for each in self.clearings if each.name not in applied.cleared]

    def reached(self, applied: Applied) -> list[TableClearing]:
        """The clearings before which the mirror has read all records; none for a mirror without records.

        Raises PulsarUnreachableError, TopicError.
        """
        left = self.left(applied)
        if not left or applied.begins_anew or applied.life is None:
            return []
        with PulsarAdmin(self.options, patience_s=self.options.operation_timeout_seconds) as admin:
            names = admin.topic_partitions()
            return [each for each in left if _is_reached(each, names, applied, admin)]


def _with_read(clearing: TableClearing, names: Sequence[str], applied: Applied, admin: PulsarAdmin) -> TableClearing:
    """The clearing, with a position also for partitions whose records Pulsar had deleted before it.

    That is the position up to which the mirror has read. It is before all messages that Pulsar has now, because all of
    them were published after the clearing.
    """
    positions = list(clearing.positions)
    for number, (name, last) in enumerate(zip(names, positions, strict=False)):
        if last is None and name in applied.positions:
            ledger, entry, _ = applied.positions[name]
            ledgers = admin.ledgers(name)
            positions[number] = min((ledger, entry), (ledgers[0].ledger, -1)) if ledgers else (ledger, entry)
    return replace(clearing, positions=tuple(positions))


def _is_reached(clearing: TableClearing, names: Sequence[str], applied: Applied, admin: PulsarAdmin) -> bool:
    for name, last in zip(names, clearing.positions, strict=False):
        read = Position(*applied.positions[name][:2]) if name in applied.positions else BEGINNING
        if last is not None and read < Position(*last) and _is_unread(read, Position(*last), name, admin):
            return False
    return True


def _is_unread(read: Position, last: Position, name: str, admin: PulsarAdmin) -> bool:
    """Return True if Pulsar still has messages behind `read` and up to `last`; retention may have deleted them."""
    return any(
        each.entries and min(Position(each.ledger, each.entries - 1), last) > read
        for each in admin.ledgers(name)
        if each.ledger <= last.ledger
    )


def report_clearings(topic: str, clearings: Sequence[TableClearing], counts: Mapping[str, int]) -> None:
    """Log the clearings that were applied."""
    for each in clearings:
        what = "the table was dropped" if each.kind == DROP else "the table was truncated"
        _log.warning("%s: %s at %s; rows deleted: %d", topic, what, utc_text(each.time_ms), counts.get("delete", 0))
