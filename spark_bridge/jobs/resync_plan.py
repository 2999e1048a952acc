"""The plan of a resync: the merged windows of each table, and how to close gaps whose table was dropped or made again.

A window is in write times (microseconds), by the clock of a client or a coordinator. The times of a gap are by the clock of
the agent's machine. So windows get a margin. A row that was written outside the margin is not sent for its write time, but
the comparison finds it. It also finds rows without a write time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final
from uuid import UUID

from schemas.gap_record import GapRecord
from spark_bridge.jobs.time_spans import TimeSpan, merged

__all__ = ["Fate", "TableGaps", "fate_of", "needs_no_event", "plan_of"]

_BEGINNING: Final = -(1 << 62)
_NO_TABLE: Final = UUID(int=0)


class Fate(Enum):
    """How a gap ends, by the current state of its table in Cassandra."""

    RESYNC = "resync"
    DROPPED = "the table was dropped"
    MADE_AGAIN = "the table was dropped and made again"
    OTHER_CLUSTER = "its node is not in this cluster"
    """The table may exist in the gap's own cluster, which is another one."""

    @property
    def closes_at_once(self) -> bool:
        """True if the rows of the gap no longer exist, so that there is nothing to send."""
        return self in (Fate.DROPPED, Fate.MADE_AGAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableGaps:
    """The open gaps of one table, and their windows with the margin: merged, in order."""

    keyspace: str
    table: str
    gaps: tuple[GapRecord, ...]
    spans: tuple[TimeSpan, ...]

    @property
    def name(self) -> str:
        """`keyspace.table`."""
        return f"{self.keyspace}.{self.table}"

    def only(self, gaps: Collection[GapRecord], margin_ms: int) -> TableGaps:
        """The plan for these gaps of the table alone."""
        (found,) = plan_of(gaps, margin_ms)
        return found


def plan_of(gaps: Iterable[GapRecord], margin_ms: int) -> list[TableGaps]:
    """Gaps by table, in the order of names."""
    by_table: defaultdict[tuple[str, str], list[GapRecord]] = defaultdict(list)
    for each in gaps:
        by_table[each.keyspace, each.table].append(each)
    return [
        TableGaps(
            keyspace=keyspace,
            table=table,
            gaps=tuple(found),
            spans=merged(_span(each, margin_ms) for each in found),
        )
        for (keyspace, table), found in sorted(by_table.items())
    ]


def fate_of(gap: GapRecord, table_id: UUID | None, nodes: Collection[UUID]) -> Fate:
    """How a gap ends, by the id of the current table with its name (None: there is none) and the cluster's host ids.

    If the agent no longer knew the table, the gap has no table id. Then the table with that name counts as the same.
    """
    if table_id is not None and gap.table_id in (table_id, _NO_TABLE):
        return Fate.RESYNC
    if gap.node_id not in nodes:
        return Fate.OTHER_CLUSTER
    return Fate.DROPPED if table_id is None else Fate.MADE_AGAIN


def needs_no_event(spans: Sequence[TimeSpan], begun_ms: int, now_ms: int, margin_ms: int, *, has_statics: bool) -> str:
    """A condition in SQL for rows that differ, on the columns of `TableComparison.compare`; `spans` are a table's.

    True for a row that was sent for its write time. Also true for a row that was written after all spans and about now (with
    the margin on both sides): that write has its own event, whose record has the whole row. Any other row that differs has
    lost a change, whatever its write time, because clients may set write times.

    In a table with static columns, the newest write may be that of a static column, and its event is not one of the row.
    So a write after `begun_ms`, when the first rows were sent, does not show that its row was sent. The same goes for the
    write time of a static column, which may be the newest one only because a newer static column was deleted during the
    run. It counts for a row of which at most static columns differ.
    """
    sent_us = (begun_ms - margin_ms) * 1000 - 1 if has_statics else spans[-1][1]
    in_spans = [f"BETWEEN {start} AND {min(end, sent_us)}" for start, end in spans if start <= sent_us]
    sent = [f"cassandra.row_writetime {each}" for each in in_spans]
    sent += [f"same_row AND cassandra.writetime {each}" for each in in_spans if has_statics]
    since_us = max(spans[-1][1] + 1, (now_ms - margin_ms) * 1000)
    moving = f"BETWEEN {since_us} AND {(now_ms + margin_ms) * 1000}"
    covered = [] if has_statics else [f"{side}.writetime {moving}" for side in ("cassandra", "topic")]
    return " OR ".join(f"COALESCE({each}, FALSE)" for each in (*sent, *covered)) or "FALSE"


def _span(gap: GapRecord, margin_ms: int) -> TimeSpan:
    start = _BEGINNING if gap.from_ms is None else (gap.from_ms - margin_ms) * 1000
    return start, (gap.to_ms + 1 + margin_ms) * 1000 - 1
