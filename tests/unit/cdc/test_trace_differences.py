"""The verdict at the end of a trace. The records are encoded as by the connector, and folded as by their readers."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from cdc.health.findings import Level, failure, ok
from cdc.trace.avro_values import ValueSchema, read_avro, value_reader_of
from cdc.trace.current_row import CurrentRow
from cdc.trace.report import difference, with_waiting
from cdc.trace.row_key import RowKey
from cdc.trace.topic_places import DataRecord
from schemas import record_properties as names
from schemas.table_metadata import TableMetadata
from source_connector.data_format import DataFormat
from source_connector.encoding.projection import Projection
from tests.cql.tables import table_of

AVRO, KEY_VALUE_JSON, JSON = DataFormat.KEY_VALUE_AVRO, DataFormat.KEY_VALUE_JSON, DataFormat.JSON

EQUAL = (Level.OK, "nothing: the newest record is the row as Cassandra has it")
GONE = (Level.OK, "nothing: the row is gone, and the newest record says so")
OTHER = (Level.FAILURE, "the newest record has other values than Cassandra")
LOST = (Level.FAILURE, "Cassandra has the row, and the newest record says that it is gone")
STAYED = (Level.FAILURE, "Cassandra has no row, and the newest record has one")
NONE = (Level.FAILURE, "Cassandra has the row, and the data topic has no record of it")


@dataclass(frozen=True)
class Topic:
    """Records and the row (1, 5) of a table with a static column, in one of the formats."""

    data_format: DataFormat = AVRO
    is_reversed: bool = False

    @property
    def table(self) -> TableMetadata:
        return table_of(
            {"id": "int"},
            {"c": "int"},
            static={"s": "text"},
            regular={"v": "text"},
            descending="c" if self.is_reversed else "",
        )

    @property
    def key(self) -> RowKey:
        return RowKey.of_words(self.table, ["1", "5"])

    def row(self, static: bytes | None, value: bytes, **told: str) -> DataRecord:
        return self._record("row", self._value(self.data_format, static, value), **told)

    def static(self, static: bytes | None) -> DataRecord:
        """A record of the static row; its value is null if the partition is empty."""
        projection = Projection(self.table, data_format=self.data_format)
        values = [*self.key.parts[:1], None]
        data = None
        if static is not None:
            data = projection.record_value(projection.static_selection, [static], values)
        return self._record("static_row", data)

    def range(self, start: int | None, end: int | None, *, closed: bool = True) -> DataRecord:
        """A record of a range deletion. The bounds are in clustering order."""
        projection = Projection(self.table)
        told = {names.RANGE_START_INCLUSIVE: str(closed).lower(), names.RANGE_END_INCLUSIVE: str(closed).lower()}
        for name, bound in ((names.RANGE_START, start), (names.RANGE_END, end)):
            if bound is not None:
                key = projection.avro_key([self.key.parts[0], bound.to_bytes(4, "big")])
                told[name] = base64.b64encode(key).decode()
        return self._record("range_deletion", None, is_marker=True, **told)

    def partition(self) -> DataRecord:
        return self._record("partition_deletion", None, is_marker=True)

    def said(self, records: Sequence[DataRecord], now: tuple[bytes | None, bytes] | None) -> tuple[Level, str]:
        """The verdict for these records and Cassandra's row."""
        row = CurrentRow(values=None, records=None, writetime_us=None, consistency="LOCAL_QUORUM")
        if now is not None:
            forms = {each: self._value(each, *now) for each in DataFormat}
            values = read_avro(self._value_schema, forms[AVRO])
            row = CurrentRow(values=values, records=forms, writetime_us=None, consistency="LOCAL_QUORUM")
        found = difference(self.key, row, records, [])
        return found.level, found.text

    @property
    def _value_schema(self) -> ValueSchema:
        schema = value_reader_of(Projection(self.table).value_schema)
        assert schema is not None
        return schema

    def _value(self, data_format: DataFormat, static: bytes | None, value: bytes) -> bytes:
        projection = Projection(self.table, data_format=data_format)
        values = {"s": static, "v": value}
        columns = [values[each.name] for each in projection.row_selection.value_columns]
        return projection.record_value(projection.row_selection, columns, self.key.parts)

    def _record(self, kind: str, data: bytes | None, *, is_marker: bool = False, **told: str) -> DataRecord:
        value = None
        if data is not None:
            value = json.loads(data) if data.startswith(b"{") else read_avro(self._value_schema, data)
        return DataRecord(
            place="", published_ms=0, is_marker=is_marker, data=data, value=value, properties={names.KIND: kind, **told}
        )


