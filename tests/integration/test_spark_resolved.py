"""Resolved timestamps of mirrors, from progress records on a real topic: in the summary, the state and each commit."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import httpx
import pulsar
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from cdc.commands.spark_wait import wait_command
from schemas.errors import ConfigError
from schemas.progress_record import (
    Checkpoint,
    Peer,
    ProgressRecord,
    TableProgress,
    TopicPosition,
    encode_progress,
    progress_topic,
)
from schemas.topics import events_topic, rest_path
from spark_bridge import mirror_resolved_timestamp, resolved_timestamp, wait_until_complete
from spark_bridge.errors import UnresolvedError
from spark_bridge.jobs.mirror import mirror
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.resolved import ResolvedTimestamps
from tests.fixtures.spark import DataTopic, MakeTopic, Record
from tests.servers.interface import PulsarServer
from tests.topics.events_topic import wait_until
from tests.topics.table_records import PLAIN

pytestmark = [pytest.mark.timeout(1_500), pytest.mark.spark_line(">=4.1")]
_numbers = itertools.count(1)
_NODE = UUID(int=1)


class Line:
    """The agents' progress topic, and an events topic with the connector's subscription."""

    def __init__(self, pulsar_server: PulsarServer, topic: DataTopic) -> None:
        self.prefix = f"persistent://public/default/resolved-{os.getpid()}-{next(_numbers)}-"
        self.options = {**topic.options, "table": "ks.t", "eventsTopicPrefix": self.prefix}
        self._admin = httpx.Client(base_url=f"{pulsar_server.admin_url}/admin/v2/persistent", timeout=60)
        self._client = pulsar.Client(pulsar_server.service_url, operation_timeout_seconds=120)
        self.events = events_topic("ks", "t", self.prefix)
        for name in (self.events, progress_topic(self.prefix)):
            self._admin.put(f"/{rest_path(name)}").raise_for_status()
        self._consumer = self._client.subscribe(self.events, "sub")
        self._events = self._client.create_producer(self.events)
        self._progress = self._client.create_producer(progress_topic(self.prefix))

    def close(self) -> None:
        self._client.close()
        self._admin.close()

    def event(self) -> TopicPosition:
        """Send an event that the connector has not acknowledged, and return its position."""
        sent = self._events.send(b"event")
        return TopicPosition(sent.ledger_id(), sent.entry_id())

    def acknowledge(self) -> None:
        """Acknowledge the oldest event, as the connector does once its record is on the data topic."""
        message = self._consumer.receive(timeout_millis=180_000)
        self._consumer.acknowledge_cumulative(message)
        wanted = f"{message.message_id().ledger_id()}:{message.message_id().entry_id()}"

        def is_acknowledged() -> bool:
            stats = self._admin.get(f"/{rest_path(self.events)}/internalStats").raise_for_status().json()
            return bool(stats["cursors"]["sub"]["markDeletePosition"] == wanted)

        wait_until(is_acknowledged, "the broker knows of it")

    def tell(self, resolved_ms: int, *positions: TopicPosition) -> None:
        """Publish progress as an agent does."""
        self.tell_all(Checkpoint(resolved_ms, positions))

    def tell_all(self, *checkpoints: Checkpoint) -> None:
        """Publish progress with several checkpoints, including older ones."""
        table = TableProgress(keyspace="ks", table="t", table_id=UUID(int=2), checkpoints=checkpoints)
        record = ProgressRecord(
            node_id=_NODE,
            published_ms=int(time.time() * 1000),
            tables=(table,),
            peers=(Peer(_NODE, "10.0.0.1", "dc1"),),
        )
        self.send(encode_progress(record), str(_NODE))

    def send(self, payload: bytes, key: str) -> None:
        self._progress.send(payload, partition_key=key)


@pytest.fixture
def topic(data_topic: MakeTopic) -> DataTopic:
    """An empty data topic."""
    return data_topic(*PLAIN)


@pytest.fixture
def line(pulsar: PulsarServer, topic: DataTopic) -> Iterator[Line]:
    """The topics that belong to that data topic."""
    made = Line(pulsar, topic)
    yield made
    made.close()


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_mirror_says_until_when_it_is_complete(
    spark: SparkSession, line: Line, topic: DataTopic, tmp_path: Path, table_format: str
) -> None:
    """Summary, state and commit have the timestamp; a run without records advances it, and an unacknowledged event
    holds it back."""
    target = str(tmp_path / "mirror")
    topic.write(Record(key={"id": 1}, value={"name": "a"}))
    line.tell(1_700_000_000_000)
    first = mirror(spark, line.options, target, table_format=table_format)  # type: ignore[arg-type]
    assert first.resolved_ms == 1_700_000_000_000
    if table_format == "delta":
        [told, *_] = spark.sql(f"DESCRIBE HISTORY delta.`{target}/rows`").collect()
        commit = json.loads(told.userMetadata)["cdc.resolved"]
    else:
        newest = max(
            (tmp_path / "mirror").rglob("rows/metadata/*.metadata.json"), key=lambda each: each.stat().st_mtime_ns
        )
        commit = json.loads(newest.read_text())["snapshots"][-1]["summary"]["cdc.resolved"]
    assert _ms(commit) == 1_700_000_000_000
    line.tell(1_700_000_005_000)
    assert mirror(spark, line.options, target).resolved_ms == 1_700_000_005_000
    line.tell(1_700_000_009_000, line.event())
    assert mirror(spark, line.options, target).resolved_ms == 1_700_000_005_000
    line.acknowledge()
    assert mirror(spark, line.options, target).resolved_ms == 1_700_000_009_000
    assert mirror_resolved_timestamp(spark, target) == datetime.fromtimestamp(1_700_000_009, UTC)


def test_the_timestamp_waits_for_the_connector(spark: SparkSession, line: Line) -> None:
    """An unacknowledged event holds the timestamp back; foreign messages on the progress topic are only counted."""
    assert resolved_timestamp(spark, line.options) is None
    line.send(b"no record", "x")
    line.send(b"", str(UUID(int=7)))
    line.tell(1_000, line.event())
    assert resolved_timestamp(spark, line.options) is None
    line.acknowledge()
    assert resolved_timestamp(spark, line.options) == datetime.fromtimestamp(1, UTC)
    with ResolvedTimestamps(BridgeOptions.from_mapping(line.options)) as timestamps:
        assert timestamps.read("ks.t").resolved_ms == 1_000
        assert timestamps.foreign_messages == 1
        assert timestamps.tables() == ["ks.t"]


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_dead_letter_holds_the_timestamp(line: Line, pulsar: PulsarServer, partitions: int) -> None:
    """The event of a dead letter is acknowledged, but the data topic has no record of it. A broker may make the
    dead-letter topic with partitions."""
    first, second = line.event(), line.event()
    line.acknowledge()
    line.acknowledge()
    letters = f"{line.prefix}letters"
    options = BridgeOptions.from_mapping({**line.options, "deadLettersTopic": letters})
    writer = _letters(pulsar, letters, partitions)
    place = f"({second.ledger},{second.entry},-1,-1)"
    writer.send(b"event", properties={"topic": line.events, "message_id": place, "reason": "r"})
    line.tell_all(Checkpoint(2_000, (second,)), Checkpoint(1_000, (first,)))
    with ResolvedTimestamps(options) as timestamps:
        assert timestamps.read("ks.t").resolved_ms == 1_000
    without = BridgeOptions.from_mapping(line.options)
    with ResolvedTimestamps(without) as timestamps:
        assert timestamps.read("ks.t").resolved_ms == 2_000


def _letters(server: PulsarServer, topic: str, partitions: int) -> pulsar.Producer:
    url = f"{server.admin_url}/admin/v2/persistent/{rest_path(topic)}"
    if partitions:
        httpx.put(f"{url}/partitions", json=partitions, timeout=60).raise_for_status()
    else:
        httpx.put(url, timeout=60).raise_for_status()
    body = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
    path = f"{server.admin_url}/admin/v2/persistent/{rest_path(topic)}/subscription/resend"
    httpx.put(path, json=body, timeout=60).raise_for_status()
    return pulsar.Client(server.service_url, operation_timeout_seconds=120).create_producer(topic)


def test_waiting_ends_when_the_table_is_complete(spark: SparkSession, line: Line) -> None:
    """After a timeout, the function gives up with the reason; function and command return once the table is
    complete."""
    now_ms = int(time.time() * 1000)
    line.tell(now_ms - 60_000)
    with pytest.raises(UnresolvedError, match="is not complete until the given time"):
        wait_until_complete(spark, line.options, timeout_s=0.5)
    with pytest.raises(ConfigError, match="has no zone"):
        wait_until_complete(spark, line.options, until=datetime(2026, 1, 1))  # noqa: DTZ001
    reached = wait_until_complete(spark, line.options, until=datetime.fromtimestamp(now_ms / 1000 - 120, UTC))
    assert int(reached.timestamp() * 1000) == now_ms - 60_000
    given = ["--service-url", line.options["serviceUrl"], "--admin-url", line.options["adminUrl"]]
    given += ["--topic", line.options["topic"], "-o", "table=ks.t", "-o", f"eventsTopicPrefix={line.prefix}", "--json"]
    line.tell(now_ms + 3_600_000)
    done = CliRunner().invoke(wait_command, given, catch_exceptions=False)
    assert json.loads(done.output)["resolved_ms"] == now_ms + 3_600_000
