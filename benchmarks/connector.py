"""Measures the source connector: backlogs to the data topic, the delay at a low rate, and the memory of many tables.

    python -m benchmarks.connector [--rows 100000] [--only distinct --only delay ...] [--json]

Each table's changes are written while the agent publishes them. Then a source is deployed by `pulsar-admin`, and drains
them alone. The first fifth of a backlog, 60,000 rows at most, is warm-up and does not count. CPU is user and system
time of the child (Python), the host (the instance's JVM), Cassandra and Pulsar, for each record of the data topic.
Memory is the largest RSS of host and child together. Cassandra and Pulsar run with both of the JVM's compilers, as in
service. The machine also runs the servers, so each line has the load average.

- *delay*: from a row's write time to the publish time of its record, at a few writes a second, through agent and
  connector.
- *many*: one source for 50 tables, each with a backlog.
- *expiring*: rows with a TTL, without `expiry.publish` and with it, in turns.
- *hot*: there is no warm-up, and there are fewer records than changes, because one read serves all waiting changes of a
  key.

With `--rival-nar`, DataStax's connector drains the same rows of *distinct*, in turns with ours, `--turns` times each,
with medians at the end. Without it, nothing is compared.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from statistics import median, quantiles
from typing import Final, cast

import click
import pulsar
from cassandra.cluster import Session

from benchmarks.connector_backlog import EXPIRING, KEYSPACE, SCENARIOS, Scenario, create_keyspace, write_many_tables
from benchmarks.connector_run import SUBSCRIPTION, Drain, Source, deployed, drain, subscribe_from_the_start
from benchmarks.rival import AS_IN_SERVICE
from benchmarks.rival_connector import RivalConnector
from cdc.demo.line import Line
from cdc.progress import progress_display
from cdc.sandbox import SandboxOptions
from schemas.topics import events_topic
from source_connector.nar_build import build_nar

_WARM_UP_ROWS: Final = 60_000
_SYNC_MS: Final = 100
_DEFAULT_SYNC_MS: Final = 10_000
_MANY: Final = 50
_WAIT_S: Final = 900
_NAMES: Final = (*(each.table for each in SCENARIOS), EXPIRING.table, "many", "delay")


def _reads(session: Session, table: str) -> int:
    """The number of Cassandra's local reads of the table."""
    rows = session.execute(
        "SELECT count FROM system_views.local_read_latency WHERE keyspace_name = %s AND table_name = %s",
        (KEYSPACE, table),
    )
    return sum(cast("int", row["count"]) for row in rows)


