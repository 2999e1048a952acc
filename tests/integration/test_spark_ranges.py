"""Ranges of unusual topics, read without Spark: several ledgers, growing, compacted, or messages in chunks."""

from __future__ import annotations

import base64
import gc
from collections.abc import Iterable, Sequence

import pulsar as pulsar_client
import pytest

from spark_bridge.errors import DataLossError, TopicError, TopicReadError
from spark_bridge.reading.data_source import CassandraCdcDataSource
from spark_bridge.reading.planning import plan_batch
from spark_bridge.reading.raw_columns import RAW_SCHEMA
from spark_bridge.reading.topic_reader import TopicRange, read_range
from spark_bridge.topics.options import BridgeOptions
from tests.fixtures.spark import DataTopic, MakeTopic, Record
from tests.topics.client import client_of
from tests.topics.events_topic import wait_until
from tests.topics.numbered_records import KEY_AND_VALUE, numbered, texts


def values(options: BridgeOptions, spans: Iterable[TopicRange]) -> list[bytes | None]:
    batches = [batch for span in spans for batch in read_range(options, span)]
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def names(topic: DataTopic, **more: str) -> list[str]:
    """Names from a batch read, in its order."""
    options = BridgeOptions.from_mapping({**topic.options, **more})
    return [(value or b"")[2:].decode() for value in values(options, plan_batch(options))]


def write_ledgers(topic: DataTopic, ledgers: Sequence[Sequence[bytes]]) -> None:
    """Write each list of values as a ledger of its own; the last ledger stays open."""
    for number, sent in enumerate(ledgers):
        if number:
            topic.admin.put(f"/{topic.name.replace('://', '/')}/unload").raise_for_status()
        with client_of(topic.options["serviceUrl"]) as client:
            producer = client.create_producer(topic.name, batching_enabled=False, send_timeout_millis=120_000)
            for value in sent:
                producer.send(value, partition_key=base64.b64encode(b"k").decode())


def drop_closed_ledgers(topic: DataTopic) -> None:
    """Let Pulsar drop all closed ledgers, which no subscription holds."""
    path = f"/{topic.name.replace('://', '/')}"
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    topic.admin.post(f"{path}/retention", json=nothing).raise_for_status()

    def is_trimmed() -> bool:
        topic.admin.post(f"{path}/trim")
        return len(topic.admin.get(f"{path}/internalStats").raise_for_status().json()["ledgers"]) == 1

    wait_until(is_trimmed, "the closed ledgers are dropped")


def test_several_ledgers_are_read_once_however_they_are_divided(data_topic: MakeTopic) -> None:
    """A ledger ends when the topic moves to another broker: a range may span several ledgers."""
    topic = data_topic(*KEY_AND_VALUE)
    for first in (1, 11, 21):
        topic.write(*numbered(first, first + 9), batch=3)
        topic.admin.put(f"/{topic.name.replace('://', '/')}/unload").raise_for_status()
    topic.write(*numbered(31, 32))
    for parts in ("1", "2", "7", "100"):
        assert names(topic, minPartitions=parts) == texts(1, 32)


def test_a_large_topic_is_divided_by_its_size(data_topic: MakeTopic) -> None:
    """Closed ledgers and the open one: no Spark partition has much more than 64 MiB, and each value comes once."""
    topic = data_topic(*KEY_AND_VALUE)
    large = [bytes([number]) * (4 << 20) for number in range(34)]
    write_ledgers(topic, [large[:19], large[19:]])
    options = BridgeOptions.from_mapping(topic.options)
    parts = [values(options, [span]) for span in plan_batch(options)]
    assert [len(part) for part in parts] == [11, 11, 12]
    assert [value for part in parts for value in part] == large


