"""The records that a query reads: several topics, offsets by time, limits, subscriptions, records that were dropped."""

from __future__ import annotations

import ast
import datetime as dt
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_bridge.reading.planning import refuse_gap
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.positions import Position
from tests.fixtures.spark import DataTopic, MakeTopic
from tests.spark.streams import run_to_its_end, started
from tests.topics.events_topic import wait_until
from tests.topics.numbered_records import KEY_AND_VALUE, names, numbered, texts

pytestmark = pytest.mark.spark_line(">=4.1")
Seen = list[list[str]]
"""Rows by micro-batch."""


def read(spark: SparkSession, options: Mapping[str, str], **more: str) -> list[str]:
    return names(spark.read.format("cassandra_cdc").options(**options, **more).load())


def without_topic(topic: DataTopic) -> dict[str, str]:
    return {name: value for name, value in topic.options.items() if name != "topic"}


class Batches:
    """The micro-batches of a query that runs repeatedly to its end, from one checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path, options: Mapping[str, str]) -> None:
        self._spark = spark
        self._checkpoint = str(folder / "checkpoint")
        self._options = options

    def run(
        self, *, at_each: Callable[[Seen], object] = lambda seen: None, trigger: str = "availableNow", **more: str
    ) -> Seen:
        """Run the query and return the rows of each micro-batch that has any; `at_each` is called within a micro-batch
        with all rows so far."""
        seen: Seen = []

        def sink(batch: DataFrame, number: int) -> None:
            seen.append(names(batch))
            at_each(seen)

        frame = self._spark.readStream.format("cassandra_cdc").options(**{**self._options, **more}).load()
        stream = frame.writeStream.foreachBatch(sink).option("checkpointLocation", self._checkpoint)
        run_to_its_end(stream.trigger(**{trigger: True}))
        return [each for each in seen if each]


@pytest.fixture
def batches(spark: SparkSession, tmp_path: Path) -> Callable[..., Batches]:
    """A function `batches(topic, **options)` that makes a query over a topic."""
    return lambda topic, **more: Batches(spark, tmp_path, {**topic.options, **more})


def drop_what_was_acknowledged(topic: DataTopic, ledgers: int) -> None:
    """Roll the ledger over, and let Pulsar drop the records that neither retention nor a subscription holds."""
    path = f"/{topic.name.replace('://', '/')}"
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    topic.admin.post(f"{path}/retention", json=nothing).raise_for_status()
    wait_until(lambda: topic.admin.get(f"{path}/retention?applied=true").json() == nothing, "no retention")
    topic.admin.put(f"{path}/unload").raise_for_status()
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        topic.admin.post(f"{path}/trim")
        left = topic.admin.get(f"{path}/internalStats").json().get("ledgers", [])
        if len(left) == ledgers:
            # Without retention the broker would delete the topic when nobody has read it for a minute.
            topic.admin.post(f"{path}/retention", json=dict.fromkeys(nothing, -1)).raise_for_status()
            return
        time.sleep(0.2)
    raise AssertionError(f"{left} instead of {ledgers}")


def test_several_topics_by_list_and_by_pattern(spark: SparkSession, data_topic: MakeTopic) -> None:
    """`topics` and `topicsPattern` read many topics, partitioned or not; the column `topic` has each row's topic."""
    one, two = data_topic(*KEY_AND_VALUE), data_topic(*KEY_AND_VALUE, partitions=2)
    one.write(*numbered(1, 3))
    two.write(*numbered(11, 14))
    options = without_topic(one)
    listed = {**options, "topics": f"{one.name}, {two.name.removeprefix('persistent://')}"}
    assert sorted(read(spark, listed)) == sorted(texts(1, 3) + texts(11, 14))
    ends = [each.name.rsplit("-", 1)[1] for each in (one, two)]
    pattern = one.name.rsplit("-", 1)[0] + f"-({ends[0]}|{ends[1]})"
    found = spark.read.format("cassandra_cdc").options(**options, topicsPattern=pattern).load()
    assert {row.topic for row in found.collect()} == {one.name, two.name}
    with pytest.raises(PySparkException, match="topic: and topics are given; give only one of them"):
        read(spark, {**listed, "topic": one.name})


