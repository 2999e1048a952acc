"""`fresh_table` merges a mirror with the newer records of its topic, and equals the mirror after its next run."""

from __future__ import annotations

import json
import random
import time
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from schemas.errors import ConfigError
from spark_bridge import fresh_table
from spark_bridge.errors import OtherTopicError
from tests.fixtures.mirror import MirrorOf
from tests.fixtures.spark import MakeTopic, Record, table_schemas
from tests.integration.test_spark_mirror_markers import random_record
from tests.integration.test_spark_topic_made_again import make_again
from tests.topics.table_records import NEW, OLD, PLAIN, WIDE

pytestmark = [pytest.mark.timeout(1_500), pytest.mark.spark_line(">=4.1")]

_time = time.time


def _later(by_s: float) -> float:
    return _time() + by_s


def test_it_is_what_the_next_run_makes_of_rows_markers_and_static_columns(
    mirror_of: MirrorOf, data_topic: MakeTopic
) -> None:
    """This holds for topics of several partitions, after several writes without a run, and without newer records."""
    topic = data_topic(*WIDE)
    kept = mirror_of(topic)
    chance = random.Random(20261123)
    topic.write(*[random_record(chance, number) for number in range(30)], batch=3)
    kept.run(changelog=False, history=False)
    assert kept.fresh() == kept.rows()
    for stage in (1, 2):
        topic.write(*[random_record(chance, stage * 30 + number) for number in range(30)], batch=3)
        found = kept.fresh()
        assert found == kept.wanted()
    kept.run(changelog=False, history=False)
    assert kept.rows() == found


def test_columns_expiry_and_the_table_itself(
    mirror_of: MirrorOf, data_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fresh table has changes that the mirror has not: an added and a dropped column, an expired TTL, a table that
    was created again."""
    topic = data_topic(*PLAIN)
    kept = mirror_of(topic)
    ids = {"table_id": OLD, "writetime": "5"}
    goes = {**ids, "columns_expire_at": json.dumps({"name": int(_time()) + 3_600})}
    topic.write(Record(key={"id": 1}, value={"name": "goes"}, properties=goes))
    topic.write(Record(key={"id": 2}, value={"name": "b"}, properties=ids))
    kept.run(changelog=False, history=False)
    _, added = table_schemas(partition_key={"id": "int"}, regular={"name": "text", "price": "decimal", "size": "int"})
    topic.write(Record(key={"id": 3}, value={"name": "c", "size": 7}, properties=ids), value_schema=added)
    assert _objects(kept.fresh()) == [
        {"id": 1, "name": "goes"},
        {"id": 2, "name": "b"},
        {"id": 3, "name": "c", "size": 7},
    ]
    monkeypatch.setattr(time, "time", partial(_later, 7_200))
    assert _objects(kept.fresh()) == [{"id": 1}, {"id": 2, "name": "b"}, {"id": 3, "name": "c", "size": 7}]
    _, dropped = table_schemas(partition_key={"id": "int"}, regular={"price": "decimal", "size": "int"})
    topic.write(Record(key={"id": 3}, value={"size": 8}, properties=ids), value_schema=dropped)
    assert _objects(kept.fresh()) == [{"id": 1}, {"id": 2}, {"id": 3, "size": 8}]
    newer = {"table_id": NEW, "writetime": "6"}
    topic.write(Record(key={"id": 9}, value={"size": 1}, properties=newer), value_schema=dropped)
    assert _objects(kept.fresh()) == [{"id": 9, "size": 1}]
    kept.run(changelog=False, history=False)
    assert _objects(kept.rows()) == [{"id": 9, "size": 1}]


def test_where_there_is_no_mirror_or_another_topic_it_says_so(
    spark: SparkSession, mirror_of: MirrorOf, data_topic: MakeTopic, tmp_path: Path
) -> None:
    """Without a mirror, or with a topic that was made again, there is an error and no incomplete table."""
    topic = data_topic(*PLAIN, partitions=1)
    with pytest.raises(ConfigError, match=r"there is no mirror below .*nowhere; `spark_bridge.current_table` reads"):
        fresh_table(spark, topic.options, str(tmp_path / "nowhere"))
    kept = mirror_of(topic)
    topic.write(*[Record(key={"id": number}, value={"name": "a"}) for number in range(4)])
    kept.run(changelog=False, history=False)
    make_again(topic)
    topic.write(Record(key={"id": 1}, value={"name": "b"}))
    with pytest.raises(OtherTopicError, match="a mirror with --rebuild"):
        kept.fresh()


def _objects(rows: list[str]) -> list[object]:
    """Rows as objects, because the order of their columns may differ."""
    return [json.loads(each) for each in rows]
