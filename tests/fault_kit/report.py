"""The report of a run: as text lines for people, as JSON for programs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field

from tests.fault_kit.kinds import COUNTED, FaultKind
from tests.fault_kit.oracle.comparison import TableComparison
from tests.fault_kit.oracle.gaps import Gap
from tests.fault_kit.plan import Fault

__all__ = ["Report", "ReportedGap", "Struck"]


@dataclass(slots=True, kw_only=True)
class Struck:
    """A fault that was struck, its time in seconds since the epoch, and the changes in flight at that time (-1: not
    known).

    `broken`: the count of what it broke, for the kinds in COUNTED; None for other kinds.
    """

    fault: Fault
    text: str
    at_s: float
    load_average: float
    before_events_topic: int = -1
    before_data_topic: int = -1
    broken: int | None = None

    @property
    def in_flight(self) -> int:
        """The number of changes that were not on the data topic yet when the fault was struck."""
        return max(0, self.before_events_topic) + max(0, self.before_data_topic)

    def line(self) -> str:
        """One line for the report."""
        flight = f"{self.before_events_topic} changes before the events topic, {self.before_data_topic} before the data topic"
        broken = "" if self.broken is None else f"{self.broken} {COUNTED[self.fault.kind]}; "
        return f"{self.fault}{': ' if self.text else ''}{self.text} [{broken}{flight}; load {self.load_average:.1f}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedGap:
    """A gap of a node. `changes`: how many changes it covers; `missing`: how many of these are on no events topic."""

    gap: Gap
    node: int
    changes: int
    missing: int

    def line(self) -> str:
        """One line for the report."""
        first, last = (f"{segment}:{position}" for segment, position in (self.gap.first, self.gap.last))
        return (
            f"{self.gap.table} of node {self.node}, behind {first} up to {last}: {self.changes:,} changes,"
            f" {self.missing:,} of them on no events topic ({self.gap.reason})"
        )


@dataclass(slots=True, kw_only=True)
class Report:
    """Figures and differences of a run. `failure` is set when the run itself could not be finished.

    `left_out`: the kinds that are not possible with this cluster, with reasons. `instances`: how many instances the
    connector has. `source_restarts`: how often `sources restart` was needed, because Pulsar had given up an instance or
    its port was taken.
    """

    seed: int
    nodes: int
    cassandra: str
    plan: list[Fault]
    replay: str
    struck: list[Struck] = field(default_factory=list)
    statements: int = 0
    statements_failed: int = 0
    schema_changes: int = 0
    left_out: list[str] = field(default_factory=list)
    instances: int = 1
    source_restarts: int = 0
    spill_is_on_another_disk: bool = True
    events: int = 0
    events_distinct: int = 0
    judged_changes: int = 0
    gaps: list[ReportedGap] = field(default_factory=list)
    judge_notes: list[str] = field(default_factory=list)
    tables: list[TableComparison] = field(default_factory=list)
    event_differences: list[str] = field(default_factory=list)
    failure: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def differences(self) -> list[str]:
        """All differences, first those of events, then those of tables."""
        return [*self.event_differences, *(line for table in self.tables for line in table.differences)]

    @property
    def is_good(self) -> bool:
        """Return whether nothing was lost, invented or out of order, and the run came to its end."""
        return self.failure is None and not self.differences

    def kinds_with_changes_in_flight(self) -> Counter[str]:
        """By kind: how many faults were struck while changes were in flight."""
        return Counter(each.fault.kind.value for each in self.struck if each.in_flight > 0)

    def broken(self, kind: FaultKind) -> int:
        """The sum of what the strikes of this kind broke, for the kinds in COUNTED."""
        return sum(each.broken or 0 for each in self.struck if each.fault.kind is kind)

    def as_json(self) -> str:
        """One JSON object."""
        return json.dumps({**asdict(self), "good": self.is_good}, default=str, indent=1)

    def lines(self) -> list[str]:
        """The report as text lines."""
        records = sum(table.records for table in self.tables)
        repeated = sum(table.duplicates for table in self.tables)
        by_kind = Counter(each.fault.kind.value for each in self.struck)
        flight = self.kinds_with_changes_in_flight()
        told = ", ".join(f"{kind} {count} ({flight[kind]})" for kind, count in sorted(by_kind.items()))
        expired = sum(table.expired_rows + table.expired_columns for table in self.tables)
        return [
            f"seed {self.seed}: {len(self.struck)} of {len(self.plan)} faults, of which met changes in flight: {told}",
            *self.left_out,
            f"the connector has {self.instances} instance{'s' if self.instances > 1 else ''}",
            *self._broken_lines(),
            f"{self.statements:,} statements ({self.statements_failed:,} not answered), {self.schema_changes} schema changes,"
            f" the source restarted {self.source_restarts} times for an instance that Pulsar could not start",
            f"{self.events_distinct:,} events, {_share(self.events - self.events_distinct, self.events)} came again;"
            f" Cassandra's own reader has {self.judged_changes:,} changes",
            f"{records:,} records, {_share(repeated, records)} came again; {expired} rows and columns had expired",
            *self._gap_lines(),
            *(f"{table.table}: {table.rows:,} rows, {len(table.differences)} differences" for table in self.tables),
            *self._verdict(),
        ]

    def _gap_lines(self) -> list[str]:
        if not self.gaps:
            return []
        excused = sum(table.excused for table in self.tables)
        gaps = "1 gap was reported" if len(self.gaps) == 1 else f"{len(self.gaps)} gaps were reported"
        lines = [f"  {each.line()}" for each in self.gaps]
        return [f"{gaps}; {excused} rows differ by what is lost in them", *lines]

    def _broken_lines(self) -> list[str]:
        """For each kind that may break nothing: what its strikes broke, and which strikes broke nothing."""
        lines = []
        for kind, what in COUNTED.items():
            struck = [each for each in self.struck if each.fault.kind is kind and each.broken is not None]
            idle = ", ".join(str(each.fault.number) for each in struck if each.broken == 0)
            if struck:
                strikes = "1 strike" if len(struck) == 1 else f"{len(struck)} strikes"
                told = f"; these struck NOTHING: {idle}" if idle else ""
                lines.append(f"{kind}: {self.broken(kind)} {what} in {strikes}{told}")
        if not self.spill_is_on_another_disk:
            lines.append(
                "the spill folder was on the disk of cdc_raw: a move to it is a renaming, and disk-spill breaks none"
            )
        return lines

    def _verdict(self) -> list[str]:
        if self.is_good:
            return [f"every row equal, nothing lost ({sum(self.seconds.values()):.0f} s)"]
        lines = ["faults in order:", *(f"  {each.line()}" for each in self.struck)]
        if self.failure is not None:
            lines.append(f"FAILED: {self.failure}")
        if self.differences:
            lines.append(f"{len(self.differences)} DIFFERENCES, the first: {self.differences[0]}")
        return [*lines, f"run it again: {self.replay}"]


def _share(part: int, whole: int) -> str:
    return f"{part:,} ({part / whole:.1%})" if whole else "0"
