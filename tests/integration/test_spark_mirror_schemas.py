"""The job `mirror` while a table and its types change: nothing is lost, and nothing is told that did not happen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from schemas.cql_type import NativeType, UserType
from schemas.cql_value import AvroValue
from schemas.row_record import AvroSchema
from tests.fix_mirror import Mirror, stopped_after
from tests.fix_spark import PY4J_LEAVES_SOCKETS_OPEN, MakeTopic, Record, table_schemas
from tests.table_records import OLD

# Spark plans dozens of small jobs a micro-batch: a busy machine takes minutes where a quiet one takes seconds.
pytestmark = [pytest.mark.filterwarnings(PY4J_LEAVES_SOCKETS_OPEN), pytest.mark.timeout(1_500)]


def test_what_is_added_to_a_table_and_its_types_changes_no_row(
    spark: SparkSession, data_topic: MakeTopic, tmp_path: Path
) -> None:
    """ALTER TABLE ADD, and ALTER TYPE ADD of a type in lists and maps: rows that were not written since are not updated."""
    columns = {"home": "place", "places": "frozen<list<frozen<place>>>", "by_name": "map<text, frozen<place>>"}

    def schemas(fields: Mapping[str, str], **more: str) -> tuple[AvroSchema, AvroSchema]:
        place = UserType("shop", "place", tuple(fields), tuple(map(NativeType, fields.values())))
        key: Mapping[str, Mapping[str, str]] = {"partition_key": {"pk": "text"}, "clustering": {"a": "int"}}
        return table_schemas(**key, regular={**columns, **more}, user_types={"place": place})

    def written(a: int, place: Mapping[str, AvroValue], **more: AvroValue) -> Record:
        value = {"home": place, "places": [place], "by_name": {"x": place}, **more}
        return Record(key={"pk": "p", "a": a}, value=value, properties={"table_id": OLD, "writetime": "5"})

    topic = data_topic(*schemas({"street": "text"}))
    kept = Mirror(spark, topic, tmp_path / "mirror", {})
    topic.write(written(1, {"street": "Elm"}), written(2, {"street": "Oak"}))
    kept.run()
    _, wider = schemas({"street": "text", "number": "int"}, size="int")
    topic.write(written(2, {"street": "Oak", "number": 7}, size=3), value_schema=wider)
    kept.run()
    elm, oak = '{"street":"Elm"}', '{"street":"Oak","number":7}'
    assert kept.rows() == kept.wanted() == [
        f'{{"pk":"p","a":1,"by_name":{{"x":{elm}}},"home":{elm},"places":[{elm}]}}',
        f'{{"pk":"p","a":2,"by_name":{{"x":{oak}}},"home":{oak},"places":[{oak}],"size":3}}',
    ]  # fmt: skip
    log = kept.table("changes").selectExpr("op", "after.a", "before.places.number", "after.places.number")
    assert sorted(map(tuple, log.collect())) == [
        ("insert", 1, None, [None]),
        ("insert", 2, None, [None]),
        ("update", 2, [None], [7]),
    ]
    assert kept.replayed() == kept.open_versions() == kept.rows()


def test_a_column_that_was_dropped_and_added_again_is_empty_in_the_rows_of_before(
    spark: SparkSession, data_topic: MakeTopic, tmp_path: Path
) -> None:
    """Both in one micro-batch, which failed midway: of the old values nothing is left, in rows that it touches and in others,
    and of the new ones nothing is lost."""
    key: Mapping[str, Mapping[str, str]] = {"partition_key": {"pk": "text"}, "clustering": {"a": "int"}}
    ids = {"table_id": OLD, "writetime": "5"}

    def written(pk: str, a: int, **value: AvroValue) -> Record:
        return Record(key={"pk": pk, "a": a}, value=value, properties=ids)

    topic = data_topic(*table_schemas(**key, regular={"name": "text", "size": "int"}))
    kept = Mirror(spark, topic, tmp_path / "mirror", {})
    topic.write(written("p", 1, name="old", size=1), written("q", 1, name="old", size=2))
    kept.run()
    _, dropped = table_schemas(**key, regular={"size": "int"})
    again = topic.value_schema
    assert isinstance(again, dict)
    topic.write(written("p", 2, name="old", size=3))
    topic.write(written("p", 3, size=4), value_schema=dropped)
    topic.write(written("p", 4, name="new", size=5), value_schema={**again, "cql_registration": 1})
    with stopped_after("history"):
        kept.run()
    kept.run()
    # The column comes last in the mirror, so texts differ.
    rows = [json.loads(each) for each in kept.rows()]
    assert rows == [json.loads(each) for each in kept.wanted()] == [
        {"pk": "p", "a": 1, "size": 1},
        {"pk": "p", "a": 2, "size": 3},
        {"pk": "p", "a": 3, "size": 4},
        {"pk": "p", "a": 4, "size": 5, "name": "new"},
        {"pk": "q", "a": 1, "size": 2},
    ]  # fmt: skip
    assert [json.loads(each) for each in kept.open_versions()] == rows
    topic.write(written("q", 2, name="new"), value_schema={**again, "cql_registration": 1})
    kept.run()
    assert [json.loads(each) for each in kept.rows()] == [*rows, {"pk": "q", "a": 2, "name": "new"}]
