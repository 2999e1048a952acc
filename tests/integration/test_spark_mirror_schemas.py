"""The job `mirror` while a table and its types change: nothing is lost, and nothing is told that did not happen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from schemas.cql_type import NativeType, UserType
from schemas.cql_value import AvroValue
from schemas.row_record import AvroSchema
from tests.fix_spark import PY4J_LEAVES_SOCKETS_OPEN, Record, table_schemas
from tests.integration.test_spark_current_table import OLD
from tests.integration.test_spark_mirror_job import MakeTopic, Mirror

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
    kept = Mirror(spark, topic, tmp_path / "mirror")
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