def test_offsets_by_time_and_by_message_id(spark: SparkSession, data_topic: MakeTopic) -> None:
    """A start by time is the first record that was published then or later, and an end by time is exclusive; ends may
    also be positions."""
    topic = data_topic(*KEY_AND_VALUE)
    ids = topic.write(*numbered(1, 4))
    frame = spark.read.format("cassandra_cdc").options(**topic.options).load()
    newest = max(row.publish_time for row in frame.collect()).astimezone(dt.UTC)
    cut = (newest + dt.timedelta(milliseconds=1)).isoformat()
    while time.time() * 1000 <= newest.timestamp() * 1000 + 1:
        pass
    topic.write(*numbered(5, 6))
    later = (newest + dt.timedelta(days=1)).isoformat()
    assert read(spark, topic.options, startingOffsets=cut) == texts(5, 6)
    assert read(spark, topic.options, endingOffsets=cut) == texts(1, 4)
    assert read(spark, topic.options, startingOffsets=later) == []
    assert read(spark, topic.options, endingOffsets=later) == texts(1, 6)
    second = json.dumps({topic.name: ids[1].rsplit(":", 1)[0]})
    assert read(spark, topic.options, startingOffsets=second, endingOffsets=cut) == texts(3, 4)
    assert read(spark, topic.options, endingOffsets=second) == texts(1, 2)
    with pytest.raises(PySparkException, match="startingOffsets: must be 'earliest', 'latest', a time with its zone"):
        read(spark, topic.options, startingOffsets="2026-11-21T05:00:00")


@pytest.mark.spark_line("==4.1")
def test_a_limit_of_rows_keeps_its_place_over_restarts(
    batches: Callable[..., Batches], data_topic: MakeTopic, tmp_path: Path
) -> None:
    """Each micro-batch has at most this number of rows, in whole entries; restarts repeat no row."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(1, 20), batch=4)
    query = batches(topic, maxRowsPerTrigger="10", checkpointLocation=str(tmp_path / "checkpoint"))
    assert [query.run() for _ in range(3)] == [[texts(1, 8)], [texts(9, 16)], [texts(17, 20)]]
    topic.write(*numbered(21, 50), batch=15)
    assert query.run() == [texts(21, 35)], "one entry is read even when it is larger than the limit"
    assert [query.run(), query.run()] == [[texts(36, 50)], []]


@pytest.mark.spark_line("==4.1")
def test_a_limit_of_bytes_is_shared_by_topic_partitions(
    batches: Callable[..., Batches], data_topic: MakeTopic, tmp_path: Path
) -> None:
    """Keys and values count; every topic partition gets its share of each micro-batch."""
    topic = data_topic(*KEY_AND_VALUE, partitions=2)
    topic.write(*numbered(10, 49))
    query = batches(topic, maxBytesPerTrigger="180", checkpointLocation=(tmp_path / "checkpoint").as_uri())
    found = [query.run()[0] for _ in range(2)]
    assert all(10 <= len(each) <= 20 for each in found), found
    while rest := query.run():
        found += rest
    assert sorted(each for batch in found for each in batch) == texts(10, 49)


@pytest.mark.spark_line("==4.1")
def test_a_limit_needs_to_know_the_checkpoint(spark: SparkSession, data_topic: MakeTopic) -> None:
    """PySpark 4.1 does not tell a source the position of its query."""
    with pytest.raises(PySparkException, match="maxRowsPerTrigger: needs checkpointLocation"):
        spark.readStream.format("cassandra_cdc").options(
            **data_topic(*KEY_AND_VALUE).options, maxRowsPerTrigger=5
        ).load()


# --- From PySpark 4.2 on, Spark tells a source the position of its query.


@pytest.mark.spark_line(">=4.2")
def test_a_run_takes_all_micro_batches_of_a_limit_to_the_end_that_was_there_at_its_start(
    batches: Callable[..., Batches], data_topic: MakeTopic
) -> None:
    """Micro-batches have whole entries, without checkpointLocation; records from meanwhile come in the next run."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(1, 20), batch=4)
    query = batches(topic, maxRowsPerTrigger="10")
    seen = query.run(at_each=lambda seen: topic.write(*numbered(20 + len(seen), 20 + len(seen))))
    assert seen == [texts(1, 8), texts(9, 16), texts(17, 20)]
    assert query.run() == [texts(21, 23)]
    topic.write(*numbered(24, 53), batch=15)
    assert query.run() == [texts(24, 38), texts(39, 53)], "one entry is read even when it is larger than the limit"
    assert query.run() == []