def test_a_range_that_is_left_early_leaves_the_garbage_collector_as_it_was(data_topic: MakeTopic) -> None:
    """Spark's Python workers run other tasks afterwards, which need the collector's usual threshold."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(1, 3))
    options = BridgeOptions.from_mapping(topic.options)
    (span,) = plan_batch(options)
    before = gc.get_threshold()
    reading = read_range(options, span)
    assert next(reading).num_rows == 3
    assert gc.get_threshold() > before
    reading.close()
    assert gc.get_threshold() == before


def test_a_stream_takes_up_partitions_that_were_added(data_topic: MakeTopic) -> None:
    """The topic grows from two partitions to four between two micro-batches: no record is lost or repeated."""
    topic = data_topic(*KEY_AND_VALUE, partitions=2)
    topic.write(*numbered(1, 20), batch=2)
    options = BridgeOptions.from_mapping(topic.options)
    reader = CassandraCdcDataSource(dict(topic.options)).streamReader(RAW_SCHEMA)
    first, second = reader.initialOffset(), reader.latestOffset()
    seen = values(options, [each.value for each in reader.partitions(first, second)])
    topic.admin.post(f"/{topic.name.replace('://', '/')}/partitions", json=4).raise_for_status()
    # The writer's producer notices new partitions only within a minute; new producers know them at once.
    with client_of(topic.options["serviceUrl"]) as client:
        for number in (2, 3):
            producer = client.create_producer(f"{topic.name}-partition-{number}")
            producer.send(f"  row {19 + number}".encode(), partition_key=base64.b64encode(bytes([number])).decode())
    third = reader.latestOffset()
    assert sorted(third) == [f"{topic.name}-partition-{number}" for number in range(4)]
    seen += values(options, [each.value for each in reader.partitions(second, third)])
    assert sorted((value or b"")[2:].decode() for value in seen) == sorted(texts(1, 22))


def test_a_compacted_topic_still_gives_every_record(data_topic: MakeTopic) -> None:
    """Compaction drops older rows and tombstones for readers of the compacted topic; this reader gets all records."""
    topic = data_topic(*KEY_AND_VALUE)
    topic.write(*numbered(1, 5), *numbered(1, 5), Record(key={"id": 1}))
    path = f"/{topic.name.replace('://', '/')}/compaction"
    topic.admin.put(path).raise_for_status()
    wait_until(lambda: topic.admin.get(path).raise_for_status().json()["status"] == "SUCCESS", "compaction")
    assert names(topic) == [*texts(1, 5), *texts(1, 5), ""]


def test_messages_in_chunks_are_read_once_however_they_are_divided(data_topic: MakeTopic) -> None:
    """The messages are larger than the broker's limit, and a range may end between two chunks."""
    topic = data_topic(*KEY_AND_VALUE)
    large = [bytes([65 + number]) * (11 << 20) for number in range(3)]
    with client_of(topic.options["serviceUrl"]) as client:
        producer = client.create_producer(
            topic.name, chunking_enabled=True, batching_enabled=False, send_timeout_millis=120_000
        )
        for number, value in enumerate(large):
            producer.send(value, partition_key=base64.b64encode(bytes([number])).decode())
            producer.send(b"small", partition_key=base64.b64encode(bytes([number])).decode())
    wanted = [each for value in large for each in (value, b"small")]
    for parts in ("1", "2", "3", "5", "100"):
        options = BridgeOptions.from_mapping({**topic.options, "minPartitions": parts})
        found = values(options, plan_batch(options))
        assert [len(each or b"") for each in found] == [len(each) for each in wanted]
        assert found == wanted


# Two of these fill a record batch, so that the reader pauses after them.
HALF_A_BATCH = b"x" * (9 << 19)
SMALL = [b"small"] * 20


@pytest.mark.parametrize(
    ("ledgers", "end"),
    [
        ([[HALF_A_BATCH] * 2, SMALL, SMALL, [b"last"]], 3),
        ([[HALF_A_BATCH] * 2, SMALL, SMALL, [b"later"]], 2),
        ([[HALF_A_BATCH] * 2, SMALL, SMALL, []], 2),
        ([[HALF_A_BATCH] * 8, [b"last"]], 1),
        ([[HALF_A_BATCH] * 8, [b"later"]], 0),
        ([[HALF_A_BATCH] * 8, []], 0),
    ],
    ids=[
        "the end is left",
        "later records are left",
        "nothing is left",
        "the rest of one ledger, and the end is left",
        "the rest of one ledger, and later records are left",
        "the rest of one ledger, and nothing is left",
    ],
)
def test_ledgers_that_are_dropped_while_a_range_is_read_are_missed(
    data_topic: MakeTopic, ledgers: Sequence[Sequence[bytes]], end: int
) -> None:
    """Retention does not wait for a reader, which then continues after the dropped ledgers: this must not count as the
    end of the range."""
    topic = data_topic(*KEY_AND_VALUE)
    write_ledgers(topic, ledgers[: end + 1])
    options = BridgeOptions.from_mapping({**topic.options, "receiverQueueSize": "1"})
    (span,) = plan_batch(options)
    if ledgers[end + 1 :]:
        topic.admin.put(f"/{topic.name.replace('://', '/')}/unload").raise_for_status()
        write_ledgers(topic, ledgers[end + 1 :])
    batches = read_range(options, span)
    tolerant = read_range(options.model_copy(update={"fail_on_data_loss": False}), span)
    assert [next(batches).num_rows, next(tolerant).num_rows] == [2, 2]
    drop_closed_ledgers(topic)
    with pytest.raises(DataLossError, match=f"topic partition {topic.name}: records after position "):
        list(batches)
    left = [value for batch in tolerant for value in batch.column("value").to_pylist()]
    assert (b"last" in left, b"later" in left) == (ledgers[-1] == [b"last"], False)


