"""Errors of the data source `cassandra_cdc` are one line, without secrets."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_bridge import register, typed
from spark_bridge.topics.options import OAUTH2_PLUGIN, TOKEN_PLUGIN
from tests.fixtures.spark import MakeTopic, Record
from tests.servers.interface import PulsarServer
from tests.topics.client import client_of
from tests.topics.numbered_records import KEY_AND_VALUE, numbered, read
from tests.topics.table_records import PLAIN

pytestmark = pytest.mark.spark_line(">=4.1")


def test_all_wrong_options_are_named_at_once(spark: SparkSession, data_topic: MakeTopic) -> None:
    """One error at `load()` names unknown options with the nearest known one, wrong values, and missing options."""
    with pytest.raises(PySparkException) as error:
        spark.read.format("cassandra_cdc").options(serviceURI="x", topic="a,b", minPartitions="many").load()
    text = str(error.value)
    assert "serviceuri: is no option of cassandra_cdc; did you mean serviceUrl?" in text
    assert "serviceUrl: is missing" in text
    assert "adminUrl: is missing" in text
    assert (
        "topic: names one topic, such as 'persistent://public/default/data-shop.orders'; topics takes several" in text
    )
    assert "minPartitions: " in text


@pytest.mark.parametrize("source", ["cassandra_cdc", "cassandra_commitlog"])
def test_sql_makes_a_view_and_no_table_of_a_catalog(
    spark: SparkSession, data_topic: MakeTopic, tmp_path: Path, source: str
) -> None:
    """For a table, Spark would give properties of the table as unknown options."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(1, 2))
    register(spark)
    given = topic.options if source == "cassandra_cdc" else {"archiveUrl": str(tmp_path)}
    texts = ", ".join(f"{name} '{each}'" for name, each in given.items())
    with pytest.raises(PySparkException) as error:
        spark.sql(f"CREATE TABLE made USING {source} OPTIONS ({texts})")
    assert f"CREATE TABLE: {source} cannot be a table of a catalog; use CREATE TEMPORARY VIEW" in str(error.value)
    if source == "cassandra_cdc":
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW made USING {source} OPTIONS ({texts})")
        assert spark.sql("SELECT count(*) FROM made").first() == (2,)


def test_positions_of_partitions_that_do_not_exist_are_refused(spark: SparkSession, data_topic: MakeTopic) -> None:
    """`startingOffsets` must name each partition of the topic, and nothing else."""
    topic = data_topic(*KEY_AND_VALUE)
    with pytest.raises(PySparkException) as error:
        read(spark, topic.options, startingOffsets='{"nosuch": "1:2"}').collect()
    assert "startingOffsets: names 'nosuch', which is no partition of the topic" in str(error.value)
    assert f"startingOffsets: has no position of '{topic.name}'" in str(error.value)


def test_a_missing_topic_is_named_and_not_created(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Looking for a topic must not make one, although the broker allows auto-creation."""
    topic = data_topic(*KEY_AND_VALUE)
    missing = topic.name + "-missing"
    for _ in range(2):
        with pytest.raises(PySparkException) as error:
            read(spark, {**topic.options, "topic": missing}).collect()
        assert f"topic {missing}: does not exist" in str(error.value)
    assert topic.admin.get(f"/{missing.replace('://', '/')}/partitions").status_code == httpx.codes.NOT_FOUND


def test_rows_of_another_topic_are_not_decoded(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Their bytes might be decoded to wrong values. Rows of several topics are typed after a filter by topic."""
    first, second = (data_topic(*PLAIN) for _ in range(2))
    for topic, name in ((first, "a"), (second, "b")):
        topic.write(Record(key={"id": 1}, value={"name": name}))
    both = {**first.options, "topics": f"{first.name},{second.name}"}
    rows = read(spark, {name: each for name, each in both.items() if name != "topic"})
    for more in ({}, {"corruptRows": "keep"}):
        with pytest.raises(PySparkException) as error:
            typed(rows, {**second.options, **more}).collect()
        assert f"topic {second.name}: a row comes from topic {first.name}, which has other columns" in str(error.value)
    (found,) = typed(rows.where(rows["topic"] == second.name), second.options).collect()
    assert found["value"]["name"] == "b"
    (found,) = typed(rows.where(rows["topic"] == second.name).drop("topic"), second.options).collect()
    assert found["value"]["name"] == "b"


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address with a bound port at which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def test_an_admin_service_that_is_down_is_named_soon(spark: SparkSession, data_topic: MakeTopic, nobody: str) -> None:
    """Nobody listens at adminUrl: one line with the address, within seconds, or a minute on a loaded machine."""
    topic = data_topic(*KEY_AND_VALUE)
    url = f"http://{nobody}"
    started = time.monotonic()
    with pytest.raises(PySparkException) as error:
        read(spark, {**topic.options, "adminUrl": url}).collect()
    assert f"Pulsar at {url}: the admin service does not answer" in str(error.value)
    assert "check the option adminUrl" in str(error.value)
    assert time.monotonic() - started < 120


def test_a_broker_that_is_down_is_named_with_topic_and_position(
    spark: SparkSession, data_topic: MakeTopic, nobody: str
) -> None:
    """Nobody listens at serviceUrl: the task ends within `operationTimeoutSeconds`."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(1, 1))
    url = f"pulsar://{nobody}"
    started = time.monotonic()
    with pytest.raises(PySparkException) as error:
        read(spark, {**topic.options, "serviceUrl": url}, operationTimeoutSeconds="30").collect()
    expected = f"topic partition {topic.name} after position -1:-1: the broker at {url} gives no reader within 30 s"
    assert expected in str(error.value)
    assert time.monotonic() - started < 120


@pytest.mark.parametrize("key", ["user 1", "клиент"])
def test_a_topic_of_other_messages_is_refused(
    spark: SparkSession, data_topic: MakeTopic, pulsar: PulsarServer, key: str
) -> None:
    """A message whose key is no base64 was not written by the connector."""
    topic = data_topic(*KEY_AND_VALUE)
    with client_of(pulsar.service_url) as client:
        client.create_producer(topic.name).send(b"{}", partition_key=key)
    with pytest.raises(PySparkException) as error:
        read(spark, topic.options).collect()
    assert "has a key that is not base64: this is no topic of KEY_VALUE SEPARATED records" in str(error.value)


@pytest.mark.parametrize(
    ("plugin", "params"),
    [
        (TOKEN_PLUGIN, "token:tell-nobody"),
        (
            OAUTH2_PLUGIN,
            '{"issuer_url": "http://127.0.0.1:1", "private_key": "data:application/json;base64,tell-nobody"}',
        ),
    ],
)
def test_secrets_do_not_show_in_plans_or_errors(
    spark: SparkSession, data_topic: MakeTopic, plugin: str, params: str
) -> None:
    """The options are part of the query, but neither `explain` nor an error shows the token or the key."""
    topic = data_topic(*KEY_AND_VALUE)
    secret = {"authPluginClassName": plugin, "authParams": params}
    frame = read(spark, topic.options, **secret)
    assert "tell-nobody" not in frame._jdf.queryExecution().toString()
    with pytest.raises(PySparkException) as error:
        read(spark, {**topic.options, "adminUrl": "nowhere"}, **secret).collect()
    assert "adminUrl" in str(error.value)
    assert "tell-nobody" not in str(error.value)
