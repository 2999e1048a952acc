"""Checks of resolved timestamps while faults strike.

No value that was acknowledged before a resolved timestamp may be missing on the data topic. The bug to find is a
timestamp that comes too early. So a check gets the timestamp first, and then reads the data topic to its end.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pulsar

from schemas.errors import CdcError
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.resolved import ResolvedTimestamps
from tests.fault_kit.kinds import FaultKind
from tests.fault_kit.line import FaultLine, wait_for
from tests.fault_kit.mirror_checks import MirrorChecks, MirrorReport
from tests.fault_kit.oracle.ticks import TickReader
from tests.fault_kit.plan import draw_short_plan
from tests.fault_kit.sessions import make_tables_and_start_agents
from tests.fault_kit.strikes import Strikes
from tests.fault_kit.ticks import TABLE, Ticks, tick_statements

__all__ = ["KINDS", "CompletenessOptions", "CompletenessReport", "run_completeness"]

_NAME: Final = f"faults.{TABLE}"
_RATE: Final = 40.0
_PAUSE_S: Final = 0.02
_SETTLE_S: Final = 300.0
_FIRST: Final = 5
_EARLY_MS: Final = 1_000

KINDS: Final = (
    FaultKind.AGENT_KILL,
    FaultKind.AGENT_RESTART,
    FaultKind.TWO_AGENTS,
    FaultKind.DISK_OFFSETS,
    FaultKind.CHILD_KILL,
    FaultKind.HOST_KILL,
    FaultKind.STANDSTILL,
    FaultKind.NETWORK_AWAY,
    FaultKind.NETWORK_DELAY,
    FaultKind.NETWORK_CUT,
    FaultKind.IDX_TORN,
    FaultKind.IDX_EMPTY,
    FaultKind.IDX_SHRUNK,
    FaultKind.DISK_CDC_RAW,
    FaultKind.CASSANDRA_KILL,
    FaultKind.PULSAR_KILL,
    FaultKind.REPLICA_STOPPED,
)
"""Kinds of faults that lose nothing. Kinds that delete a topic are left out, because they stop the table's progress.
`clock-step` is left out, because the checks compare timestamps with another clock, that of the clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletenessOptions:
    """`checks`: the least number of checks. The run ends after this number of checks and after the last fault of the
    plan. `with_mirror`: a Spark job updates a mirror at the same time, and each run of the job is checked as well."""

    seed: int
    folder: Path
    checks: int
    faults: int
    nodes: int = 1
    is_unsynced: bool = True
    with_mirror: bool = False
    kinds: Sequence[FaultKind] = KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Missing:
    """A value that a check did not find on the data topic; `text` is for the report."""

    row: int
    value: int
    text: str


