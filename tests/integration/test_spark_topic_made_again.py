"""Positions of a topic that no longer exists: it was deleted and made again, or Pulsar was rebuilt and numbers its
ledgers anew."""

from __future__ import annotations

import pytest

from spark_bridge.errors import OtherTopicError
from spark_bridge.reading.source_readers import StreamReader
from spark_bridge.topics.options import BridgeOptions
from tests.fixtures.mirror import MirrorOf, stopped_after
from tests.fixtures.spark import DataTopic, MakeTopic, Record
from tests.topics.numbered_records import KEY_AND_VALUE, numbered
from tests.topics.table_records import PLAIN

pytestmark = pytest.mark.timeout(1_500)


def make_again(topic: DataTopic) -> None:
    path = f"/{topic.name.replace('://', '/')}/partitions"
    topic.admin.delete(path, params={"force": "true"}).raise_for_status()
    topic.admin.put(path, json=1).raise_for_status()


def reader_of(topic: DataTopic, **more: str) -> StreamReader:
    return StreamReader(BridgeOptions.from_mapping({**topic.options, **more}))


def records_of(reader: StreamReader, start: dict[str, str], end: dict[str, str]) -> int:
    return sum(batch.num_rows for each in reader.partitions(start, end) for batch in reader.read(each))


def test_an_offset_of_a_topic_that_was_made_again_is_refused(data_topic: MakeTopic) -> None:
    topic = data_topic(*KEY_AND_VALUE, partitions=1)
    topic.write(*numbered(1, 6))
    reader = reader_of(topic)
    start, end = reader.initialOffset(), reader.latestOffset()
    assert records_of(reader, start, end) == 6
    make_again(topic)
    topic.write(*numbered(1, 3))
    new_end = reader.latestOffset()
    with pytest.raises(OtherTopicError, match=r"position \d+:5 belongs to another topic partition .* ends at \d+:2: "):
        reader.partitions(end, new_end)
    assert records_of(reader_of(topic, failOnDataLoss="false"), end, new_end) == 3
    assert records_of(reader, start, new_end) == 3  # Nothing was read of the earlier topic.


@pytest.mark.parametrize("ahead", [(1_000, 0), (0, 5)])
def test_an_old_offset_is_refused_where_the_ledgers_cannot_have_it(
    data_topic: MakeTopic, ahead: tuple[int, int]
) -> None:
    """Offsets of earlier versions have no creation time: in a rebuilt Pulsar they are refused if the ledger, or the
    entry in it, cannot exist yet."""
    topic = data_topic(*KEY_AND_VALUE, partitions=1)
    topic.write(*numbered(1, 3))
    reader = reader_of(topic)
    ((name, text),) = reader.latestOffset().items()
    ledger, _, entry = text.partition("@")[0].partition(":")
    beginning = {name: ">-1:-1"}
    assert records_of(reader, beginning, {name: f"{ledger}:{entry}"}) == 3
    known = f"{int(ledger) + ahead[0]}:{int(entry) + ahead[1]}"
    with pytest.raises(OtherTopicError, match=f"position {known} belongs to another .* ends at {ledger}:{entry}: "):
        reader.partitions({name: known}, {name: text})


@pytest.mark.extended
@pytest.mark.spark_line(">=4.1")
def test_a_mirror_of_a_topic_that_was_made_again_is_refused_until_it_is_rebuilt(
    data_topic: MakeTopic, mirror_of: MirrorOf
) -> None:
    """After the rebuild, the tables have no changes of a failed run whose records are gone.

    A rebuild from an unchanged topic changes nothing, although it reads each change again.
    """
    topic = data_topic(*PLAIN, partitions=1)
    mirror = mirror_of(topic)
    topic.write(*[Record(key={"id": n}, value={"name": "before"}) for n in (1, 2, 3)])
    mirror.run()
    topic.write(
        Record(key={"id": 2}, value={"name": "lost"}),
        Record(key={"id": 3}),
        Record(key={"id": 4}, value={"name": "lost"}),
    )
    with stopped_after("history"):
        mirror.run()
    assert mirror.table("changes").where("epoch = 2").count() == 3
    make_again(topic)
    topic.write(Record(key={"id": 1}, value={"name": "after"}), Record(key={"id": 2}, value={"name": "before"}))
    with pytest.raises(OtherTopicError, match="a mirror with --rebuild"):
        mirror.run()
    summary = mirror.run(rebuild=True)
    assert (summary.inserted, summary.updated, summary.deleted) == (0, 1, 1)
    assert mirror.rows() == mirror.wanted() == mirror.replayed() == mirror.open_versions()
    assert mirror.table("changes").where("epoch = 2").isEmpty()
    assert mirror.table("history").where("opened = 2 OR closed = 2").isEmpty()
    topic.write(Record(key={"id": 1}, value={"name": "later"}))
    mirror.run()
    written = mirror.table("changes").count()
    mirror.run(rebuild=True)
    assert mirror.table("changes").count() == written
    assert mirror.rows() == mirror.wanted() == mirror.replayed() == mirror.open_versions()
