"""Changes whose key columns had each other's names in the change log, on Spark without a topic."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from spark_bridge.jobs.lake_table import name_key_of
from spark_bridge.jobs.log_columns import LogColumns
from spark_bridge.jobs.mirror_state import Applied
from spark_bridge.jobs.publish import _state, _with_source
from spark_bridge.jobs.publish_envelope import envelope_schema
from spark_bridge.jobs.publish_records import ChangeRecords
from spark_bridge.topics.topic_schemas import SchemaVersion, TopicSchemas
from tests.unit.spark_bridge import test_key_forms as keys
from tests.unit.spark_bridge import test_user_types as user_types
from tests.unit.spark_bridge.test_mirror_schema import topic

pytestmark = [pytest.mark.timeout(1_500), pytest.mark.spark_line(">=4.1")]


def _changes(spark: SparkSession, log: DataFrame, names: LogColumns, *, whole: bool) -> dict[tuple[str, str, str], str]:
    """The key columns `b` and `c` (or `a`) and the value of each published row, with its `op`."""
    given = _state(log, 8, names) if whole else log.withColumns({"is_there": F.lit(False), "log_epoch": F.col("epoch")})
    schema = fastavro.parse_schema(envelope_schema(names.schemas.newest))
    keys = [each["name"] for each in names.schemas.newest.key["fields"]]
    found: dict[tuple[str, str, str], str] = {}
    for each in ChangeRecords(names, 1).changes(given).select("value").collect():
        envelope: Any = fastavro.schemaless_reader(io.BytesIO(each.value), schema, None)
        row = envelope["after"]
        found[row[keys[0]], row[keys[1]], row["x"]] = envelope["op"]
    return found


@pytest.mark.parametrize("new", ["b c", "b a"], ids=["the next one's", "exchanged"])
@pytest.mark.parametrize(("whole", "op"), [(True, "r"), (False, "c")], ids=["the whole table", "changes"])
def test_a_key_column_keeps_its_values_when_it_gets_the_name_of_another_one(
    spark: SparkSession, new: str, whole: bool, op: str
) -> None:
    """Epoch 7 was written before the rename, and epoch 8 after it."""
    first, second = new.split()
    image = "struct<a: string, b: string, c: string, x: string>"
    log = spark.createDataFrame(
        [
            (7, "01", {"a": "one", "b": "two", "x": "old"}),
            (8, "02", {first: "three", second: "four", "x": "new"}),
        ],
        f"epoch bigint, _cdc_id string, after {image}",
    )
    given = {
        "step": F.lit(2),
        "op": F.lit("insert"),
        "before": F.lit(None).cast(image),
        "writetime": F.lit(1).cast("bigint"),
    }
    gone = dict.fromkeys([each for each in (first, second) if each in "a b"], 7)
    applied = Applied(epoch=8, schema_version=1, gone_until=gone)
    names = LogColumns.of(topic(("a b", "x"), (new, "x")), applied, name_key_of(spark))
    assert _changes(spark, _with_source(log.withColumns(given)), names, whole=whole) == {
        ("one", "two", "old"): op,
        ("three", "four", "new"): op,
    }


def test_a_key_whose_user_type_grew_has_the_form_of_the_schema_that_it_is_published_with(spark: SparkSession) -> None:
    """The row's identity in the mirror has the form from before, which the newest schema cannot read."""
    schemas = [keys.schema("frozen<spot>", *fields) for fields in (("x",), ("x", "y"))]
    value = topic(("pk at c", "v")).newest.value
    versions = tuple(SchemaVersion(version=at, key=each, value=value) for at, each in enumerate(schemas))
    names = LogColumns.of(
        TopicSchemas(topic="t", versions=versions), Applied(epoch=8, schema_version=1), name_key_of(spark)
    )
    one, two = keys.key(schemas[0], {"x": 1}).hex().upper(), keys.key(schemas[1], {"x": 1, "y": 2}).hex().upper()
    image = "struct<pk: string, at: struct<x: int, y: int>, c: string, v: string>"
    log = spark.createDataFrame(
        [
            ("update", one, ("p", (1, None), "c", "old"), ("p", (1, None), "c", "new")),
            ("delete", one, ("p", (1, None), "c", "new"), None),
            ("insert", two, None, ("p", (1, 2), "c", "new")),
        ],
        f"op string, _cdc_id string, before {image}, after {image}",
    )
    given = {"step": F.lit(2), "epoch": F.lit(8).cast("bigint"), "writetime": F.lit(1).cast("bigint")}
    log = log.withColumns({**given, "is_there": F.lit(False), "log_epoch": F.lit(8)})
    published = ChangeRecords(names, 1).changes(_with_source(log)).select("key").collect()
    spots = [{"x": 1, "y": None}, {"x": 1, "y": None}, {"x": 1, "y": 2}]
    assert [bytes(each.key) for each in published] == [keys.key(schemas[1], each) for each in spots]


def test_a_field_that_was_renamed_is_published_before_the_mirror_follows_the_new_name(spark: SparkSession) -> None:
    """The change log has the name from before, and the record is written with the newest schema."""
    place = [user_types.schema(dict.fromkeys(fields, "text")) for fields in (("street", "city"), ("road", "city"))]
    key = topic(("pk", "v")).newest.key
    versions = tuple(SchemaVersion(version=at, key=key, value=each) for at, each in enumerate(place))
    names = LogColumns.of(
        TopicSchemas(topic="t", versions=versions), Applied(epoch=8, schema_version=0), name_key_of(spark)
    )
    kind = "struct<street: string, city: string>"
    image = f"struct<pk: string, home: {kind}, places: array<{kind}>, by_name: map<string, {kind}>>"
    elm = ("Elm", "Rome")
    log = spark.createDataFrame([("01", ("p", elm, [elm], {"x": elm}))], f"_cdc_id string, after {image}")
    given = {
        "op": F.lit("insert"),
        "step": F.lit(2),
        "epoch": F.lit(8).cast("bigint"),
        "before": F.lit(None).cast(image),
    }
    given |= {"writetime": F.lit(1).cast("bigint"), "is_there": F.lit(False), "log_epoch": F.lit(8)}
    records = ChangeRecords(names, 1)
    (row,) = records.rows(log.withColumns(given)).select("value").collect()
    (change,) = records.changes(_with_source(log.withColumns(given))).select("value").collect()
    road = {"road": "Elm", "city": "Rome"}
    wanted = {"home": road, "places": [road], "by_name": {"x": road}}
    assert user_types.resolved(row.value, place[1], place[1]) == wanted
    envelope = envelope_schema(names.schemas.newest)
    assert user_types.resolved(change.value, envelope, envelope)["after"] == {"pk": "p", **wanted}
