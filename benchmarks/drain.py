"""Measures a backlog to the events topic: rate, CPU for each event, memory by size of backlog and of segments, and a
profile.

Each run of the agent has its own backlog (benchmarks/backlog.py), working directory and topics, so that runs can be
repeated. The first run is a warm-up of the broker and does not count. DataStax's agent runs in turns with ours. So does,
with `--read-unsynced`, our agent with this option.

    python -m benchmarks.drain [--events 200000] [--runs 3] [--read-unsynced] [--no-memory] [--no-profile]
        [--rival-agent JAR] [--json]

CPU is user and system time of the agent's process. Memory is its largest PSS, and its largest resident set as the
kernel counts it. The machine also runs the servers, so each line has the load average.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

import click
import psutil

from benchmarks.backlog import Backlog, entries_of_a_node
from benchmarks.memory import peak_rss
from benchmarks.profile import Profiler
from benchmarks.rival import AS_IN_SERVICE, WITHOUT_RIVAL, RivalFigures, measure_rival
from cdc.agent_process import AgentProcess
from cdc.rest import rest
from cdc.sandbox import Sandbox, SandboxOptions

__all__ = ["Drain", "drain"]

_MIB: Final = 2**20
_SEGMENT: Final = 32 * _MIB
_WRITTEN_ROWS: Final = 20_000
_WAIT_S: Final = 1800
_LOOK_S: Final = 0.1
# The bars: multiple of the rival's rate with its best options, share of its CPU, resident memory of one process.
_BAR: Final = (3.0, 0.25, 100 * _MIB)
# Memory must not depend on the number of events, nor on the size of segments.
_MEMORY_RUNS: Final = (
    Backlog(events=100_000, segment_bytes=_SEGMENT),
    Backlog(events=1_000_000, segment_bytes=_SEGMENT),
    Backlog(events=200_000, segment_bytes=1 * _MIB),
    Backlog(events=200_000, segment_bytes=128 * _MIB),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """One run. `seconds`: from the first acknowledged events that were seen to the last event; `events`: the number in
    this time."""

    backlog: Backlog
    events: int
    seconds: float
    cpu_us_per_event: float
    peak_pss_bytes: int
    peak_rss_bytes: int
    load_average_1_min: float

    @property
    def events_per_s(self) -> float:
        """Events a second."""
        return self.events / self.seconds

    @property
    def line(self) -> str:
        """The figures as a text line."""
        return (
            f"agent, {self.backlog.events:>9,} events in segments of {self.backlog.segment_bytes // _MIB:>3} MiB"
            f"{self.events_per_s:>9,.0f} events/s{self.cpu_us_per_event:>7.1f} us CPU each"
            f"{self.peak_pss_bytes / _MIB:>6,.0f} MiB PSS{self.peak_rss_bytes / _MIB:>6,.0f} MiB RSS"
            f"   load {self.load_average_1_min:.1f}"
        )


class Drainer:
    """Runs agents on backlogs: with a node, from which they get the schema, a Pulsar, and a folder for backlogs."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self._sandbox: Final = sandbox
        self._folder: Final = folder
        self._entries: Final = entries_of_a_node(sandbox.node, _WRITTEN_ROWS)
        self._number = 0
        self.profile: list[str] = []

    def run(self, backlog: Backlog, *, with_profile: bool = False, read_unsynced: bool = False) -> Drain:
        """Start a new agent that publishes the whole backlog, and measure it."""
        self._number += 1
        folder = self._folder / str(self._number)
        backlog.write(self._entries, folder / "cdc_raw")
        agent = AgentProcess.for_node(
            self._sandbox.node,
            self._sandbox.pulsar,
            folder / "agent",
            cdcRawDirectory=str(folder / "cdc_raw"),
            topicPrefix=f"persistent://public/default/drain{self._number}-",
            readUnsynced=read_unsynced,
        )
        agent.start()
        profiler = Profiler(agent.pid) if with_profile else None
        try:
            return drain(agent, backlog)
        finally:
            agent.stop()
            self.profile = self.profile if profiler is None else profiler.lines()
            shutil.rmtree(folder)


