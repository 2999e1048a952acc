"""Columns as texts of SQL: any name and literal, in any session, and the number of calls from Python to Java."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from py4j.clientserver import JavaClient
from pyspark.sql import DataFrame, SparkSession

from spark_bridge.jobs.batch_session import own_session, pin_session
from spark_bridge.jobs.lake_table import is_listed
from spark_bridge.jobs.mirror_rows import OWN, identified
from spark_bridge.jobs.row_steps import ImageColumns, record_images
from spark_bridge.jobs.small_merge import local_frame
from spark_bridge.reading.raw_columns import RAW_SCHEMA
from spark_bridge.rows.fold_batches import FOLDED_SCHEMA
from spark_bridge.rows.folding import all_records
from spark_bridge.rows.sql_columns import field, literal, null_of, selected, struct
from spark_bridge.rows.table_rows import table_columns, table_rows
from spark_bridge.topics.topic_schemas import SchemaVersion, TopicSchemas
from tests.fixtures.spark import table_schemas

_NAMES = ["plain", "two words", "Dot.ted", "back`tick", "quote's", 'double"quote', "back\\slash", "ümlaut", "order"]


@pytest.mark.parametrize("escaped", ["true", "false"])
def test_any_name_and_any_text_is_itself_in_any_session(spark: SparkSession, escaped: str) -> None:
    """A user's session may read backslashes in literals as they are, and refuse keywords as names."""
    own = spark.newSession()
    own.conf.set("spark.sql.parser.escapedStringLiterals", escaped)
    own.conf.set("spark.sql.ansi.enabled", "true")
    own.conf.set("spark.sql.ansi.enforceReservedKeywords", "true")
    texts = selected(own.range(1), {name: literal(name) for name in _NAMES})
    whole = selected(texts, {"image": struct({name: f"`{name.replace('`', '``')}`" for name in _NAMES})})
    again = selected(whole, {name: field("image", name) for name in _NAMES})
    assert [*again.columns] == _NAMES
    assert [list(row) for row in again.collect()] == [_NAMES]
    typed = selected(own.range(1), {"nothing": null_of(whole.schema)})
    assert typed.schema["nothing"].dataType.simpleString() == whole.schema.simpleString()


def test_a_text_that_looks_like_a_variable_is_itself(spark: SparkSession) -> None:
    """By default Spark replaces what looks like a variable; in a micro-batch's session, a listed key stays itself."""
    texts = ["${spark.app.name}", "${env:HOME}", "Dear ${name}", "$", "a$b"]
    assert spark.range(1).selectExpr(*map(literal, texts)).first() == tuple(texts)
    with own_session(spark) as session:
        pin_session(session)
        rows = session.createDataFrame([(each,) for each in [*texts, *_NAMES]], "owner string")
        listed = is_listed("owner", [*texts, *_NAMES], is_sparse=True)
        assert listed is not None
        assert rows.where(listed).count() == len([*texts, *_NAMES])


@pytest.mark.parametrize("clustering", [{}, {"at": "int"}], ids=["no clustering", "clustering"])
def test_the_calls_to_java_do_not_grow_with_the_columns_of_a_table(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, clustering: dict[str, str]
) -> None:
    """A projection of 200 columns, column by column, would take thousands of calls."""
    count = _counting(monkeypatch)
    numbers = {width: count(lambda width=width: _planned(spark, width, clustering)) for width in (1, 2, 200)}  # type: ignore[misc]
    assert numbers[200] == numbers[2]


def _planned(spark: SparkSession, width: int, clustering: dict[str, str]) -> list[DataFrame]:
    """What a micro-batch with a change log plans of a table with this number of columns besides its key."""
    columns = {f"c{at}": ("text", "bigint")[at % 2] for at in range(width)}
    key, value = table_schemas(partition_key={"id": "bigint"}, clustering=clustering, regular=columns)
    schemas = TopicSchemas(topic="t", versions=(SchemaVersion(version=0, key=key, value=value),))
    raw = spark.createDataFrame([], RAW_SCHEMA)
    records = all_records(raw, schemas)
    judged = local_frame(spark, spark.createDataFrame([], FOLDED_SCHEMA).toArrow())
    names = table_columns(schemas)
    images = record_images(raw, schemas, "decimal", ImageColumns(names=names, statics=names[-1:], own=OWN), "UTC")
    return [records, table_rows(identified(judged), schemas, "decimal", OWN), images]


def _counting(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], int]:
    """A function that counts the calls of another one, without those that forget objects of Java."""
    calls = list[str]()
    send = JavaClient.send_command

    def counted(self: JavaClient, command: str, *more: object, **named: object) -> object:
        if not command.startswith("m\n"):
            calls.append(command)
        return send(self, command, *more, **named)

    def count(work: Callable[[], object]) -> int:
        calls.clear()
        work()
        return len(calls)

    monkeypatch.setattr(JavaClient, "send_command", counted)
    return count
