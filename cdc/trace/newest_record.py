"""What a data topic says of a row: its newest record, and the static columns of its partition (docs/records.md)."""

from __future__ import annotations

import json
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

# The key's schema of the table as it is now: columns of a key keep their types.
_VERSION = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestRecord:
    """`record` is of the row, or a deletion whose scope has it. `static`: the newest static row, where that came later."""

    record: DataRecord
    static: DataRecord | None
    static_names: Sequence[str]

    @property
    def is_gone(self) -> bool:
        """Whether the topic says that there is no such row."""
        return self.record.value is None or self.record.is_marker

    def is_equal(self, row: CurrentRow) -> bool:
        """Whether readers of the topic have the row as Cassandra has it."""
        if row.records is None or row.values is None or self.is_gone:
            return False
        if self.static is None:
            return self.record.data in row.records.values()
        assert self.record.value is not None, "a row that is not gone"
        static = self.static.value or {}
        found = _text({**self.record.value, **{name: static.get(name) for name in self.static_names}})
        in_json = (json.loads(data) for data in row.records.values() if data.startswith(b"{"))
        return found in map(_text, (row.values, *in_json))


def newest_record(key: RowKey, records: Sequence[DataRecord]) -> NewestRecord | None:
    """None where no record says anything about the row itself. The records are in the order in which they were published."""
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
    """Tells whether the row is in the range that a record deletes."""

    def __init__(self, key: RowKey, projection: Projection) -> None:
        self._key = key
        self._projection = projection
        self._scope = RangeScope([(_VERSION, json.loads(projection.key_schema))])

    def __call__(self, record: DataRecord) -> bool:
        """True also for bounds that cannot be read: those of a key with hidden columns."""
        told = record.properties
        bounds = Bounds(
            range_start=told.get(names.RANGE_START),
            range_end=told.get(names.RANGE_END),
            range_start_inclusive=told.get(names.RANGE_START_INCLUSIVE),
            range_end_inclusive=told.get(names.RANGE_END_INCLUSIVE),
            range_reversed=json.dumps(list(self._projection.reversed_names)),
            schema_version=_VERSION,
        )
        try:
            return self._scope(bounds, self._projection.avro_key(self._key.parts), _VERSION)
        except (ValueError, EOFError, IndexError, TypeError, OverflowError):
            return True


def _text(value: Mapping[str, object]) -> str:
    """A column that a record does not have is null."""
    return json.dumps({name: each for name, each in value.items() if each is not None}, sort_keys=True, default=str)
