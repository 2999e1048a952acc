"""Short functions for records as the connector publishes them, and the rows of the current table that they give."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from pyspark.sql import SparkSession

from schemas.cql_value import AvroValue
from schemas.row_record import record_writer
from spark_bridge import current_table
from tests.fixtures.spark import DataTopic, Record, table_schemas

__all__ = [
    "BEFORE_T",
    "NEW",
    "OLD",
    "PLAIN",
    "WIDE",
    "Case",
    "partition_deletion",
    "range_deletion",
    "row",
    "row_deletion",
    "rows_by_case",
    "rows_of",
    "static_row",
    "write_an_added_static_column",
]

Case = tuple[str, Sequence[Record], list[tuple[object, ...]]]
"""The name of the case, its records, and the rows of the table after them."""
PLAIN = table_schemas(partition_key={"id": "int"}, regular={"name": "text", "price": "decimal"})
WIDE = table_schemas(
    partition_key={"pk": "text"},
    clustering={"a": "int", "b": "text"},
    regular={"v": "int"},
    static={"s": "text", "t": "int"},
)
BEFORE_T, WITH_T = (
    table_schemas(
        partition_key={"pk": "text"}, clustering={"a": "int"}, regular={"v": "int"}, static=dict.fromkeys(names, "text")
    )
    for names in ("s", "st")
)
OLD, NEW = "a5559b20-e53e-11f1-a9d7-973e92e688cb", "b5559b20-e53e-11f1-a9d7-973e92e688cb"


def row(pk: str, a: int, b: str, v: int | None, **more: AvroValue) -> Record:
    """A whole row as the connector publishes it."""
    properties = {"kind": "row", "table_id": OLD, "writetime": "1000"}
    return Record(key={"pk": pk, "a": a, "b": b}, value={"v": v, **more}, properties=properties)


def row_deletion(pk: str, a: int, b: str) -> Record:
    """The record of a deleted row."""
    return Record(key={"pk": pk, "a": a, "b": b}, properties={"kind": "row_deletion", "table_id": OLD})


def static_row(pk: str, **statics: AvroValue) -> Record:
    """The static columns of a partition of `WIDE`."""
    properties = {"kind": "static_row", "table_id": OLD, "static_columns": '["s","t"]'}
    return Record(key={"pk": pk}, value=statics, properties=properties)


def partition_deletion(pk: str) -> Record:
    """The marker of a deleted partition."""
    properties = {"kind": "partition_deletion", "table_id": OLD, "deletion_time": "2000"}
    return Record(key={"pk": pk}, properties=properties)


def range_deletion(
    pk: str,
    *,
    start: Mapping[str, AvroValue] | None = None,
    end: Mapping[str, AvroValue] | None = None,
    start_inclusive: bool = True,
    end_inclusive: bool = True,
    backwards: Sequence[str] = (),
    types: Mapping[str, str] | None = None,
) -> Record:
    """The marker of a deleted range. `start`, `end`: bounds by clustering column. `backwards`: columns in reversed
    order. `types`: types of columns whose order the key's schema does not show."""
    write = record_writer(WIDE[0])
    properties = {"kind": "range_deletion", "table_id": OLD, "deletion_time": "2000"}
    for name, bound in (("range_start", start), ("range_end", end)):
        if bound is not None:
            properties[name] = base64.b64encode(write({"pk": pk, "a": None, "b": None, **bound})).decode()
    properties |= {
        "range_start_inclusive": str(start_inclusive).lower(),
        "range_end_inclusive": str(end_inclusive).lower(),
    }
    if backwards:
        properties["range_reversed"] = json.dumps(backwards)
    if types:
        properties["range_types"] = json.dumps(types)
    return Record(key={"pk": pk}, properties=properties)


def _named_statics(pk: str, **statics: AvroValue) -> Record:
    """A static row of a table with exactly these static columns."""
    properties = {
        "kind": "static_row",
        "table_id": OLD,
        "writetime": str(5 + len(statics)),
        "static_columns": json.dumps([*statics], separators=(",", ":")),
    }
    return Record(key={"pk": pk}, value=statics, properties=properties)


def write_an_added_static_column(topic: DataTopic, *, is_added: bool) -> None:
    """Write rows of a table with the static column s, or (`is_added`) static rows after the column t was added.

    No row is written after t was added.
    """
    said = {"kind": "row", "table_id": OLD, "writetime": "5"}
    rows = [
        Record(key={"pk": pk, "a": a}, value={"v": a, "s": s}, properties=said)
        for pk, a, s in (("p", 1, "1"), ("p", 2, "1"), ("r", 1, None))
    ]
    if is_added:
        changed = _named_statics("p", s="1", t="x"), _named_statics("q", s=None, t="y")
        topic.write(*changed, value_schema=WITH_T[1])
    else:
        topic.write(_named_statics("p", s="1"), *rows, _named_statics("q", s="2"))


def rows_of(spark: SparkSession, topic: DataTopic, **more: Sequence[str]) -> list[tuple[object, ...]]:
    """The rows of the current table, sorted."""
    return sorted(map(tuple, current_table(spark, topic.options, **more).collect()), key=str)


def rows_by_case(
    spark: SparkSession, topic: DataTopic, cases: Sequence[Case], columns: str
) -> Mapping[str, list[tuple[object, ...]]]:
    """Write the records of every case with its own partition keys, and return the rows of each case.

    All cases share one topic and one query, because a query takes seconds.
    """
    for number, (_, records, _) in enumerate(cases):
        own = [replace(each, key={**each.key, "pk": f"{number}." + cast("str", each.key["pk"])}) for each in records]
        topic.write(*own, batch=3)
    found: dict[str, list[tuple[object, ...]]] = {name: [] for name, _, _ in cases}
    for each in current_table(spark, topic.options).select(*columns.split()).collect():
        number, _, pk = each.pk.partition(".")
        found[cases[int(number)][0]].append((pk, *each[1:]))
    return {name: sorted(rows, key=str) for name, rows in found.items()}