class _Bench:
    """The line's servers and agent, with one source at a time."""

    def __init__(self, line: Line, create_arguments: Sequence[str]) -> None:
        self._line = line
        self._create_arguments = create_arguments
        self._archive = build_nar(Path.cwd() / "build")
        self._events = 0

    def scenario(self, scenario: Scenario, rows: int) -> Drain:
        """Write the changes of one table, and drain them with a source."""
        count = self._write(scenario, rows)
        options = {"keyspace": KEYSPACE, "table": scenario.table}
        return self._drain(scenario.table, count, options, [scenario.table], [f"data-{scenario.table}"])

    def turns(self, scenario: Scenario, rows: int, archive: Path, turns: int) -> Iterator[tuple[Drain, Drain]]:
        """Drain the same changes with our source, then with DataStax's, `turns` times. Each turn has its own
        subscription."""
        count = self._write(scenario, rows)
        line, table = self._line, scenario.table
        names = self._subscriptions(table, turns)
        rival = RivalConnector(archive, line.sandbox, line.session, rows=count, turns=names)
        for name in names:
            options = {"keyspace": KEYSPACE, "table": table, "events.subscription.name": name}
            ours = self._drain(f"{table}-{name}", count, options, [table], [f"data-{table}-{name}"], name)
            theirs = rival.measure(
                name, warm_up=min(_WARM_UP_ROWS, rows // 5), reads=lambda: _reads(line.session, table)
            )
            yield ours, theirs

    def expiring(self, rows: int, turns: int) -> Iterator[tuple[Drain, Drain]]:
        """Drain rows with a TTL without `expiry.publish`, then with it, `turns` times."""
        count = self._write(EXPIRING, rows)
        names = self._subscriptions(EXPIRING.table, 2 * turns)
        for without, keeping in zip(names[::2], names[1::2], strict=True):
            yield (
                self._drain_expiring(count, without, publish=False),
                self._drain_expiring(count, keeping, publish=True),
            )

    def _drain_expiring(self, count: int, subscription: str, *, publish: bool) -> Drain:
        table = EXPIRING.table
        options = {
            "keyspace": KEYSPACE,
            "table": table,
            "events.subscription.name": subscription,
            "expiry.publish": publish,
        }
        name = f"{table}-{subscription}"
        return self._drain(name, count, options, [table], [f"data-{name}"], subscription)

    def _subscriptions(self, table: str, count: int) -> list[str]:
        """Create the subscriptions, one for each drain, each with the whole backlog. Return their names."""
        names = [SUBSCRIPTION, *(f"turn{number}" for number in range(1, count))]
        for name in names[1:]:
            subscribe_from_the_start(self._line.sandbox, events_topic(KEYSPACE, table), name)
        return names

    def _write(self, scenario: Scenario, rows: int) -> int:
        count = scenario.write(self._line.session, rows)
        self._wait_for_events(count)
        return count

    def many(self, rows: int) -> Drain:
        """Drain `_MANY` tables with one source."""
        write_many_tables(self._line.session, _MANY, rows)
        self._wait_for_events(_MANY * rows)
        options = {"tables": f"{KEYSPACE}.many_*", "destination": "data-{keyspace}.{table}"}
        tables = [f"many_{number}" for number in range(_MANY)]
        return self._drain("many", _MANY * rows, options, tables, [f"data-{KEYSPACE}.{each}" for each in tables])

    def delay(self, seconds: float, rate: float) -> tuple[float, float, int]:
        """Return p50 and p99 of the delay in milliseconds, and the number of rows."""
        line, table = self._line, f"{KEYSPACE}.delay"
        line.session.execute(f"CREATE TABLE {table} (pk int PRIMARY KEY, v text) WITH cdc = true")
        insert = line.session.prepare(f"INSERT INTO {table} (pk, v) VALUES (?, ?)")
        count, warm = int(seconds * rate), int(5 * rate)
        with self._deployed("delay", {"keyspace": KEYSPACE, "table": "delay"}):
            started = time.monotonic()
            for number in range(count + warm):
                line.session.execute(insert, (number, "x" * 100))
                time.sleep(max(0.0, started + (number + 1) / rate - time.monotonic()))
            delays = self._delays(count + warm)[warm:]
        hundredths = quantiles(delays, n=100)
        return hundredths[49], hundredths[98], len(delays)

    def _delays(self, count: int) -> list[float]:
        """The time from each record's write time to its publish time, in milliseconds."""
        client = pulsar.Client(
            self._line.sandbox.pulsar.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
        )
        reader = client.create_reader("data-delay", pulsar.MessageId.earliest)
        messages = [reader.read_next(60_000) for _ in range(count)]
        delays = [each.publish_timestamp() - int(each.properties()["writetime"]) / 1000 for each in messages]
        client.close()
        return delays

    def _drain(
        self,
        name: str,
        rows: int,
        options: Mapping[str, object],
        tables: Sequence[str],
        destinations: Sequence[str],
        subscription: str = SUBSCRIPTION,
    ) -> Drain:
        line = self._line
        with self._deployed(name, options) as source:
            return drain(
                line.sandbox,
                source,
                name,
                rows=rows,
                warm_up=0 if name == "hot" else min(_WARM_UP_ROWS, rows // 5),
                events_topics=[events_topic(KEYSPACE, table) for table in tables],
                data_topics=destinations,
                reads=lambda: sum(_reads(line.session, table) for table in tables),
                subscription=subscription,
            )

    def _deployed(self, name: str, options: Mapping[str, object]) -> AbstractContextManager[Source]:
        own = {"python": sys.executable, **options}
        return deployed(self._line.sandbox, self._archive, name, f"data-{name}", own, self._create_arguments)

    def _wait_for_events(self, count: int) -> None:
        self._events += count
        self._line.wait_for_events(self._events, _WAIT_S)


def _ratios(pairs: Sequence[tuple[Drain, Drain]]) -> tuple[float, float, float]:
    """Ratios of the medians, first to second of the pairs: rate, CPU of child and host, memory."""

    def middle(which: int, figure: Callable[[Drain], float]) -> float:
        return median(figure(each[which]) for each in pairs)

    rate, cpu, memory = (
        middle(0, figure) / middle(1, figure)
        for figure in (
            lambda each: each.rows / each.seconds,
            lambda each: each.child_us + each.host_us,
            lambda each: float(each.rss_bytes),
        )
    )
    return rate, cpu, memory


def _ratio(pairs: Sequence[tuple[Drain, Drain]]) -> str:
    rate, cpu, memory = _ratios(pairs)
    return (
        f"distinct beside DataStax's, median of {len(pairs)}: {rate:.2f} times the rate (bar: 4), {cpu:.2f} of the CPU (bar: 0.2),"
        f" {memory:.2f} of the memory"
    )


@click.command()
@click.option(
    "--rows", default=100_000, show_default=True, type=click.IntRange(2_000), help="Rows of the main backlog."
)
@click.option("--only", multiple=True, type=click.Choice(_NAMES), help="Of these only; all by default.")
@click.option(
    "--seconds", default=30.0, show_default=True, type=click.FloatRange(5), help="Of the writes for the delay."
)
@click.option(
    "--rate", default=20.0, show_default=True, type=click.FloatRange(5), help="Writes a second for the delay."
)
@click.option(
    "--rival-nar",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="DataStax's connector, beside ours.",
)
@click.option("--turns", default=3, show_default=True, type=click.IntRange(1), help="Of ours and DataStax's, in turn.")
@click.option(
    "--create-args",
    default="",
    help="More for `pulsar-admin sources create`, such as '--ram 134217728', as a shell has it.",
)
@click.option(
    "--read-unsynced",
    is_flag=True,
    help="The agent with readUnsynced, and Cassandra's default sync of 10 s.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def main(
    rows: int,
    only: tuple[str, ...],
    seconds: float,
    rate: float,
    rival_nar: Path | None,
    turns: int,
    create_args: str,
    read_unsynced: bool,
    as_json: bool,
) -> None:
    """Measure the connector."""
    wanted = only or _NAMES
    if rival_nar is not None and "distinct" not in wanted:
        raise click.UsageError("--rival-nar is measured with the rows of `distinct`: add --only distinct")
    report: dict[str, object] = {}
    sync_ms = _DEFAULT_SYNC_MS if read_unsynced else _SYNC_MS
    options = SandboxOptions(
        commitlog_segment_mb=32,
        commitlog_sync_ms=sync_ms,
        cassandra_settings={"cdc_total_space_in_mb": 8192},
        cassandra_heap_mb=1024,
        cassandra_jvm_options=AS_IN_SERVICE,
        pulsar_jvm_options=AS_IN_SERVICE,
    )

    def say(name: str, line: str, value: object) -> None:
        report[name] = value
        if not as_json:
            click.echo(line)

    with (
        progress_display(quiet=True) as on_progress,
        Line(options, on_progress=on_progress, agent_options={"readUnsynced": read_unsynced}) as line,
    ):
        line.keep_data_topics()
        create_keyspace(line.session)
        bench = _Bench(line, shlex.split(create_args))
        for scenario in (each for each in SCENARIOS if each.table in wanted):
            if scenario.table == "distinct" and rival_nar is not None:
                pairs = []
                for ours, rival in bench.turns(scenario, rows, rival_nar, turns):
                    pairs.append((ours, rival))
                    say(ours.name, f"{ours.line}   ({scenario.about})", asdict(ours))
                    say(f"rival {len(pairs)}", f"{rival.line}   (DataStax's connector, the same rows)", asdict(rival))
                say("ratio", _ratio(pairs), _ratio(pairs))
                continue
            drained = bench.scenario(scenario, rows)
            say(scenario.table, f"{drained.line}   ({scenario.about})", asdict(drained))
        if EXPIRING.table in wanted:
            pairs = []
            for without, keeping in bench.expiring(rows, turns):
                pairs.append((keeping, without))
                say(without.name, f"{without.line}   (without expiry.publish)", asdict(without))
                say(keeping.name, f"{keeping.line}   (with it)", asdict(keeping))
            rate, cpu, memory = _ratios(pairs)
            text = f"with expiry.publish, median of {len(pairs)}: {rate:.2f} times the rate, {cpu:.2f} of the CPU, {memory:.2f} of the memory"
            say("expiry ratio", text, {"rate": rate, "cpu": cpu, "memory": memory})
        if "many" in wanted:
            drained = bench.many(rows // 10)
            say("many", f"{drained.line}   ({_MANY} tables, {rows // 10:,} waiting changes each)", asdict(drained))
        if "delay" in wanted:
            p50, p99, count = bench.delay(seconds, rate)
            text = f"insert to data topic, sync every {sync_ms} ms: p50 {p50:.0f} ms, p99 {p99:.0f} ms of {count}"
            say("delay", f"{text}  load {os.getloadavg()[0]:.1f}", {"p50_ms": p50, "p99_ms": p99, "count": count})
    if as_json:
        click.echo(json.dumps(report))
        return
    if rival_nar is None and "distinct" in wanted:
        click.echo("DataStax's connector was not measured: --rival-nar NAR (make: RIVAL_NAR=NAR) runs it beside ours")


if __name__ == "__main__":
    main()
