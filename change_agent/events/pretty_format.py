"""The output of `cdc decode --format pretty`: mutations in a form for people.

    CommitLog-7-1795228134954.log, position 94628, 942 bytes
      shop.orders  customer = "Ada"
        insert  id = 7  at 2026-01-01 00:00:05.000000
          amount = 1.5
          labels deleted
          labels["channel"] = "web"
        delete  id = 8  at 2026-01-01 00:00:05.000000
        delete  id from 9 up to 12 (not included)  at 2026-01-01 00:00:05.000000

Times are UTC. The time of a cell follows the cell if it differs from the time of its row. No value breaks a line. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from change_agent.commitlog.entry import CommitLogEntry
from change_agent.db.values import Cell, Clustering, Mutation, PartitionUpdate, RangeTombstone, Row
from schemas.cql_map_key import map_key_text
from schemas.cql_type import CqlType, ListType, MapType, NativeType, SetType, UserType, has_empty_value
from schemas.cql_value import CqlValueError, split_partition_key, value_reader
from schemas.json_value import json_string
from schemas.table_metadata import ColumnMetadata

__all__ = ["pretty_lines", "time_text"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COUNTER: Final = NativeType("counter")


def pretty_lines(segment: str, entry: CommitLogEntry, mutation: Mutation) -> list[str]:
    """The lines of one mutation; `segment` is the name of the entry's segment file."""
    lines = [f"{segment}, position {entry.position}, {entry.size} bytes"]
    for update in mutation.updates:
        lines += [f"  {line}" for line in _update(update)]
    return lines


def time_text(timestamp_us: int) -> str:
    """Microseconds since the epoch as date and time; the number if Python's calendar does not have that day."""
    try:
        return (_EPOCH + timedelta(microseconds=timestamp_us)).strftime("%Y-%m-%d %H:%M:%S.%f")
    except OverflowError:
        return f"timestamp {timestamp_us}"


def _update(update: PartitionUpdate) -> Iterator[str]:
    columns = update.table.partition_key
    try:
        values: Sequence[bytes] = split_partition_key(update.partition_key, len(columns))
        key = _named(columns, values)
    except CqlValueError:
        key = f"key 0x{update.partition_key.hex()}"
    yield f"{update.table.full_name}  {key}"
    if update.partition_deletion is not None:
        yield f"  delete  the whole partition  at {time_text(update.partition_deletion.timestamp)}"
    for tombstone in update.range_tombstones:
        yield f"  delete  {_range(update, tombstone)}  at {time_text(tombstone.timestamp)}"
    for row in (*([] if update.static_row is None else [update.static_row]), *update.rows):
        yield from _row(update, row, is_static=row is update.static_row)


def _row(update: PartitionUpdate, row: Row, *, is_static: bool) -> Iterator[str]:
    where = "static row" if is_static else _named(update.table.clustering_key, row.clustering)
    where = f"  {where}" if where else ""
    if row.deletion is not None:
        yield f"  delete{where}  at {time_text(row.deletion.timestamp)}"
    if row.liveness is None and not row.cells and not row.complex_deletions:
        return
    # The values that most cells share are printed once, on the line of the row.
    timestamp = ttl = None
    if row.liveness is not None:
        timestamp, ttl = row.liveness.timestamp, row.liveness.ttl
        yield f"  insert{where}  {_times(timestamp, ttl, row.liveness.local_expiration_time)}"
    else:
        if row.cells:
            timestamp, ttl = row.cells[0].timestamp, row.cells[0].ttl
            times = f"  {_times(timestamp, ttl, row.cells[0].local_deletion_time)}"
        else:
            times = f"  at {time_text(row.complex_deletions[0].timestamp)}"
        yield f"  update{where}{times}"
    for deletion in row.complex_deletions:
        # An overwritten collection is deleted one microsecond before it is written.
        yield f"    {deletion.column.name} deleted up to {time_text(deletion.timestamp)}"
    for cell in row.cells:
        has_times_of_row = cell.timestamp == timestamp and (cell.ttl == ttl or cell.value is None)
        times = "" if has_times_of_row else f"  {_times(cell.timestamp, cell.ttl, cell.local_deletion_time)}"
        yield f"    {_cell(cell)}{times}"


def _cell(cell: Cell) -> str:
    column = cell.column
    name, value_type = column.name, column.type
    if cell.path is not None:
        match column.type:
            case MapType(key, value):
                name, value_type = f"{name}[{_value(key, cell.path)}]", value
            case SetType(element):
                return f"{name} {'-' if cell.value is None else '+'} {_value(element, cell.path)}"
            case ListType(element):
                name, value_type = f"{name}[{_value(NativeType('timeuuid'), cell.path)}]", element
            case UserType():
                index = int.from_bytes(cell.path, "big")
                if index < len(column.type.field_names):
                    name, value_type = f"{name}.{column.type.field_names[index]}", column.type.field_types[index]
            case _:
                name = f"{name}[0x{cell.path.hex()}]"
    return f"{name} deleted" if cell.value is None else f"{name} = {_value(value_type, cell.value)}"


def _range(update: PartitionUpdate, tombstone: RangeTombstone) -> str:
    columns = update.table.clustering_key
    names = ", ".join(each.name for each in columns[: max(len(tombstone.start), len(tombstone.end))])
    start = "the start" if not tombstone.start else _bound(columns, tombstone.start, tombstone.start_inclusive)
    end = "the end" if not tombstone.end else _bound(columns, tombstone.end, tombstone.end_inclusive)
    return f"{names or 'rows'} from {start} up to {end}"


def _bound(columns: Sequence[ColumnMetadata], values: Clustering, inclusive: bool) -> str:
    texts = [
        "absent" if value is None else _value(column.type, value)
        for column, value in zip(columns, values, strict=False)
    ]
    return ", ".join(texts) + ("" if inclusive else " (not included)")


def _named(columns: Sequence[ColumnMetadata], values: Sequence[bytes | None]) -> str:
    pairs = zip(columns, values, strict=False)
    return ", ".join(
        f"{column.name} = {'absent' if value is None else _value(column.type, value)}" for column, value in pairs
    )


def _times(timestamp: int, ttl: int, local_time_s: int | None) -> str:
    written = f"at {time_text(timestamp)}"
    if not ttl or local_time_s is None:
        return written
    return f"{written}, ttl {ttl} s, expires {time_text(local_time_s * 1_000_000).partition('.')[0]}"


def _value(cql_type: CqlType, value: bytes) -> str:
    if cql_type == _COUNTER:
        return _counter(value)
    if not value and not has_empty_value(cql_type):
        return "empty"
    try:
        return _text_of(cql_type)(value)
    # Errors of the types' readers for bytes that are not of the type.
    except (CqlValueError, ValueError, AssertionError, OverflowError):
        return f"0x{value.hex()}"


def _counter(context: bytes) -> str:
    """Sum of the shards: CounterContext => Int16 count, {Int16 element}, {CounterId(16) Clock(Int64) Count(Int64)}."""
    count = int.from_bytes(context[:2], "big", signed=True)
    shards = context[2 + 2 * abs(count) :]
    total = sum(int.from_bytes(shards[at + 24 : at + 32], "big", signed=True) for at in range(0, len(shards), 32))
    return f"{total} (of {len(shards) // 32} shards)"


@lru_cache(maxsize=1000)
def _text_of(cql_type: CqlType) -> Callable[[bytes], str]:
    text_of = map_key_text(cql_type, value_reader)
    if isinstance(cql_type, NativeType) and cql_type.name in ("text", "ascii"):
        return lambda value: json_string(text_of(value))
    return text_of