@dataclass(slots=True, kw_only=True)
class CompletenessReport:
    """`wrong` has a line for each missing value. `moved`: how many checks found a new timestamp. `sensitive`: how many
    checks would have found a missing value if the timestamp had come a second too early."""

    seed: int
    checks: int = 0
    moved: int = 0
    sensitive: int = 0
    unknown: int = 0
    unreachable: int = 0
    faults: int = 0
    answered: int = 0
    failed: int = 0
    ages_s: list[float] = field(default_factory=list)
    lost: int = 0
    wrong: list[str] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    settled: bool = False
    mirror: MirrorReport | None = None

    @property
    def is_good(self) -> bool:
        """Nothing was missing, and the checks could have found it."""
        mirror = self.mirror is None or (not self.mirror.wrong and self.mirror.sensitive > 0)
        return not self.wrong and self.settled and self.sensitive > 0 and mirror

    def lines(self) -> list[str]:
        """The report as text lines."""
        ages = sorted(self.ages_s)
        middle = ages[len(ages) // 2] if ages else float("nan")
        late = ages[len(ages) * 99 // 100] if ages else float("nan")
        return [
            f"seed {self.seed}: {self.checks} checks, {len(self.wrong)} wrong; {self.faults} faults;"
            f" {self.answered} writes answered, {self.failed} not, {self.lost} lost by their node",
            f"{self.sensitive} checks would have found a timestamp that comes a second too early",
            f"a new timestamp in {self.moved} checks, none in {self.unknown}; Pulsar away in {self.unreachable};"
            f" its age p50 {middle:.2f} s, p99 {late:.2f} s; everything resolved at the end: {self.settled}",
            *(
                f"  {count} times: {reason}"
                for reason, count in sorted(self.reasons.items(), key=lambda each: -each[1])[:8]
            ),
            *self.wrong[:20],
            *([] if self.mirror is None else [self.mirror.text(), *self.mirror.wrong[:20]]),
        ]


def run_completeness(options: CompletenessOptions, *, say: Callable[[str], None]) -> CompletenessReport:
    """Start everything, strike faults, check, and stop. Raises FaultRunError and SandboxError when a part does not
    start."""
    report = CompletenessReport(seed=options.seed)
    shutil.rmtree(options.folder, ignore_errors=True)  # of an earlier run with this seed
    options.folder.mkdir(parents=True)
    line = FaultLine(
        nodes=options.nodes,
        cassandra="5.0",
        folder=options.folder,
        on_progress=lambda name, step: say(f"{name}: {step}"),
        is_unsynced=options.is_unsynced,
    )
    with line:
        make_tables_and_start_agents(line, tick_statements(options.nodes))
        line.deploy_source()
        with Ticks(line.contact, rate=_RATE) as ticks, ExitStack() as beside:
            if options.with_mirror:
                checks = MirrorChecks(_options(line), options.folder / "mirror", ticks, say)
                report.mirror = beside.enter_context(checks).report
            _check_while_struck(line, ticks, options, report, say)
        report.answered, report.failed = ticks.answered, ticks.failed
        report.settled = _settles(line)
    return report


def _options(line: FaultLine) -> dict[str, str]:
    pulsar_server = line.sandbox.pulsar
    return {
        "serviceUrl": pulsar_server.service_url,
        "adminUrl": pulsar_server.admin_url,
        "topic": f"persistent://public/default/data-{_NAME}",
        "operationTimeoutSeconds": "10",
    }


def _check_while_struck(
    line: FaultLine,
    ticks: Ticks,
    options: CompletenessOptions,
    report: CompletenessReport,
    say: Callable[[str], None],
) -> None:
    striking = threading.Thread(target=_strike, args=(line, options, report, say), daemon=True)
    striking.start()
    moments = random.Random(options.seed)
    missing: list[_Missing] = []
    last_ms, told_at = 0, time.monotonic()
    timestamps: ResolvedTimestamps | None = None
    reader = TickReader(line.sandbox.pulsar.service_url, f"persistent://public/default/data-{_NAME}")
    while striking.is_alive() or report.checks < options.checks:
        time.sleep(moments.uniform(0, 2 * _PAUSE_S))
        try:
            if timestamps is None:
                # Replaced now and then, so that timestamps are also checked without the state of earlier reads.
                timestamps = ResolvedTimestamps(BridgeOptions.from_mapping(_options(line)))
            found = timestamps.read(_NAME)
            asked_s = time.time()
            for problem in found.problems:
                text = "".join("#" if each.isdigit() else each for each in problem)
                report.reasons[text] = report.reasons.get(text, 0) + 1
            if found.resolved_ms is None:
                report.unknown += 1
                continue
            values = reader.values()
        except (CdcError, pulsar.PulsarException):
            report.unreachable += 1
            _close(timestamps)
            timestamps = None
            continue
        report.checks += 1
        report.ages_s.append(asked_s - found.resolved_ms / 1000)
        report.moved += found.resolved_ms != last_ms
        last_ms = found.resolved_ms
        for row, value in ticks.last_before(found.resolved_ms).items():
            if values.get(row, 0) < value:
                text = (
                    f"check {report.checks}: resolved {found.resolved_ms}: row {row} was answered as {value}, and the data"
                    f" topic has {values.get(row)}; {found.nodes}"
                )
                missing.append(_Missing(row=row, value=value, text=text))
        early = ticks.last_before(found.resolved_ms + _EARLY_MS)
        report.sensitive += any(values.get(row, 0) < value for row, value in early.items())
        if moments.random() < 0.01:
            _close(timestamps)
            timestamps = None
        if time.monotonic() > told_at + 15:
            told_at = time.monotonic()
            say(
                f"{report.checks} checks, {len(missing)} rows missing, {report.moved} new timestamps, age {report.ages_s[-1]:.1f} s"
            )
    _close(timestamps)
    reader.close()
    striking.join()
    # Writes that the only node lost do not count. The client learns which they are only when the node answers again.
    if missing:
        wait_for(lambda: ticks.is_sure, "the client knows what its node has lost", _SETTLE_S)
    report.wrong += [each.text for each in missing if (each.row, each.value) not in ticks.lost]
    report.lost = len(ticks.lost)


def _close(timestamps: ResolvedTimestamps | None) -> None:
    if timestamps is not None:
        with suppress(pulsar.PulsarException):
            timestamps.close()


def _strike(
    line: FaultLine, options: CompletenessOptions, report: CompletenessReport, say: Callable[[str], None]
) -> None:
    # Before the first timestamps of the new line there is nothing to check.
    wait_for(lambda: report.moved >= _FIRST, "the first timestamps come", _SETTLE_S)
    strikes = Strikes(line, lambda: None, lambda fault, text: say(f"{fault} {text}"))
    plan = draw_short_plan(options.seed, options.kinds, options.faults, nodes=options.nodes, pace_s=1.0)
    for fault in plan:
        time.sleep(fault.pause_s)
        try:
            strikes.strike(fault)
        except CdcError as error:
            say(f"{fault}: {error}")
        report.faults += 1


def _settles(line: FaultLine) -> bool:
    """Return True when everything up to now is resolved. Call it when no fault is active and nothing is written."""
    until_ms = int(time.time() * 1000)
    deadline = time.monotonic() + _SETTLE_S
    while time.monotonic() < deadline:
        with (
            suppress(CdcError, pulsar.PulsarException),
            ResolvedTimestamps(BridgeOptions.from_mapping(_options(line))) as timestamps,
        ):
            found = timestamps.read(_NAME)
            if found.resolved_ms is not None and found.resolved_ms > until_ms:
                return True
        time.sleep(0.5)
    return False
