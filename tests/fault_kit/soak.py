"""The long run: load without faults, and the memory, open files and threads of each process over time."""

from __future__ import annotations

import csv
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import httpx
import psutil

from cdc.sandbox.sandbox import Progress
from tests.fault_kit.errors import FaultRunError
from tests.fault_kit.line import FaultLine
from tests.fault_kit.oracle.cassandra_rows import select_all, table_shape
from tests.fault_kit.oracle.comparison import compare
from tests.fault_kit.oracle.folding import fold
from tests.fault_kit.oracle.topics import TopicReader
from tests.fault_kit.sessions import session_of
from tests.fault_kit.settle import settle, waiting_messages
from tests.fault_kit.statements import StatementWriter
from tests.fault_kit.tables import KEYSPACE, TRACKED, schema_statements
from tests.fault_kit.workload import Workload

__all__ = ["OURS", "Sample", "SoakOptions", "SoakReport", "backlog", "growth", "run_soak"]

OURS: Final = ("agent", "connector child", "connector host")
"""The processes that must not grow. Those of Cassandra and Pulsar are only shown."""

_SETTLE_S: Final = 600.0
_HAS_TTL: Final = "short_lived"
# A process may grow by this share from the second quarter of the run to the last: caches fill, allocators keep pages.
_ALLOWED_SHARE: Final = 0.15
_ALLOWED_LAG_S: Final = 10.0
_ALLOWED_WAITING: Final = 1_000.0
_ALLOWED: Final = {"rss_mib": 24.0, "open_files": 8.0, "threads": 4.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A process at a moment: seconds since the start, MiB, and counts."""

    at_s: float
    process: str
    rss_mib: float
    open_files: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions:
    """The options of a run. `sample_s`: seconds between two samples."""

    seed: int
    minutes: float
    folder: Path
    rate: float = 60.0
    sample_s: float = 5.0


@dataclass(slots=True)
class SoakReport:
    """The measurements. `lag_s`, `waiting` and `load` are pairs: seconds since the start, and the value."""

    seed: int
    minutes: float
    statements: int = 0
    samples: list[Sample] = field(default_factory=list)
    lag_s: list[tuple[float, float]] = field(default_factory=list)
    waiting: list[tuple[float, float]] = field(default_factory=list)
    load: list[tuple[float, float]] = field(default_factory=list)
    growths: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Return whether everything stayed flat, and every row is equal."""
        return not self.growths and not self.differences


def run_soak(options: SoakOptions, *, on_progress: Progress, say: Callable[[str], None]) -> SoakReport:
    """Do the whole run. Samples are written at once, so that a run that ends early leaves them."""
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    report = SoakReport(seed=options.seed, minutes=options.minutes)
    with FaultLine(nodes=1, cassandra="5.0", folder=options.folder, on_progress=on_progress) as line:
        _load(line, options, report, say)
    report.growths = [*growth(report.samples), *backlog(report)]
    (options.folder / "report.json").write_text(json.dumps({**asdict(report), "good": report.is_good}))
    return report


def _load(line: FaultLine, options: SoakOptions, report: SoakReport, say: Callable[[str], None]) -> None:
    line.prepare_topics()
    with session_of(line) as session:
        for statement in schema_statements(1, has_vectors=True):
            session.execute(statement, timeout=240)
    for agent in line.agents:
        agent.launch()
        line.wait_for_agent(agent)
    line.deploy_source()
    writer = StatementWriter(options.seed, has_vectors=True)
    with Workload(line.contact, writer, rate=options.rate, before_drop=lambda: None) as workload:
        _watch(line, options, report, say, workload)
        workload.finish()
        report.statements = workload.sent
        workload.write_closing_rows()
    settle(line, _SETTLE_S)
    pulsar = line.sandbox.pulsar
    with session_of(line) as session, TopicReader(pulsar.service_url, pulsar.admin_url) as topics:
        for table in TRACKED:
            if table == _HAS_TTL:
                continue  # expiry is checked by the fault runs
            shape = table_shape(session, KEYSPACE, table)
            records = topics.data_records(f"persistent://public/default/data-{KEYSPACE}.{table}")
            found = compare(shape, select_all(session, KEYSPACE, shape), fold(shape, records))
            report.differences += found.differences


def _watch(
    line: FaultLine, options: SoakOptions, report: SoakReport, say: Callable[[str], None], workload: Workload
) -> None:
    started = time.monotonic()
    stop = threading.Event()
    with (options.folder / "samples.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(Sample.__slots__)
        while (at_s := time.monotonic() - started) < options.minutes * 60:
            if workload.failure is not None:
                raise FaultRunError(f"the workload ended: {workload.failure!r}")
            for sample in _samples(line, round(at_s, 1)):
                report.samples.append(sample)
                rows.writerow([getattr(sample, name) for name in Sample.__slots__])
            file.flush()
            with suppress(httpx.HTTPError, FileNotFoundError, KeyError):
                report.lag_s.append((at_s, float(line.agents[0].metric("lag_seconds"))))
                report.waiting.append((at_s, float(sum(waiting_messages(line.sandbox.pulsar.admin_url).values()))))
            report.load.append((at_s, os.getloadavg()[0]))
            if int(at_s) % 60 < options.sample_s:
                say(f"{at_s / 60:.0f} min: {workload.sent:,} statements, load {os.getloadavg()[0]:.1f}")
            stop.wait(options.sample_s)


def _samples(line: FaultLine, at_s: float) -> list[Sample]:
    processes: dict[str, psutil.Process | None] = {
        "agent": _process(line.agents[0].pid),
        "connector child": next(iter(line.children()), None),
        "connector host": next(iter(line.hosts()), None),
        "Cassandra": _process(line.sandbox.node.pid),
        "Pulsar": _process(line.sandbox.pulsar.pid),
    }
    found = []
    for name, process in processes.items():
        with suppress(psutil.Error):
            if process is not None:
                found.append(
                    Sample(
                        at_s=at_s,
                        process=name,
                        rss_mib=round(process.memory_info().rss / 2**20, 1),
                        open_files=process.num_fds(),
                        threads=process.num_threads(),
                    )
                )
    return found


def _process(pid: int) -> psutil.Process | None:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid)
    return None


def growth(samples: Sequence[Sample]) -> list[str]:
    """Describe what grew more than allowed in our processes, from the second quarter of the run to the last."""
    end_s = max((sample.at_s for sample in samples), default=0.0)
    found: list[str] = []
    for process in OURS:
        own = [sample for sample in samples if sample.process == process]
        early = [sample for sample in own if end_s / 4 <= sample.at_s < end_s / 2]
        late = [sample for sample in own if sample.at_s >= end_s * 3 / 4]
        if not early or not late:
            found.append(f"{process}: there are too few samples of it")
            continue
        for name, allowed in _ALLOWED.items():
            before, after = (_median(part, name) for part in (early, late))
            if after > before + max(allowed, before * _ALLOWED_SHARE):
                found.append(f"{process}: {name} grew from {before:g} to {after:g}")
    return found


def backlog(report: SoakReport) -> list[str]:
    """Describe lag and backlog that grew more than allowed, from the second quarter of the run to the last."""
    found: list[str] = []
    for what, pairs, allowed in (
        ("the agent's lag in seconds", report.lag_s, _ALLOWED_LAG_S),
        ("messages that wait in events topics", report.waiting, _ALLOWED_WAITING),
    ):
        end_s = max((at_s for at_s, _ in pairs), default=0.0)
        early = [each for at_s, each in pairs if end_s / 4 <= at_s < end_s / 2]
        late = [each for at_s, each in pairs if at_s >= end_s * 3 / 4]
        if not early or not late:
            found.append(f"{what}: there are too few samples of it")
        elif median(late) > median(early) + max(allowed, median(early)):
            found.append(f"{what} grew from {median(early):g} to {median(late):g}")
    return found


def _median(samples: Sequence[Sample], name: str) -> float:
    values: Mapping[str, list[float]] = {name: [float(getattr(sample, name)) for sample in samples]}
    return median(values[name])
