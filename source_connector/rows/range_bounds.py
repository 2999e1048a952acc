"""Bounds of a range deletion that the properties of its record can express. Pure.

The properties have a bound as an Avro key, in which the clustering columns after the bound's prefix are null. An empty
value of most types is null there, too: `c > blobAsInt(0x)` would look like an open start. So such a bound ends before
the empty value, and includes all rows with the prefix that is left. The wider range covers every row of the original
one. The connector reads the rows of the wider range, and publishes those that exist after the record.
"""

from __future__ import annotations

from schemas.cql_type import has_empty_value
from schemas.mutation_event import RangeBounds
from schemas.table_metadata import TableMetadata

__all__ = ["expressible"]


def expressible(table: TableMetadata, bounds: RangeBounds) -> RangeBounds:
    """The bounds, or wider ones if they have an empty value that is null in Avro."""
    start, end = _shortened(table, bounds.start), _shortened(table, bounds.end)
    if (start, end) == (bounds.start, bounds.end):
        return bounds
    return RangeBounds(
        start=start,
        start_inclusive=bounds.start_inclusive or start != bounds.start,
        end=end,
        end_inclusive=bounds.end_inclusive or end != bounds.end,
    )


def _shortened(table: TableMetadata, prefix: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The prefix as far as it has no empty value that is null in Avro."""
    for at, value in enumerate(prefix):
        if not value and not has_empty_value(table.clustering_key[at].type):
            return prefix[:at]
    return prefix
