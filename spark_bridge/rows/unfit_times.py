"""Timestamps of Cassandra that Spark cannot hold: Cassandra's 64 bits are milliseconds, Spark's are microseconds."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from spark_bridge.rows.avro_types import AvroType, NamedRecords, bare_type, field_types, named_records
from spark_bridge.topics.topic_schemas import AvroRecord

__all__ = ["MOST_MS", "has_times", "unfit_times"]

MOST_MS: Final = (2**63 - 1) // 1_000
"""The most milliseconds before and after 1970 that fit Spark's TIMESTAMP."""


def has_times(avro_type: AvroType, named: NamedRecords) -> bool:
    """Return True if a type has a timestamp, at any depth."""
    match bare_type(avro_type, named):
        case {"logicalType": "timestamp-millis"}:
            return True
        case {"type": "array", "items": inner} | {"type": "map", "values": inner}:
            return has_times(inner, named)
        case {"type": "record"} as record:
            return any(has_times(each, named) for _, each in field_types(record))
        case _:
            return False


def unfit_times(record: Column, schema: AvroRecord) -> Column:
    """JSON of the timestamps of a record that do not fit; null if all of them fit.

    `record` has its timestamps as numbers. The schema must have timestamps.
    """
    # With this array, the record is in the expression only once: the expression of the record may decode it.
    found = F.transform(F.array(record), lambda each: _unfit(each, schema, named_records(schema)))
    return F.to_json(found.getItem(0), {"ignoreNullFields": "true"})


def _unfit(column: Column, avro_type: AvroType, named: NamedRecords) -> Column:
    """The timestamps of a column that do not fit, in the structure of the column; null if all of them fit."""
    match bare_type(avro_type, named):
        case {"type": "array", "items": inner}:
            found = F.filter(
                F.transform(column, lambda each: _unfit(each, inner, named)), lambda each: each.isNotNull()
            )
            return F.when(F.size(found) > 0, found)
        case {"type": "map", "values": inner}:
            values = F.transform_values(column, lambda _, each: _unfit(each, inner, named))
            found = F.map_filter(values, lambda _, each: each.isNotNull())
            return F.when(F.size(found) > 0, found)
        case {"type": "record"} as record:
            fields = [
                _unfit(column.getField(name), each, named).alias(name)
                for name, each in field_types(record)
                if has_times(each, named)
            ]
            found = F.struct(*fields)
            return F.when(reduce(or_, [each.isNotNull() for each in fields]), found)
        case _:
            return F.when(~column.between(-MOST_MS, MOST_MS), column)