@pytest.mark.parametrize("data_format", list(DataFormat))
def test_a_static_row_behind_the_row_gives_its_static_columns_and_nothing_else(data_format: DataFormat) -> None:
    """It is not a deletion marker. The row's own record says if the row exists."""
    topic = Topic(data_format)
    records = [topic.row(b"a", b"x"), topic.static(b"b")]
    assert topic.said(records, (b"b", b"x")) == EQUAL
    assert topic.said(records, (b"c", b"x")) == OTHER
    assert topic.said(records, (b"b", b"y")) == OTHER
    assert topic.said(records, (b"a", b"x")) == OTHER
    assert topic.said(records, None) == STAYED
    assert topic.said([topic.row(b"a", b"x"), topic.static(None)], (None, b"x")) == EQUAL
    assert topic.said([topic.row(None, b"x"), topic.static(b"b")], (b"b", b"x")) == EQUAL
    assert topic.said([topic.static(b"a"), topic.static(b"b"), topic.row(b"b", b"x")], (b"b", b"x")) == EQUAL


def test_a_static_row_alone_is_no_record_of_the_row() -> None:
    """This holds whether Cassandra has the row or not."""
    topic = Topic()
    assert topic.said([topic.static(b"a")], (b"a", b"x")) == NONE
    assert topic.said([topic.static(b"a")], None) == (Level.OK, "nothing: there is no row, and no record that counts")


def test_a_range_deletion_counts_for_the_rows_between_its_bounds() -> None:
    """The row is (1, 5)."""
    topic = Topic()
    row = topic.row(b"a", b"x")
    for start, end, closed, covers in (
        (6, 9, True, False),
        (None, 4, True, False),
        (5, 9, False, False),
        (1, 5, False, False),
        (5, 9, True, True),
        (1, 5, True, True),
        (1, 9, False, True),
        (None, None, True, True),
        (None, 6, False, True),
    ):
        marker = topic.range(start, end, closed=closed)
        assert topic.said([row, marker], (b"a", b"x")) == (LOST if covers else EQUAL), (start, end, closed)
        assert topic.said([row, marker], None) == (GONE if covers else STAYED), (start, end, closed)
        assert topic.said([marker, row], (b"a", b"x")) == EQUAL
    assert topic.said([topic.range(6, 9)], (b"a", b"x")) == NONE


def test_bounds_of_a_descending_column_are_in_clustering_order() -> None:
    """The start is the larger value."""
    topic = Topic(is_reversed=True)
    row = topic.row(b"a", b"x")
    assert topic.said([row, topic.range(9, 6)], (b"a", b"x")) == EQUAL
    assert topic.said([row, topic.range(9, 5)], (b"a", b"x")) == LOST
    assert topic.said([row, topic.range(4, None)], (b"a", b"x")) == EQUAL


def test_a_partition_deletion_counts_for_all_rows() -> None:
    """This holds also if a static row follows."""
    topic = Topic()
    records = [topic.row(b"a", b"x"), topic.partition()]
    assert topic.said(records, None) == GONE
    assert topic.said([*records, topic.static(b"b")], (b"b", b"x")) == LOST
    assert topic.said([*records, topic.static(b"b"), topic.row(b"b", b"y")], (b"b", b"y")) == EQUAL


@pytest.mark.parametrize("data_format", list(DataFormat))
def test_a_column_that_has_expired_does_not_differ(data_format: DataFormat) -> None:
    """Its record still has the value, with the second from which it is null."""
    topic = Topic(data_format)
    over, later = str(int(time.time()) - 5), str(int(time.time()) + 500)
    record = topic.row(b"a", b"x", **{names.COLUMNS_EXPIRE_AT: json.dumps({"s": int(over)})})
    assert topic.said([record], (None, b"x")) == EQUAL
    assert topic.said([record], (b"a", b"x")) == EQUAL
    assert topic.said([record], (None, b"y")) == OTHER
    record = topic.row(b"a", b"x", **{names.COLUMNS_EXPIRE_AT: json.dumps({"s": int(later)})})
    assert topic.said([record], (None, b"x")) == OTHER


def test_a_row_has_expired_only_when_its_second_is_over() -> None:
    """A row that is gone before that was deleted, and its deletion has not been published."""
    topic = Topic()
    over, later = str(int(time.time()) - 5), str(int(time.time()) + 500)
    assert topic.said([topic.row(b"a", b"x", **{names.EXPIRES_AT: over})], None)[0] is Level.OK
    assert topic.said([topic.row(b"a", b"x", **{names.EXPIRES_AT: later})], None) == STAYED


def test_while_events_of_the_table_wait_the_remedy_is_to_see_why() -> None:
    """To send the row again does not help while the table is parked."""
    differs = failure("", "Cassandra has no row, and the newest record has one", "resend it")
    told = with_waiting(differs, 2)
    assert told.remedy == (
        "2 messages of its table wait for the connector: see the table in `cdc status`. If it stays so when they are read:"
        " resend it"
    )
    assert with_waiting(differs, 0) == differs
    assert with_waiting(ok("", "nothing"), 2) == ok("", "nothing")


def test_a_trace_needs_no_pyspark() -> None:
    """The order of clustering values comes from a part of the Spark bridge that does not need Spark."""
    program = "import sys; sys.modules['pyspark'] = None; import cdc.trace.report"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
