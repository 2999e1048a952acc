"""A whole run: start of the servers, faults under load, comparison, verdict."""

from __future__ import annotations

import os
import shutil
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cassandra.cluster import Session

from cdc.sandbox.sandbox import Progress
from schemas.errors import CdcError
from tests.fault_kit.commitlog import CommitLogEncoding
from tests.fault_kit.contact import CONNECTOR_LOGIN
from tests.fault_kit.errors import FaultRunError
from tests.fault_kit.judge import judged_lines
from tests.fault_kit.keeper import SegmentKeeper
from tests.fault_kit.kinds import COUNTED, LANES, FaultKind
from tests.fault_kit.line import FaultLine
from tests.fault_kit.oracle.cassandra_rows import select_all, table_shape
from tests.fault_kit.oracle.changes import Judged, compare_events, covered, order_problems
from tests.fault_kit.oracle.comparison import TableComparison, compare
from tests.fault_kit.oracle.folding import fold
from tests.fault_kit.oracle.gaps import Gap, unexplained
from tests.fault_kit.oracle.in_flight import InFlight
from tests.fault_kit.oracle.topics import Clearing, DataRecord, Event, TopicReader
from tests.fault_kit.plan import Fault, draw_plan, fitting
from tests.fault_kit.report import Report, ReportedGap, Struck
from tests.fault_kit.sessions import host_id, session_of
from tests.fault_kit.settle import settle
from tests.fault_kit.statements import GIVEN_TIME_MARK_US, SHORT_TTL_S, StatementWriter
from tests.fault_kit.strikes import Strikes, table_of
from tests.fault_kit.tables import KEYSPACE, TRACKED, role_statements, schema_statements
from tests.fault_kit.workload import Workload

__all__ = ["RunOptions", "run_faults"]

