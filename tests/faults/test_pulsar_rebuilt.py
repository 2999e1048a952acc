"""Pulsar is lost with all its data and set up again, so that ledgers have numbers that a mirror already knows.

This is no fault of `python -m tests.fault_kit run`, whose oracle reads all topics from their beginning at the end.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from cassandra.cluster import Session
from pyspark.sql import SparkSession

from cdc.demo.comparison import differences
from spark_bridge.errors import OtherTopicError
from spark_bridge.jobs.backfill import backfill
from spark_bridge.jobs.cassandra_rows import CassandraAccess
from spark_bridge.jobs.mirror import mirror
from spark_bridge.jobs.mirror_state import MirrorTables
from tests.fault_kit.line import FaultLine, wait_for
from tests.fault_kit.oracle.topics import TopicReader
from tests.fault_kit.sessions import session_of
from tests.fault_kit.settle import settle
from tests.fault_kit.tables import KEYSPACE, schema_statements
from tests.spark.settings import PY4J_LEAVES_SOCKETS_OPEN

pytestmark = [
    pytest.mark.integration,
    pytest.mark.fault_plan,
    pytest.mark.filterwarnings(PY4J_LEAVES_SOCKETS_OPEN),
    pytest.mark.timeout(1_200),
]

_TABLE = "leases"
_SETTLE_S = 300.0


def _write(session: Session, owners: Mapping[int, str]) -> None:
    for key, owner in owners.items():
        session.execute(f"INSERT INTO {KEYSPACE}.{_TABLE} (id, owner) VALUES (%s, %s)", (key, owner))


def _differences(session: Session, spark: SparkSession, target: Path) -> list[str]:
    """Differences between Cassandra and the mirror."""
    kept = MirrorTables(spark, str(target)).rows.read()
    assert kept is not None
    rows = kept.select("id", "owner", "version").collect()
    wanted = session.execute(f"SELECT id, owner, version FROM {KEYSPACE}.{_TABLE}")
    return differences(_TABLE, ["id"], [row._asdict() for row in wanted], [row.asDict() for row in rows])


def _rebuild(line: FaultLine) -> None:
    """Delete all messages and sources of Pulsar, then set it up as before."""
    pulsar = line.sandbox.pulsar
    with line.pulsar_lock:
        pulsar.stop()
        for folder in (pulsar.folder / "data", pulsar.home / "packages-storage"):
            shutil.rmtree(folder, ignore_errors=True)
        pulsar.start()
    line.prepare_topics()
    line.deploy_source()


def _is_published(session: Session, line: FaultLine, topic: str) -> bool:
    _write(session, dict.fromkeys(range(3), "behind"))
    settle(line, _SETTLE_S)
    pulsar = line.sandbox.pulsar
    with TopicReader(pulsar.service_url, pulsar.admin_url) as topics:
        return topic in topics.topics()


def test_a_mirror_of_a_pulsar_that_was_rebuilt_is_refused_until_it_is_rebuilt(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The agent makes its topics again and reports the gap; a backfill restores the lost records of the data topic."""
    target = tmp_path / "mirror"
    with FaultLine(nodes=1, cassandra="5.0", folder=tmp_path / "line", on_progress=lambda name, step: None) as line:
        pulsar = line.sandbox.pulsar
        topic = f"persistent://public/default/data-{KEYSPACE}.{_TABLE}"
        servers = {"serviceUrl": pulsar.service_url, "adminUrl": pulsar.admin_url}
        line.prepare_topics()
        with session_of(line) as session:
            for statement in schema_statements(1, has_vectors=True):
                if statement.startswith("CREATE KEYSPACE") or f".{_TABLE} (" in statement:
                    session.execute(statement, timeout=240)
            (agent,) = line.agents
            agent.start()
            line.deploy_source()
            _write(session, dict.fromkeys(range(9), "before"))
            settle(line, _SETTLE_S)
            assert mirror(spark, {**servers, "topic": topic}, str(target)).inserted == 9
            _rebuild(line)
            # Fewer rows than before, so that no position of their records is after those of the mirror. Events are lost
            # until the agent has found that its topics are gone, so the rows are written until a record arrives.
            wait_for(lambda: _is_published(session, line, topic), "a record of the rebuilt Pulsar", _SETTLE_S)
            with pytest.raises(OtherTopicError, match="a mirror with --rebuild"):
                mirror(spark, {**servers, "topic": topic}, str(target))
            with TopicReader(pulsar.service_url, pulsar.admin_url) as topics:
                assert {gap.table for gap in topics.gaps("cdc-events-gaps")} == {_TABLE}
            address, port = line.contact.addresses[0], line.contact.port
            access = CassandraAccess(contact_points=(address,), port=port, consistency="ONE")
            assert backfill(spark, servers, access, KEYSPACE, _TABLE, ranges=1).rows == 9
            settle(line, _SETTLE_S)
            mirror(spark, {**servers, "topic": topic}, str(target), rebuild=True)
            assert _differences(session, spark, target) == []
