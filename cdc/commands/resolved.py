"""`cdc resolved`: the time until which each table is complete, for people, for programs, and for Prometheus."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import click
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cdc.commands.given_options import refuse_given
from cdc.health.completeness import ResolvedLine
from cdc.health.line_config import LineConfig
from cdc.health.this_line import line_of, line_option
from schemas.errors import CdcError, ConfigError
from schemas.resolved import TableResolved
from schemas.similar_tables import missing_table_text

__all__ = ["resolved"]


@click.command(name="resolved")
@line_option
@click.argument("tables", metavar="[KEYSPACE.TABLE]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
@click.option("--prometheus", is_flag=True, help="Print the metrics as Prometheus reads them.")
@click.option("--listen", metavar="HOST:PORT", help="Serve /metrics to Prometheus, until Ctrl-C.")
def resolved(path: Path | None, tables: tuple[str, ...], as_json: bool, prometheus: bool, listen: str | None) -> None:
    """Show until when each table's data topic has every write that Cassandra acknowledged (docs/status.md).

    \b
    cdc resolved shop.orders --config line.yaml
    cdc resolved --config line.yaml --listen 127.0.0.1:9466
    """
    for table in tables:
        keyspace, _, name = table.partition(".")
        if not keyspace or not name:
            raise ConfigError.of("TABLE", f"{table!r} is not KEYSPACE.TABLE")
    if listen is not None:
        refuse_given("has no effect with --listen, which serves the metrics of Prometheus", "as_json", "prometheus")
    if prometheus:
        refuse_given("has no effect with --prometheus, which prints no JSON", "as_json")
    config = line_of(path)
    if listen is not None:
        _serve(config, listen, tables)
        return
    if prometheus:
        click.echo(_page(_Ages(config, tables)).decode(), nl=False)
        return
    with closing(ResolvedLine(config)) as line:
        found = line.read(tables or None)
        published = line.published_tables()
        foreign = line.foreign_messages
    if as_json:
        click.echo(json.dumps({table: _as_object(each) for table, each in found.items()}))
        return
    for table, each in found.items():
        click.echo(_line(table, each))
    if not found:
        click.echo("no agent has published its progress")
    for table in tables:
        if published and table not in published:
            click.echo(missing_table_text(table, "among the tables that agents publish", published), err=True)
    if foreign:
        click.echo(f"{foreign} messages of the progress topic are not progress records, and are ignored", err=True)


def _line(table: str, found: TableResolved) -> str:
    from spark_bridge.topics.resolved import utc_text

    why = "".join(f"\n  {each}" for each in found.problems)
    if found.resolved_ms is None:
        return f"{table}: not known{why}"
    return f"{table}: complete until {utc_text(found.resolved_ms)} ({_age_s(found.resolved_ms):.1f} s ago){why}"


def _as_object(found: TableResolved) -> dict[str, object]:
    return {
        "resolved_ms": found.resolved_ms,
        "age_s": None if found.resolved_ms is None else _age_s(found.resolved_ms),
        "nodes": [
            {"node_id": str(each.node_id), "address": each.address, "resolved_ms": each.resolved_ms, "why": each.why}
            for each in found.nodes
        ],
        "problems": list(found.problems),
    }


def _age_s(time_ms: int) -> float:
    return max(0.0, time.time() - time_ms / 1000)


class _Ages(Collector):
    """Reads the resolved timestamps at each scrape, one scrape at a time."""

    def __init__(self, config: LineConfig, tables: tuple[str, ...]) -> None:
        self._config: Final = config
        self._tables: Final = tables
        self._lock: Final = threading.Lock()
        self._line: ResolvedLine | None = None
        self._problem: str | None = None

    def collect(self) -> Iterator[Metric]:
        """The metrics. A table without a known resolved timestamp has no age. After an error `cdc_resolved_up` is 0.

        An error is reported on stderr, once until it changes or a scrape succeeds.
        """
        ages = GaugeMetricFamily(
            "cdc_resolved_age_seconds",
            "Age of the time before which the data topic has every write that Cassandra acknowledged, by table",
            labels=["table"],
        )
        known = GaugeMetricFamily(
            "cdc_resolved_known", "1 where the table's resolved timestamp is known", labels=["table"]
        )
        up = GaugeMetricFamily("cdc_resolved_up", "1 while Pulsar answers")
        with self._lock:
            try:
                self._line = self._line or ResolvedLine(self._config)
                found = self._line.read(self._tables or None)
            except Exception as error:  # noqa: BLE001  # without a page Prometheus has no metric to alert on
                self._report(str(error) if isinstance(error, CdcError) else f"{type(error).__name__}: {error}")
                self._close()
                found = {}
                up.add_metric([], 0)
            else:
                self._problem = None
                up.add_metric([], 1)
        for table, each in found.items():
            known.add_metric([table], int(each.resolved_ms is not None))
            if each.resolved_ms is not None:
                ages.add_metric([table], _age_s(each.resolved_ms))
        yield from (ages, known, up)

    def describe(self) -> list[Metric]:
        """No metrics, so that the registration of this collector does not ask Pulsar."""
        return []

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            click.echo(f"cdc resolved: {problem}", err=True)
        self._problem = problem

    def _close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()


def _page(ages: _Ages) -> bytes:
    registry = CollectorRegistry()
    registry.register(ages)
    return generate_latest(registry)


def _serve(config: LineConfig, listen: str, tables: tuple[str, ...]) -> None:
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ConfigError.of("--listen", f"{listen!r} is no address, such as 127.0.0.1:9466")
    registry = CollectorRegistry()
    registry.register(_Ages(config, tables))
    try:
        server, _ = start_http_server(int(port), host or "127.0.0.1", registry)
    except OSError as error:
        raise ConfigError.of("--listen", f"{listen} cannot be listened on ({error.strerror})") from error
    click.echo(f"http://{host or '127.0.0.1'}:{server.server_port}/metrics")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        server.shutdown()
