"""What tests of properties share: drawn examples, connectors of several formats for several tables, and what came out.

What is tried is drawn by hypothesis, the same in every run: `CDC_TEST_EXAMPLES=500` draws more and others, and a failure
names its seed for `CDC_TEST_SEED`. All that is drawn goes to the servers at once, in few tables with many columns.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import pytest
from cassandra.cluster import Session
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import spark_bridge
from cdc.agent_process import AgentProcess
from cdc.rest import rest
from tests.data_topic import DataRecord, DataTopic
from tests.events_topic import wait_until
from tests.fix_connector import DeployConnector, OpenDataTopic
from tests.servers import PulsarServer

Serve = Callable[..., dict[str, list[DataTopic]]]

EXAMPLES: Final = int(os.environ.get("CDC_TEST_EXAMPLES") or 0)
SEED: Final = int(os.environ.get("CDC_TEST_SEED") or (secrets.randbelow(10**6) if EXAMPLES else 1))
_T = TypeVar("_T")


def drawn(strategy: st.SearchStrategy[_T], count: int) -> list[_T]:
    """So many examples of a strategy; no more than hypothesis' generator is wanted of it."""
    found: list[_T] = []

    @seed(SEED)
    @settings(
        max_examples=EXAMPLES or count, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def draw(value: _T) -> None:
        found.append(value)

    draw()
    print(f"CDC_TEST_SEED={SEED} CDC_TEST_EXAMPLES={EXAMPLES}: {len(found)} examples")
    return found


@pytest.fixture
def serve(
    agent: AgentProcess, cql: Session, keyspace: str, pulsar: PulsarServer, deploy_connector: DeployConnector,
    open_data_topic: OpenDataTopic,
) -> Serve:  # fmt: skip
    """Deploy connectors of these formats for all tables of the keyspace, which exist; the data topics of each."""

    def serve(tables: Sequence[str], *formats: str, key: str = "pk", values: str = "0") -> dict[str, list[DataTopic]]:
        topics = {}
        for data_format in formats:
            names = [f"{data_format}-{keyspace}.{table}" for table in tables]
            topics[data_format] = [open_data_topic(name) for name in names]
            deploy_connector(
                "", "", tables=f"{keyspace}.*", destination=f"data-{data_format}-{{keyspace}}.{{table}}",
                outputFormat=data_format, events__subscription__name="sub" if data_format == formats[0] else data_format,
            )  # fmt: skip
        # The agent makes an events topic with its first event; then every connector has to be there for the others.
        for table in tables:
            cql.execute(f"INSERT INTO {keyspace}.{table} ({key}) VALUES ({values})")
        for table in tables:
            wait_until(lambda: _readers(pulsar, keyspace, table) == len(formats), f"connectors of {table}")  # noqa: B023
        return topics

    return serve


def _readers(pulsar: PulsarServer, keyspace: str, table: str) -> int:
    url = f"{pulsar.admin_url}/admin/v2/persistent/public/default/cdc-events-{keyspace}.{table}/partitioned-stats"
    answer = rest().get(url, timeout=30)
    found = answer.json()["subscriptions"] if answer.is_success else {}
    return sum(bool(each.get("consumers")) for each in found.values())


def newest(topic: DataTopic, wanted: int) -> dict[int, DataRecord]:
    """The newest record of each key above 0, when so many keys have one."""

    def by_key() -> dict[int, DataRecord]:
        return {record.key["pk"]: record for record in topic.records if record.key["pk"] > 0}

    def is_there() -> bool:
        topic.poll(0.05)
        return len(by_key()) >= wanted

    wait_until(is_there, f"{wanted} keys on {topic.name}")
    return by_key()


def table_rows(cql: Session, table: str) -> dict[int, dict[str, Any]]:
    """What SELECT gives of the keys above 0."""
    result = cql.execute(f"SELECT * FROM {table}")
    rows = [dict(zip(result.column_names, row, strict=True)) for row in result]
    return {row["pk"]: row for row in rows if row["pk"] > 0}


def spark_rows(spark: SparkSession, pulsar: PulsarServer, topic: str) -> list[dict[str, Any]]:
    """Of the current table, numbers as text."""
    options = {"serviceUrl": pulsar.service_url, "adminUrl": pulsar.admin_url, "topic": topic, "numbers": "string"}
    rows = spark_bridge.current_table(spark, options).collect()
    return [row.asDict(recursive=True) for row in rows if row["pk"] > 0]