def drain(agent: AgentProcess, backlog: Backlog) -> Drain:
    """Watch an agent that was just started until all its events are acknowledged. Raises click.ClickException."""
    process = psutil.Process(agent.pid)
    cpu_s, events, started, peak = 0.0, 0, 0.0, 0
    deadline = time.monotonic() + _WAIT_S
    while True:
        peak = max(peak, process.memory_full_info().pss)
        done = _acknowledged(agent)
        if done and not started:
            started, events, cpu_s = time.monotonic(), done, _cpu_s(process)
        if done >= backlog.events:
            break
        if time.monotonic() > deadline:
            raise click.ClickException(f"{done} of {backlog.events} events within {_WAIT_S} s:\n{agent.log_tail()}")
        time.sleep(_LOOK_S)
    measured = max(1, done - events)
    return Drain(
        backlog=backlog,
        events=measured,
        seconds=time.monotonic() - started,
        cpu_us_per_event=1e6 * (_cpu_s(process) - cpu_s) / measured,
        peak_pss_bytes=peak,
        peak_rss_bytes=peak_rss(agent.pid),
        load_average_1_min=round(os.getloadavg()[0], 2),
    )


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _acknowledged(agent: AgentProcess) -> int:
    """The number of acknowledged events. It is from the metrics page, which is current; the status file may be a second
    old."""
    page = rest().get(f"http://{agent.status()['http']}/metrics", timeout=30).text
    found = re.search(r"^cdc_agent_events_acknowledged_total ([\d.e+]+)$", page, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def verdict(results: Sequence[Drain], rival: Sequence[RivalFigures]) -> str:
    """A text with our medians, their ratios to those of the rival, and the bars."""
    rate, cpu = median(each.events_per_s for each in results), median(each.cpu_us_per_event for each in results)
    times, cpu_bar, memory_bar = _BAR
    memory = max(each.peak_rss_bytes for each in results) / _MIB
    ours = f"median {rate:,.0f} events/s, {cpu:.1f} us CPU each, {memory:.0f} MiB RSS (bar: {memory_bar // _MIB})"
    if not rival:
        return f"{ours}\n{WITHOUT_RIVAL}"
    lines = []
    for options in dict.fromkeys(each.options for each in rival):
        runs = [each for each in rival if each.options == options]
        their_rate, their_cpu = (
            median(each.events_per_s for each in runs),
            median(each.cpu_us_per_event for each in runs),
        )
        lines.append(
            f"{rate / their_rate:.2f} times the rate and {cpu / their_cpu:.2f} of the CPU of DataStax's agent with {options}"
            f" (median of {len(runs)}: {their_rate:,.0f} events/s, {their_cpu:.1f} us)"
        )
    bars = f"bars, beside its best options: {times} times the rate, {cpu_bar} of the CPU"
    return "\n".join([ours, *lines, bars])


def effect_of_unsynced(results: Sequence[Drain], unsynced: Sequence[Drain]) -> list[str]:
    """The runs with `readUnsynced`, and the ratio of their medians to those without; no line without such runs."""
    if not unsynced:
        return []
    rates, cpus = (
        [median(each.events_per_s for each in runs) for runs in (unsynced, results)],
        [median(each.cpu_us_per_event for each in runs) for runs in (unsynced, results)],
    )
    ratios = f"with readUnsynced: {rates[0] / rates[1]:.3f} of the rate, {cpus[0] / cpus[1]:.3f} of the CPU"
    return ["with readUnsynced, in turns with the others:", *(each.line for each in unsynced), ratios]


@click.command()
@click.option("--events", default=200_000, show_default=True, type=click.IntRange(10_000), help="Of each backlog.")
@click.option(
    "--runs",
    default=3,
    show_default=True,
    type=click.IntRange(1),
    help="Runs that count, of ours and of DataStax's agent.",
)
@click.option("--read-unsynced", is_flag=True, help="Also measure our agent with readUnsynced, in turns.")
@click.option("--memory/--no-memory", default=True, help="Memory by size of backlog (up to a million) and segments.")
@click.option("--profile/--no-profile", default=True, help="One more run, with py-spy where it is installed.")
@click.option(
    "--rival-agent", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Jar of DataStax's agent."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def main(
    events: int,
    runs: int,
    read_unsynced: bool,
    memory: bool,
    profile: bool,
    rival_agent: Path | None,
    as_json: bool,
) -> None:
    """Measure the agent's throughput."""
    backlog = Backlog(events=events, segment_bytes=_SEGMENT)
    options = SandboxOptions(
        commitlog_segment_mb=32, cassandra_settings={"cdc_total_space_in_mb": 8192}, pulsar_jvm_options=AS_IN_SERVICE
    )
    with tempfile.TemporaryDirectory() as folder, Sandbox(options) as sandbox:
        drainer = Drainer(sandbox, Path(folder))
        drainer.run(backlog)
        results, unsynced, rival = [], [], []
        for turn in range(runs):
            results.append(drainer.run(backlog))
            unsynced += [drainer.run(backlog, read_unsynced=True)] if read_unsynced else []
            rival += [] if rival_agent is None else measure_rival(rival_agent, sandbox, events, turn)
        by_size = [drainer.run(each) for each in _MEMORY_RUNS] if memory else []
        if profile:
            drainer.run(backlog, with_profile=True)
    if as_json:
        ours = {"runs": results, "unsynced": unsynced, "memory": by_size}
        figures = {name: [asdict(each) for each in runs] for name, runs in ours.items()}
        click.echo(json.dumps({**figures, "profile": drainer.profile, "rival": [asdict(each) for each in rival]}))
        return
    lines = [*(each.line for each in results), *effect_of_unsynced(results, unsynced)]
    if by_size:
        lines += ["memory, by backlog and by segments:", *(each.line for each in by_size)]
    click.echo("\n".join([*lines, *drainer.profile, *map(str, rival), verdict(results, rival)]))


if __name__ == "__main__":
    main()
