"""`cdc status`, `cdc doctor` and the watch over sources, beside real servers, an agent and a source."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cassandra.cluster import Session
from click.testing import CliRunner

from cdc.health.line_config import LineConfig
from cdc.health.pulsar_service import PulsarService
from cdc.health.source_keeper import SourceKeeper, wait_for_sources
from cdc.health.sources import sources_of
from cdc.health.turns import Turns
from cdc.main import cli
from cdc.rest import rest
from tests.fixtures.connector import DeployConnector
from tests.servers.interface import PulsarServer
from tests.topics.events_topic import wait_until


def _asked(command: str, line_yaml: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Findings by section and subject; of several findings with the same subject, the last one."""
    done = CliRunner().invoke(cli, [command, "--config", str(line_yaml), "--json"], catch_exceptions=False)
    said = json.loads(done.stdout)
    assert done.exit_code == int(said["level"] == "failure")
    return {
        (section["title"], finding["subject"]): finding
        for section in said["sections"]
        for finding in section["findings"]
    }


def _are_ok(found: Mapping[tuple[str, str], dict[str, Any]], *names: tuple[str, str]) -> bool:
    return all(found.get(name, {}).get("level") == "ok" for name in names)


def test_a_table_that_nobody_reads_and_one_without_cdc_are_named(line_yaml: Path, cql: Session, keyspace: str) -> None:
    """The status names the table that no source reads; the doctor names the one without cdc, and how to set it."""
    cql.execute(f"CREATE TABLE {keyspace}.t (pk int PRIMARY KEY) WITH cdc = true")
    cql.execute(f'CREATE TABLE {keyspace}."Forgotten" (pk int PRIMARY KEY)')
    cql.execute(f"INSERT INTO {keyspace}.t (pk) VALUES (1)")
    found: dict[tuple[str, str], dict[str, Any]] = {}

    def is_there() -> bool:
        found.update(_asked("status", line_yaml))
        waits = "1 message waits" in found.get(("tables", f"{keyspace}.t"), {}).get("text", "")
        return waits and _are_ok(found, ("servers", "Cassandra"), ("servers", "Pulsar"))

    wait_until(is_there, "the event of the table, from servers that answer in time")
    told = found["tables", f"{keyspace}.t"]
    assert (told["level"], "no source reads its events" in told["text"]) == ("failure", True)
    assert found["servers", "Cassandra"]["level"] == found["servers", "Pulsar"]["level"] == "ok"
    line_yaml.write_text(line_yaml.read_text() + f"tables: {keyspace}.*\n")
    advised: dict[tuple[str, str], dict[str, Any]] = {}

    def is_advised() -> bool:
        advised.clear()
        advised.update(_asked("doctor", line_yaml))
        is_ok = _are_ok(advised, ("Pulsar", "broker"), ("topics", f"cdc-events-{keyspace}.t"))
        return is_ok and ("Cassandra", f"{keyspace}.Forgotten") in advised

    wait_until(is_advised, "the doctor's advice, from servers that answer in time")
    assert (
        advised["Cassandra", f"{keyspace}.Forgotten"]["remedy"]
        == f'ALTER TABLE {keyspace}."Forgotten" WITH cdc = true;'
    )
    assert (
        _asked("status", line_yaml)["tables", f"{keyspace}.Forgotten"] == advised["Cassandra", f"{keyspace}.Forgotten"]
    )
    assert advised["Pulsar", "broker"]["level"] == "ok"
    assert advised["topics", f"cdc-events-{keyspace}.t"]["level"] == "ok"


def test_a_source_that_does_not_run_is_named_and_restarted_by_one_watch(
    line_yaml: Path, pulsar: PulsarServer, deploy_connector: DeployConnector, keyspace: str
) -> None:
    """Only one keeper at a time restarts sources; a source that somebody stopped is not restarted."""
    source = deploy_connector(keyspace, "t", **{"events.maxWaitng": 3})
    source.wait_for_error()

    def says(text: str) -> bool:
        return text in _asked("status", line_yaml).get(("sources", source.name), {}).get("text", "")

    wait_until(lambda: says("is not running: 0 of 1 instances run"), "the status names the source")
    config = LineConfig.load(line_yaml)
    with PulsarService(config) as service:

        def told() -> list[str]:
            keeper = SourceKeeper(service, Turns(config).turn, patience_s=0.0, start_s=0.0)
            return [each for each in keeper.check() if source.name in each]

        with Turns(config).turn() as is_ours:
            assert is_ours
            assert not told()
        # The worker restarts it again and again, and reports it as running for a moment each time.
        wait_until(lambda: any("restarted, for it did not run" in each for each in told()), "the restart")
        rest().post(f"{pulsar.admin_url}/admin/v3/sources/public/default/{source.name}/stop").raise_for_status()
        wait_until(lambda: says("is stopped"), "the stop")
        assert not told()
        assert source.name not in wait_for_sources(config, print, timeout_s=0)
        rest().post(f"{pulsar.admin_url}/admin/v3/sources/public/default/{source.name}/start").raise_for_status()
        wait_until(lambda: bool(wait_for_sources(config, print, timeout_s=0).get(source.name)), "why it does not run")


def test_the_functions_worker_knows_when_a_source_published_last(
    line_yaml: Path, cql: Session, deploy_connector: DeployConnector, keyspace: str
) -> None:
    """By this time, a source that works on a backlog is told from one that stands still."""
    cql.execute(f"CREATE TABLE {keyspace}.t (pk int PRIMARY KEY) WITH cdc = true")
    source = deploy_connector(keyspace, "t")
    with PulsarService(LineConfig.load(line_yaml)) as service:

        def published_s() -> float:
            return next(each.last_record_s for each in sources_of(service) if each.name == source.name)

        assert published_s() == 0
        before_s = time.time()
        cql.execute(f"INSERT INTO {keyspace}.t (pk) VALUES (1)")
        wait_until(lambda: published_s() > 0, "the time of the record")
        assert before_s <= published_s() <= time.time()