def test_a_ledger_that_was_read_to_its_end_may_be_dropped_behind_the_reader(data_topic: MakeTopic) -> None:
    """Ledgers without records do not count as lost either."""
    topic = data_topic(*KEY_AND_VALUE)
    write_ledgers(topic, [[HALF_A_BATCH] * 2, [], [], [b"last"]])
    options = BridgeOptions.from_mapping({**topic.options, "receiverQueueSize": "1"})
    (span,) = plan_batch(options)
    batches = read_range(options, span)
    assert next(batches).num_rows == 2
    drop_closed_ledgers(topic)
    assert [batch.column("value").to_pylist() for batch in batches] == [[b"last"]]


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_topic_of_other_records_is_refused_when_a_read_is_planned(data_topic: MakeTopic, partitions: int) -> None:
    """The topic's schema identifies other records, although their keys are valid base64 here."""
    topic = data_topic(*KEY_AND_VALUE, partitions=partitions)
    with client_of(topic.options["serviceUrl"]) as client:
        producer = client.create_producer(topic.name, schema=pulsar_client.schema.StringSchema())
        producer.send("text", partition_key="user1234")
    refused = f"topic {topic.name}: has a schema of type STRING: it is no topic of KEY_VALUE records"
    with pytest.raises(TopicError, match=refused):
        plan_batch(BridgeOptions.from_mapping(topic.options))
    reader = CassandraCdcDataSource(dict(topic.options)).streamReader(RAW_SCHEMA)
    with pytest.raises(TopicError, match=refused):
        reader.initialOffset()
    with pytest.raises(TopicError, match=refused):  # a query with a checkpoint asks for no first offset
        reader.latestOffset()


def test_a_stream_looks_at_the_schema_that_comes_later(data_topic: MakeTopic) -> None:
    """A topic without a schema has no rows yet; its first records may be of another kind."""
    topic = data_topic(*KEY_AND_VALUE)
    assert names(topic) == []
    reader = CassandraCdcDataSource(dict(topic.options)).streamReader(RAW_SCHEMA)
    planned = reader.partitions(reader.initialOffset(), reader.latestOffset())
    assert values(BridgeOptions.from_mapping(topic.options), [each.value for each in planned]) == []
    with client_of(topic.options["serviceUrl"]) as client:
        client.create_producer(topic.name, schema=pulsar_client.schema.StringSchema()).send("text")
    with pytest.raises(TopicError, match="has a schema of type STRING"):
        reader.latestOffset()


def test_a_record_without_a_key_is_refused(data_topic: MakeTopic) -> None:
    """An empty key would be base64 of nothing, which is no row's key."""
    topic = data_topic(*KEY_AND_VALUE)
    (written,) = topic.write(Record(key={"id": 1}, value={"name": "row 1"}))
    with client_of(topic.options["serviceUrl"]) as client:
        sent = client.create_producer(topic.name, batching_enabled=False).send(b"no key")
    place = f"{sent.ledger_id()}:{sent.entry_id()}:-1"
    refused = f"message {place} has no key: this is no topic of KEY_VALUE SEPARATED records"
    with pytest.raises(TopicReadError, match=refused) as raised:
        names(topic)
    assert (raised.value.position, written.rsplit(":", 1)[0] < place) == (place, True)
