"""The state of a row by its data topic: its newest record, and its partition's static columns (docs/records.md)."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdc.trace.current_row import CurrentRow
from cdc.trace.row_key import RowKey
from cdc.trace.topic_places import DataRecord
from schemas import record_properties as names
from source_connector.encoding.projection import Projection
from spark_bridge.rows.fold import Bounds
from spark_bridge.rows.range_scope import RangeScope

__all__ = ["NewestRecord", "newest_record"]

# The only version of the key's schema is the table's present one: columns of a key keep their types.
_VERSION = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestRecord:
    """The newest record of a row.

    `record`: a record of the row, or of a deletion whose scope has the row. `static`: the newest static row of the
    partition, if it was published later than `record`.
    """

    record: DataRecord
    static: DataRecord | None
    static_names: Sequence[str]

    @property
    def is_gone(self) -> bool:
        """True if the row does not exist according to the topic."""
        return self.record.value is None or self.record.is_marker

    def expires_by(self, now_s: float) -> bool:
        """Return True if the record says that the whole row has expired by then (seconds since the epoch)."""
        return int(self.record.properties.get(names.EXPIRES_AT) or sys.maxsize) <= now_s

    def is_equal(self, row: CurrentRow, now_s: float) -> bool:
        """Return True if the topic has the row with the same values as Cassandra, without columns that have expired."""
        if row.records is None or row.values is None or self.is_gone:
            return False
        is_same = self.record.data in row.records.values()
        value = _without_expired(self.record, now_s)
        if self.static is None and (is_same or value == self.record.value):
            return is_same
        if self.static is not None:
            static = _without_expired(self.static, now_s)
            value |= {name: static.get(name) for name in self.static_names}
        found = _text(value)
        in_json = (json.loads(data) for data in row.records.values() if data.startswith(b"{"))
        return found in map(_text, (row.values, *in_json))


def newest_record(key: RowKey, records: Sequence[DataRecord]) -> NewestRecord | None:
    """The newest record of the row; None if no record is about the row itself.

    `records` must be in the order in which they were published.
    """
    projection = Projection(key.table)
    covers = _Ranges(key, projection)
    static = None
    for record in reversed(records):
        kind = record.properties.get(names.KIND)
        if kind == "static_row":
            static = static or record
        elif kind != "range_deletion" or covers(record):
            return NewestRecord(record=record, static=static, static_names=projection.static_names)
    return None


class _Ranges:
    """Checks if the row is in the range that a record deletes."""

    def __init__(self, key: RowKey, projection: Projection) -> None:
        self._key = key
        self._projection = projection
        self._scope = RangeScope([(_VERSION, json.loads(projection.key_schema))])

    def __call__(self, record: DataRecord) -> bool:
        """Return True if the row is in the range, and for bounds that cannot be read: of a key with hidden columns."""
        told = record.properties
        bounds = Bounds(
            range_start=told.get(names.RANGE_START),
            range_end=told.get(names.RANGE_END),
            range_start_inclusive=told.get(names.RANGE_START_INCLUSIVE),
            range_end_inclusive=told.get(names.RANGE_END_INCLUSIVE),
            range_reversed=json.dumps(list(self._projection.reversed_names)),
            range_types=json.dumps(self._projection.unshown_types),
            schema_version=_VERSION,
        )
        try:
            return self._scope(bounds, self._projection.avro_key(self._key.parts), _VERSION)
        except (ValueError, EOFError, IndexError, TypeError, OverflowError):
            return True


def _without_expired(record: DataRecord, now_s: float) -> dict[str, object]:
    """The record's values, without the columns whose second of `columns_expire_at` is over."""
    value = dict(record.value or {})
    for name, second in json.loads(record.properties.get(names.COLUMNS_EXPIRE_AT) or "{}").items():
        if second <= now_s:
            value.pop(name, None)
    return value


def _text(value: Mapping[str, object]) -> str:
    """The values as JSON for a comparison. Nulls are left out, because a record may not have all columns."""
    return json.dumps({name: each for name, each in value.items() if each is not None}, sort_keys=True, default=str)
