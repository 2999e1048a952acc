"""Targets of a mirror that belong to something else: the job refuses them, and leaves what is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from schemas.errors import ConfigError
from spark_bridge import fresh_table
from spark_bridge.jobs.mirror import mirror
from spark_bridge.jobs.publish import publish
from tests.fixtures.mirror import MirrorOf
from tests.fixtures.spark import MakeTopic, Record
from tests.topics.table_records import PLAIN

# Spark plans dozens of small jobs for a micro-batch, which take minutes on a busy machine and seconds on an idle one.
pytestmark = [pytest.mark.timeout(1_500), pytest.mark.spark_line(">=4.1")]


def test_a_mirror_does_not_take_the_target_of_another_topic(
    spark: SparkSession, mirror_of: MirrorOf, data_topic: MakeTopic
) -> None:
    """Otherwise the rows of one table would be replaced by those of the other. A rebuild may change the topic."""
    topic, other = data_topic(*PLAIN), data_topic(*PLAIN)
    topic.write(*[Record(key={"id": number}, value={"name": "a"}) for number in range(3)])
    other.write(Record(key={"id": 1}, value={"name": "b"}, properties={"table_id": "other"}))
    kept = mirror_of(topic)
    kept.run(history=False)
    rows, target = kept.rows(), str(kept.folder)
    told = f"target: the tables below {target} are a mirror of {topic.name}, not of {other.name}; each topic needs"
    with pytest.raises(ConfigError, match=told):
        mirror(spark, other.options, target)
    with pytest.raises(ConfigError, match=told):
        fresh_table(spark, other.options, target)
    with pytest.raises(ConfigError, match=told):
        publish(spark, other.options, target, {"rows": f"{other.name}-rows"})
    assert kept.rows() == rows
    assert kept.run(history=False).records == 0
    mirror(spark, other.options, target, rebuild=True)
    assert kept.rows() == ['{"id":1,"name":"b"}']


def test_a_mirror_does_not_take_tables_that_it_has_not_made(
    spark: SparkSession, data_topic: MakeTopic, tmp_path: Path
) -> None:
    """Tables of a user: the target itself, a folder around it, and one with the name of a mirror's table."""
    topic = data_topic(*PLAIN)
    topic.write(Record(key={"id": 1}, value={"name": "a"}))
    table, rows = tmp_path / "table", tmp_path / "lake" / "rows"
    for folder in (table, rows):
        spark.range(2).write.format("delta").save(str(folder))
    for target in (table, table / "mirror"):
        with pytest.raises(ConfigError, match=f"target: {target} is in the Delta table {table}; give the mirror a"):
            mirror(spark, topic.options, str(target))
    with pytest.raises(ConfigError, match=f"target: {rows} is there, and no mirror has made it; give the mirror a"):
        mirror(spark, topic.options, str(tmp_path / "lake"), rebuild=True)
    assert [each.name for each in (tmp_path / "lake").iterdir()] == ["rows"]
    for folder in (table, rows):
        assert spark.read.format("delta").load(str(folder)).count() == 2


def test_a_session_without_delta_is_told_in_one_line(tmp_path: Path) -> None:
    """A session that the user has made, without Delta's jar. Spark's own error has two stack traces of Java."""
    program = (
        "from pyspark.sql import SparkSession; from spark_bridge.jobs.mirror import mirror\n"
        "spark = SparkSession.builder.master('local[1]').getOrCreate()\n"
        "mirror(spark, {'serviceUrl': 'pulsar://h:1', 'adminUrl': 'http://h:1', 'topic': 'data-k.t'}, 'lake')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    told = f"format: {tmp_path}/lake/rows is to be read as a Delta table, and this session has no Delta Lake: give it "
    assert told in done.stderr
    assert "\tat " not in done.stderr
    assert not (tmp_path / "lake").exists()
