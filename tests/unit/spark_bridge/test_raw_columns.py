"""Messages as a record batch of the raw columns."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from spark_bridge.reading.raw_columns import RAW_SCHEMA, RawRow, to_arrow

WRITTEN_AT_12 = {"writetime": "12", "kind": "row"}


def _row(
    value: bytes | None = b"v", event_time_us: int | None = 1_000, properties: Mapping[str, str] = WRITTEN_AT_12
) -> RawRow:
    return b"k", value, properties, "1:2:-1", 3, event_time_us, 2_000


def test_the_batch_has_the_columns_that_spark_was_promised() -> None:
    """Names and types of the Arrow schema are those that Spark derives from the raw columns."""
    batch = to_arrow("t", -1, [_row()])
    expected = to_arrow_schema(RAW_SCHEMA)
    assert [(each.name, each.type) for each in batch.schema] == [(each.name, each.type) for each in expected]


def test_a_row_of_each_kind() -> None:
    """One row has a value and one has none; properties become one map column."""
    bare = _row(None, None, {})
    batch = to_arrow("t", 7, [_row(), bare])
    assert batch.column("op").to_pylist() == ["u", "d"]
    assert batch.column("value").to_pylist() == [b"v", None]
    assert batch.column("partition").to_pylist() == [7, 7]
    assert batch.column("writetime").to_pylist() == [12, None]
    assert batch.column("properties").to_pylist() == [[("writetime", "12"), ("kind", "row")], []]
    assert batch.column("event_time").cast("int64").to_pylist() == [1_000, None]


@pytest.mark.parametrize(
    ("text", "writetime"), [("-5", -5), (str(2**63 - 1), 2**63 - 1), (str(2**63), None), ("soon", None), ("", None)]
)
def test_a_write_time_that_is_none_is_null(text: str, writetime: int | None) -> None:
    """A foreign producer may write anything; the text itself is still in the properties."""
    batch = to_arrow("t", -1, [_row(properties={"writetime": text})])
    assert batch.column("writetime").to_pylist() == [writetime]
    assert batch.column("properties").to_pylist() == [[("writetime", text)]]