_SETTLE_S: Final = 600.0
_COMPARISONS: Final = 4
# A strike waits until this number of statements is answered, so that changes are in flight. While Cassandra is
# starting, it waits for this long at most.
_ANSWERS: Final = 20
_UNDER_WAY_S: Final = 120.0
_WARM_UP_S: Final = 4.0
_INSTANCES_TO_UNLOAD: Final = 2

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run. `counts`: faults of each kind; `rate`: statements a second; `pace_s`: the mean pause
    between two faults; `replay`: the command that repeats the run; `keep`: keep the servers' files of a good run,
    too."""

    seed: int
    counts: Mapping[FaultKind, int]
    folder: Path
    nodes: int = 1
    cassandra: str = "5.0"
    commitlog: CommitLogEncoding = CommitLogEncoding.PLAIN
    rate: float = 60.0
    pace_s: float = 0.4
    replay: str = ""
    keep: bool = False


def run_faults(options: RunOptions, *, say: Say, on_progress: Progress) -> Report:
    """Do the whole run. The report has all failures and differences; with any of them, the whole folder of the run is
    kept."""
    counts, left_out = fitting(options.counts, nodes=options.nodes, cassandra=options.cassandra)
    for reason in left_out:
        say(reason)
    plan = draw_plan(options.seed, counts, nodes=options.nodes, pace_s=options.pace_s)
    replay = options.replay or f"python -m tests.fault_kit run --seed {options.seed} --nodes {options.nodes}"
    report = Report(seed=options.seed, nodes=options.nodes, cassandra=options.cassandra, plan=plan, replay=replay)
    report.left_out = left_out
    if any(fault.kind is FaultKind.BUNDLE_UNLOADED for fault in plan):
        report.instances = _INSTANCES_TO_UNLOAD
    folder = options.folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "plan.txt").write_text("".join(f"{fault}\n" for fault in plan))
    try:
        _Run(options, report, say, on_progress).run()
    except Exception as error:  # noqa: BLE001  # the top of a run: whatever it fails with is told with its seed
        report.failure = str(error) if isinstance(error, CdcError) else repr(error)
        (folder / "traceback.txt").write_text(traceback.format_exc())
    (folder / "report.json").write_text(report.as_json())
    if report.is_good and not options.keep:
        for name in ("sandbox", "kept", "judge"):
            shutil.rmtree(folder / name, ignore_errors=True)
    return report


@dataclass(slots=True)
class _Run:
    options: RunOptions
    report: Report
    say: Say
    on_progress: Progress
    events: dict[str, list[Event]] = field(default_factory=dict)
    records: dict[str, list[DataRecord]] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    clearings: list[Clearing] = field(default_factory=list)

    @property
    def _taken_away(self) -> set[str]:
        """The tables whose events topic, or its subscription, was removed by a fault."""
        kinds = {FaultKind.SUBSCRIPTION_REMOVED, FaultKind.TOPIC_DELETED}
        return {table_of(each.fault) for each in self.report.struck if each.fault.kind in kinds}

    def run(self) -> None:
        options, report = self.options, self.report
        kinds = {fault.kind for fault in report.plan}
        has_vectors = options.cassandra == "5.0"
        line = FaultLine(
            nodes=options.nodes,
            cassandra=options.cassandra,
            commitlog=options.commitlog,
            folder=options.folder,
            on_progress=self.on_progress,
            instances=report.instances,
            asks_for_passwords=FaultKind.LEVEL_DISALLOWED in kinds,
        )
        with self._stage("start"):
            line.__enter__()
        report.spill_is_on_another_disk = line.spill is not None
        try:
            keeper = SegmentKeeper(
                {node.number: (node.cdc_raw, node.data_dir) for node in line.sandbox.nodes}, options.folder / "kept"
            )
            with keeper:
                self._under_load(line, keeper, StatementWriter(options.seed, has_vectors=has_vectors), has_vectors)
        finally:
            line.__exit__(None, None, None)

    def _under_load(self, line: FaultLine, keeper: SegmentKeeper, writer: StatementWriter, has_vectors: bool) -> None:
        line.prepare_topics()
        with session_of(line) as session:
            for statement in schema_statements(self.options.nodes, has_vectors=has_vectors):
                session.execute(statement, timeout=240)
            for statement in role_statements(*CONNECTOR_LOGIN) if line.asks_for_passwords else ():
                session.execute(statement, timeout=240)
        for agent in line.agents:
            agent.launch()
            line.wait_for_agent(agent)
        line.deploy_source()
        workload = Workload(line.contact, writer, rate=self.options.rate, before_drop=keeper.keep_schema)
        with workload:
            time.sleep(_WARM_UP_S)
            with self._stage("faults"):
                self._strike_all(line, workload)
            workload.finish()
            self.report.statements, self.report.statements_failed = workload.sent, workload.failed
            self.report.schema_changes = workload.schema_changes
            self.report.source_restarts = line.source_restarts
            with self._stage("settling"):
                line.clock.step(0.0)
                workload.write_closing_rows()
                self._settle(line)
                time.sleep(SHORT_TTL_S[1] + 1)
        with self._stage("comparison"):
            self._compare(line)
        with self._stage("judge"):
            keeper.keep_schema()
            self._judge(line, keeper)

    def _strike_all(self, line: FaultLine, workload: Workload) -> None:
        """Strike in the plan's order. A fault whose lane is busy delays the faults behind it, so that a replay has this
        order."""
        strikes = Strikes(line, lambda: workload.get_under_way(_ANSWERS, _UNDER_WAY_S), self._note)
        pools = {lane: ThreadPoolExecutor(1, thread_name_prefix=lane) for lane in sorted(set(LANES.values()))}
        running: dict[str, Future[None]] = {}
        try:
            for fault in self.report.plan:
                time.sleep(fault.pause_s)
                lane = LANES[fault.kind]
                if lane in running:
                    running[lane].result()
                if workload.failure is not None:
                    raise FaultRunError(f"the workload ended: {workload.failure!r}")
                running[lane] = pools[lane].submit(self._strike, strikes, fault)
            for future in running.values():
                future.result()
        finally:
            for pool in pools.values():
                pool.shutdown()

    def _strike(self, strikes: Strikes, fault: Fault) -> None:
        broken = strikes.strike(fault)
        if broken is not None:
            self.say(f"{fault.number}. {fault.kind}: {broken} {COUNTED[fault.kind]}")
        for struck in self.report.struck:
            if struck.fault is fault:
                struck.broken = broken

    def _note(self, fault: Fault, text: str) -> None:
        struck = Struck(fault=fault, text=text, at_s=time.time(), load_average=round(os.getloadavg()[0], 1))
        self.report.struck.append(struck)
        with (self.options.folder / "faults.txt").open("a") as file:
            file.write(f"{struck.at_s:.3f} {fault} {text}\n")
        self.say(f"{fault} {text}")

    def _settle(self, line: FaultLine) -> None:
        """Wait until the line settles. If it does not, the run has failed, but is compared all the same: the
        differences help."""
        if self.report.failure is not None:
            return
        try:
            settle(line, _SETTLE_S)
        except FaultRunError as error:
            self.report.failure = str(error)

    def _compare(self, line: FaultLine) -> None:
        """Compare all tables. Repeat it after a moment if there are differences: hints and batches may still be in
        flight."""
        for attempt in range(1, _COMPARISONS + 1):
            with (
                session_of(line) as session,
                TopicReader(line.sandbox.pulsar.service_url, line.sandbox.pulsar.admin_url) as topics,
            ):
                self.gaps = topics.gaps("cdc-events-gaps")
                self.clearings = topics.clearings("cdc-events-schema-changes")
                self.report.tables = [self._compare_table(session, topics, table, line) for table in TRACKED]
            if not self.report.differences or attempt == _COMPARISONS:
                break
            time.sleep(5)
            self._settle(line)
        self.report.events = sum(map(len, self.events.values()))
        self.report.events_distinct = sum(len({event.place for event in events}) for events in self.events.values())

    def _compare_table(self, session: Session, topics: TopicReader, table: str, line: FaultLine) -> TableComparison:
        shape = table_shape(session, KEYSPACE, table)
        events = line.deleted.get(table, []) + topics.events(f"cdc-events-{KEYSPACE}.{table}")
        self.events[table] = sorted(events, key=lambda event: event.partition)
        records = self.records[table] = list(
            topics.data_records(f"persistent://public/default/data-{KEYSPACE}.{table}")
        )
        stored = select_all(session, KEYSPACE, shape)
        has_gaps = any(gap.table == table for gap in self.gaps)
        clearings = [each for each in self.clearings if each.table == f"{KEYSPACE}.{table}"]
        folded = fold(shape, records, instances=line.instances, clearings=clearings)
        return compare(shape, stored, folded, has_gaps=has_gaps)

    def _judge(self, line: FaultLine, keeper: SegmentKeeper) -> None:
        """Compare Cassandra's own reader with the events topics, node by node, and check the order of each key."""
        report = self.report
        events = [event for table in TRACKED for event in self.events[table]]
        report.event_differences += unexplained(self.gaps, self._taken_away)
        for table in TRACKED:
            report.event_differences += order_problems(self.events[table])
        with session_of(line) as session:
            shapes = [table_shape(session, KEYSPACE, table) for table in TRACKED]
        columns = {shape.name: {*shape.static, *shape.regular} for shape in shapes}
        touched: dict[str, set[str]] = defaultdict(set)
        for node in line.sandbox.nodes:
            judged = Judged()
            for lines, errors in judged_lines(
                keeper, node, self.options.cassandra, self.options.folder / "judge" / node.name
            ):
                judged.add(lines, KEYSPACE, TRACKED, columns)
                report.judge_notes += errors
            report.judged_changes += len(judged.changes)
            node_id = host_id(line, node)
            report.event_differences += compare_events(node_id, judged, events, columns, self.gaps)
            report.event_differences += [
                f"{table}: its events topic was deleted, and node {node_id} reported no gap"
                for table, deleted in line.deleted.items()
                if any(event.node == node_id for event in deleted)
                and not any((gap.node, gap.table) == (node_id, table) for gap in self.gaps)
            ]
            for gap in self.gaps:
                if gap.node == node_id:
                    inside, missing = covered(gap, judged, self.events[gap.table])
                    touched[gap.table] |= {each[4] for each in inside}
                    report.gaps.append(ReportedGap(gap=gap, node=node.number, changes=len(inside), missing=missing))
        for found in report.tables:
            partitions = {event.key: event.partition_key for event in self.events[found.table]}
            found.judge(partitions, touched[found.table])
        self._count_in_flight()

    def _count_in_flight(self) -> None:
        in_flight = InFlight(GIVEN_TIME_MARK_US)
        for table in TRACKED:
            in_flight.add(self.events[table], self.records[table])
        in_flight.sort()
        for struck in self.report.struck:
            struck.before_events_topic, struck.before_data_topic = in_flight.at(struck.at_s)

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self.on_progress(name, "starting")
        started = time.monotonic()
        yield
        self.report.seconds[name] = round(time.monotonic() - started, 1)
        self.on_progress(name, "ready")