@pytest.mark.spark_line(">=4.2")
def test_a_limit_of_bytes_is_shared_by_topic_partitions_in_one_run(
    batches: Callable[..., Batches], data_topic: MakeTopic
) -> None:
    """Every topic partition gets its share of each micro-batch, and added partitions wait for the next run."""
    topic = data_topic(*KEY_AND_VALUE, partitions=2)
    topic.write(*numbered(10, 59))

    def add_partitions(seen: Seen) -> None:
        if len(seen) == 1:
            topic.admin.post(f"/{topic.name.replace('://', '/')}/partitions", json=3).raise_for_status()

    found = batches(topic, maxBytesPerTrigger="180").run(at_each=add_partitions)
    assert len(found) > 2
    assert all(10 <= len(each) <= 20 for each in found[:-2]), found
    assert sorted(each for batch in found for each in batch) == texts(10, 59)


@pytest.mark.spark_line(">=4.2")
@pytest.mark.parametrize(("max_bytes", "sizes"), [("60", [5, 5, 5, 5]), ("200", [7, 7, 6])])
def test_of_two_limits_the_smaller_one_holds(
    batches: Callable[..., Batches], data_topic: MakeTopic, max_bytes: str, sizes: list[int]
) -> None:
    """Spark hands only one limit back to the source. A record has eleven bytes here."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(10, 29))
    found = batches(topic, maxRowsPerTrigger="7", maxBytesPerTrigger=max_bytes).run()
    assert [len(each) for each in found] == sizes


@pytest.mark.spark_line(">=4.2")
def test_a_micro_batch_of_a_limit_that_failed_is_read_again_as_it_was(
    batches: Callable[..., Batches], data_topic: MakeTopic
) -> None:
    """The sink fails in the second micro-batch: it is read again as planned, independent of a changed limit, then the
    other records."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(1, 20), batch=4)
    query = batches(topic, maxRowsPerTrigger="10")

    def fail_in_the_second(seen: Seen) -> None:
        if len(seen) == 2:
            raise OSError("the sink is full")

    with pytest.raises(PySparkException, match="the sink is full"):
        query.run(at_each=fail_in_the_second)
    topic.write(*numbered(21, 22))
    assert query.run(maxRowsPerTrigger="100") == [texts(9, 16), texts(17, 22)]


@pytest.mark.spark_line(">=4.2")
def test_a_trigger_that_takes_everything_at_once_knows_no_limit(
    batches: Callable[..., Batches], data_topic: MakeTopic
) -> None:
    """Spark then asks for all records, independent of the source's limit."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(1, 6))
    assert batches(topic, maxRowsPerTrigger="2").run(trigger="once") == [texts(1, 6)]


@pytest.mark.spark_line(">=4.2")
def test_a_query_that_follows_a_topic_keeps_to_its_limit(
    spark: SparkSession, data_topic: MakeTopic, tmp_path: Path
) -> None:
    """The limit holds without the source's option checkpointLocation, and from a start at the end of the topic."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(1, 3))
    seen: Seen = []
    options = {**topic.options, "startingOffsets": "latest", "maxRowsPerTrigger": "4"}
    frame = spark.readStream.format("cassandra_cdc").options(**options).load()
    stream = frame.writeStream.foreachBatch(lambda batch, _: seen.append(names(batch)))
    query = started(stream.option("checkpointLocation", str(tmp_path)).trigger(processingTime="100 milliseconds"))
    try:
        topic.write(*numbered(4, 9))
        query.processAllAvailable()
    finally:
        query.stop()
    assert [each for batch in seen for each in batch] == texts(4, 9)
    assert max(map(len, seen)) <= 4


# --- Records that were dropped before they were read.


