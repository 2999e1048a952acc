"""Which rows a range deletion covers: clustering values between two bounds, compared as Cassandra compares them.

Cassandra source: o.a.c.db.ClusteringComparator, ClusteringBound. A bound is a prefix of the clustering columns; an
inclusive start lies before all rows with that prefix, an exclusive one after them; for an end it is the other way.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

__all__ = ["ClusteringColumn", "covers"]

ClusteringColumn = tuple[str, bool]
"""Name, and whether its values are uuids."""


def covers(row: Column, scope: Column, columns: Sequence[ClusteringColumn]) -> Column:
    """True when the scope covers the row.

    `row` is the row's key as a struct. `scope` is a struct of `start` and `end` (keys whose clustering columns after
    the bound's prefix are null; null: open), `start_inclusive`, `end_inclusive` and `reversed` (names of descending
    columns).
    """
    reversed_columns = scope.getField("reversed")
    after_start = _within(
        row, scope.getField("start"), scope.getField("start_inclusive"), reversed_columns, columns, True
    )
    before_end = _within(row, scope.getField("end"), scope.getField("end_inclusive"), reversed_columns, columns, False)
    return after_start & before_end


def _within(
    row: Column,
    bound: Column,
    inclusive: Column,
    reversed_columns: Column,
    columns: Sequence[ClusteringColumn],
    is_start: bool,
) -> Column:
    """The comparison, column by column from the last: equal so far, the next column decides."""
    decision = inclusive
    for name, is_uuid in reversed(columns):
        value, limit = row.getField(name), bound.getField(name)
        left, right = (_uuid_order(value), _uuid_order(limit)) if is_uuid else (value, limit)
        is_above = F.when(F.array_contains(reversed_columns, name), left < right).otherwise(left > right)
        beyond = is_above if is_start else ~is_above
        decision = F.when(limit.isNull(), inclusive).when(value == limit, decision).otherwise(beyond)
    return bound.isNull() | decision


def _uuid_order(text: Column) -> Column:
    """A text that sorts as Cassandra's uuid and timeuuid do: by version, version 1 by its time, then by bytes.

    Cassandra source: o.a.c.db.marshal.UUIDType.compare, TimeUUIDType.
    """
    version = F.substr(text, F.lit(15), F.lit(1))
    time = F.concat(
        F.substr(text, F.lit(16), F.lit(3)), F.substr(text, F.lit(10), F.lit(4)), F.substr(text, F.lit(1), F.lit(8))
    )
    return F.concat(version, F.when(version == "1", F.concat(time, F.substr(text, F.lit(19)))).otherwise(text))