@pytest.mark.spark_line("==4.1")
@pytest.mark.parametrize("limit", [{}, {"maxRowsPerTrigger": "10"}], ids=["without a limit", "with a limit"])
def test_records_that_are_gone_from_an_empty_topic_are_an_error(
    batches: Callable[..., Batches], data_topic: MakeTopic, tmp_path: Path, limit: Mapping[str, str]
) -> None:
    """Retention dropped everything, and no record has come since."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(1, 4))
    query = batches(topic, **limit, checkpointLocation=str(tmp_path / "checkpoint"))
    assert query.run() == [texts(1, 4)]
    topic.write(*numbered(5, 6))
    drop_what_was_acknowledged(topic, 1)
    for _ in range(2):
        with pytest.raises(PySparkException, match=f"topic partition {topic.name}: records after position "):
            query.run()
    assert query.run(failOnDataLoss="false") == []
    topic.write(*numbered(7, 8))
    assert query.run() == [texts(7, 8)]


def test_a_stream_says_that_records_were_dropped_unread(batches: Callable[..., Batches], data_topic: MakeTopic) -> None:
    """Retention dropped unread records: an error names partition and range; failOnDataLoss=false continues."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(1, 2))
    query = batches(topic)
    assert query.run() == [texts(1, 2)]
    ids = topic.write(*numbered(3, 4))
    drop_what_was_acknowledged(topic, 1)
    topic.write(*numbered(5, 6))
    ledger, entry = ids[0].split(":")[:2]
    lost = f"topic partition {topic.name}: records after position {ledger}:{int(entry) - 1} and before"
    with pytest.raises(PySparkException, match=lost):
        query.run()
    assert query.run(failOnDataLoss="false") == [texts(5, 6)]


def test_a_durable_subscription_holds_what_was_not_read(batches: Callable[..., Batches], data_topic: MakeTopic) -> None:
    """With `subscription`, no unread record is dropped, and read records are acknowledged."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(1, 2))
    query = batches(topic, subscription="spark")
    assert query.run() == [texts(1, 2)]
    topic.write(*numbered(3, 4))
    drop_what_was_acknowledged(topic, 2)
    topic.write(*numbered(5, 6))
    assert query.run() == [texts(3, 6)]
    topic.write(*numbered(7, 8))
    assert query.run() == [texts(7, 8)]  # Spark reports a finished micro-batch when the next one runs.
    drop_what_was_acknowledged(topic, 2)
    topic.write(*numbered(9, 9))
    assert query.run() == [texts(9, 9)]


def test_the_last_ledger_of_a_silent_topic_stays_though_all_of_it_was_read(data_topic: MakeTopic) -> None:
    """Without this ledger nobody could tell whether it had more records, and the query would end with a
    DataLossError."""
    topic = data_topic(*KEY_AND_VALUE)
    (*_, last) = topic.write(*numbered(1, 2))
    read = Position.parse(":".join(last.split(":")[:2]))
    with PulsarAdmin(BridgeOptions.from_mapping(topic.options)) as admin:
        for _ in range(2):  # First in the open ledger, then in a closed one.
            admin.keep_subscription(topic.name, "spark", read)
            drop_what_was_acknowledged(topic, 2)
        ledgers, cursors = admin.storage(topic.name)
        refuse_gap(topic.name, read, read, ledgers, cursors["spark"])
    assert ledgers[0].ledger == read.ledger


def test_the_progress_of_a_query_tells_its_offsets(spark: SparkSession, data_topic: MakeTopic, tmp_path: Path) -> None:
    """Rows and the end of each topic partition are in Spark's progress report."""
    topic = data_topic(*KEY_AND_VALUE)
    (*_, last) = topic.write(*numbered(1, 7))
    frame = spark.readStream.format("cassandra_cdc").options(**topic.options).load()
    stream = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    query = run_to_its_end(stream)
    (progress,) = [each for each in query.recentProgress if each["numInputRows"]]
    assert progress["numInputRows"] == 7
    (source,) = cast("list[Mapping[str, str]]", progress["sources"])
    offset = cast("Mapping[str, str]", ast.literal_eval(source["endOffset"]))
    place, _, creation = offset[topic.name].partition("@")
    assert (list(offset), place) == ([topic.name], ":".join(last.split(":")[:2]))
    assert dt.datetime.fromisoformat(creation).tzinfo == dt.UTC
