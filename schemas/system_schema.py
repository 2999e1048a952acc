"""Makes TableMetadata from rows of `system_schema`, for rows of a node and of a file alike.

The rows are plain JSON, as `cdc decode --schema FILE` takes them: an object of lists of row objects, sets and lists as
arrays, maps as objects, uuids as text, blobs as hex, times as ISO 8601 in UTC ending in Z. `dropped_time` may be an
integer (milliseconds) or hex too: Cassandra stores times there that some drivers refuse.
"""

from __future__ import annotations

import calendar
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from schemas.cql_type import CqlType, CqlTypeError, CustomType, UserType, parse_cql_type
from schemas.errors import CdcError
from schemas.table_metadata import ColumnKind, ColumnMetadata, DroppedColumn, TableMetadata

__all__ = ["SELECTS", "Row", "SystemSchema", "SystemSchemaError", "plain_row", "tables_of", "unlogged_keyspaces"]

Row = Mapping[str, object]
SystemSchema = Mapping[str, Sequence[Row]]

# The queries of a node, by name of the list. dropped_time is read as a blob, because drivers may fail on a time that is
# out of their range.
SELECTS: Final[Mapping[str, str]] = {
    "keyspaces": "SELECT keyspace_name, durable_writes, replication FROM system_schema.keyspaces",
    "tables": "SELECT keyspace_name, table_name, id, flags, cdc FROM system_schema.tables",
    "views": "SELECT keyspace_name, view_name, id, cdc FROM system_schema.views",
    "columns": "SELECT keyspace_name, table_name, column_name, kind, position, clustering_order, type"
    " FROM system_schema.columns",
    "types": "SELECT keyspace_name, type_name, field_names, field_types FROM system_schema.types",
    "dropped_columns": "SELECT keyspace_name, table_name, column_name, kind, type,"
    " timestampAsBlob(dropped_time) AS dropped_time FROM system_schema.dropped_columns",
}


class SystemSchemaError(CdcError):
    """The rows are not a Cassandra schema. The text names the row, and its list or column."""


def plain_row(row: Mapping[str, object]) -> dict[str, object]:
    """A row of the driver, in plain JSON."""
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> object:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "items"):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, UUID):
        return str(value)
    return [_plain(each) for each in value]


def tables_of(schema: SystemSchema) -> dict[UUID, TableMetadata]:
    """All tables and views by table id. Raises SystemSchemaError."""
    user_types = _user_types(_rows(schema, "types"))
    columns = _by_table(_rows(schema, "columns"))
    dropped = _by_table(_rows(schema, "dropped_columns"))
    found: dict[UUID, TableMetadata] = {}
    named = [(row, _text(row, "table_name"), False) for row in _rows(schema, "tables")]
    named += [(row, _text(row, "view_name"), True) for row in _rows(schema, "views")]
    for row, name, is_view in named:
        keyspace = _text(row, "keyspace_name")
        own_types = user_types.get(keyspace, {})
        of_table = [_column(each, own_types) for each in columns.get((keyspace, name), ())]
        table_id = _uuid(row, "id")
        found[table_id] = TableMetadata(
            keyspace=keyspace,
            name=name,
            table_id=table_id,
            partition_key=_key(of_table, ColumnKind.PARTITION_KEY),
            clustering_key=_key(of_table, ColumnKind.CLUSTERING),
            static_columns=_named(of_table, ColumnKind.STATIC),
            regular_columns=_named(of_table, ColumnKind.REGULAR),
            dropped_columns=tuple(_dropped(each, own_types) for each in dropped.get((keyspace, name), ())),
            flags=frozenset(_texts(row, "flags")),
            cdc=bool(row.get("cdc")),
            is_view=is_view,
        )
    return found


def unlogged_keyspaces(schema: SystemSchema) -> frozenset[str]:
    """The keyspaces with `durable_writes = false`: Cassandra does not write their changes to the commit log."""
    return frozenset(
        _text(row, "keyspace_name") for row in _rows(schema, "keyspaces") if row.get("durable_writes") is False
    )


def _rows(schema: SystemSchema, name: str) -> Sequence[Row]:
    rows = schema.get(name) or ()
    if not isinstance(rows, Sequence) or not all(isinstance(row, Mapping) for row in rows):
        raise SystemSchemaError(f"schema: {name!r} must be a list of row objects, as SELECT from system_schema.{name}")
    return rows


def _text(row: Row, column: str) -> str:
    value = row.get(column)
    if not isinstance(value, str):
        raise SystemSchemaError(f"schema: column {column!r} must be text in the row {dict(row)!r}")
    return value


def _uuid(row: Row, column: str) -> UUID:
    try:
        return UUID(str(row[column]))
    except (KeyError, ValueError) as error:
        raise SystemSchemaError(f"schema: column {column!r} must be a uuid in the row {dict(row)!r}") from error


def _by_table(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    grouped: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        grouped[_text(row, "keyspace_name"), _text(row, "table_name")].append(row)
    return grouped


def _user_types(rows: Sequence[Row]) -> dict[str, dict[str, UserType]]:
    """User types by keyspace. A type may use other types, whose rows may be in any order, but not itself."""
    resolved: dict[str, dict[str, UserType]] = defaultdict(dict)
    waiting = list(rows)
    while waiting:
        still_waiting: list[Row] = []
        problem: CqlTypeError | None = None
        for row in waiting:
            try:
                user_type = _user_type(row, resolved[_text(row, "keyspace_name")])
            except CqlTypeError as error:
                problem = error
                still_waiting.append(row)
            else:
                resolved[user_type.keyspace][user_type.name] = user_type
        if problem is not None and len(still_waiting) == len(waiting):
            raise SystemSchemaError(f"schema: user type {_text(waiting[0], 'type_name')!r}: {problem}") from problem
        waiting = still_waiting
    return resolved


def _texts(row: Row, name: str) -> tuple[str, ...]:
    """A list's elements as text; empty for null."""
    found: Any = row.get(name)
    return tuple(map(str, found or ()))


def _user_type(row: Row, known: Mapping[str, UserType]) -> UserType:
    names = _texts(row, "field_names")
    texts = _texts(row, "field_types")
    if len(names) != len(texts):
        raise SystemSchemaError(f"schema: field_names and field_types differ in length in the row {dict(row)!r}")
    return UserType(
        keyspace=_text(row, "keyspace_name"),
        name=_text(row, "type_name"),
        field_names=names,
        field_types=tuple(parse_cql_type(text, known) for text in texts),
    )


def _type(row: Row, user_types: Mapping[str, UserType]) -> CqlType:
    try:
        return parse_cql_type(_text(row, "type"), user_types)
    except CqlTypeError as error:
        table = f"{row.get('keyspace_name')}.{row.get('table_name')}"
        raise SystemSchemaError(f"schema: column {row.get('column_name')!r} of {table}: {error}") from error


def _column(row: Row, user_types: Mapping[str, UserType]) -> ColumnMetadata:
    position = row.get("position")
    return ColumnMetadata(
        name=_text(row, "column_name"),
        kind=_kind(row),
        type=_type(row, user_types),
        position=position if isinstance(position, int) else -1,
        reversed=row.get("clustering_order") == "desc",
    )


def _kind(row: Row) -> ColumnKind:
    try:
        return ColumnKind(_text(row, "kind"))
    except ValueError as error:
        raise SystemSchemaError(f"schema: unknown column kind in the row {dict(row)!r}") from error


def _key(columns: Iterable[ColumnMetadata], kind: ColumnKind) -> tuple[ColumnMetadata, ...]:
    return tuple(sorted((each for each in columns if each.kind is kind), key=lambda each: each.position))


def _named(columns: Iterable[ColumnMetadata], kind: ColumnKind) -> tuple[ColumnMetadata, ...]:
    # Cassandra orders by the UTF-8 bytes of the name (o.a.c.cql3.ColumnIdentifier), not by code units.
    mine = (_without_empty_type(each) for each in columns if each.kind is kind)
    return tuple(sorted(mine, key=lambda each: each.name.encode()))


def _without_empty_type(column: ColumnMetadata) -> ColumnMetadata:
    """The column with EmptyType if its type is `empty`: a dense table without a value column has such a column."""
    is_empty = str(column.type) == "empty"
    return replace(column, type=CustomType("org.apache.cassandra.db.marshal.EmptyType")) if is_empty else column


def _dropped(row: Row, user_types: Mapping[str, UserType]) -> DroppedColumn:
    kind = _kind(row) if row.get("kind") is not None else ColumnKind.REGULAR
    return DroppedColumn(
        name=_text(row, "column_name"), kind=kind, type=_type(row, user_types), dropped_time_us=_time_us(row)
    )


# dropped_time is a `timestamp` column, but Cassandra writes microseconds divided by 1000 and reads them back times 1000.
_ISO_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")


def _time_us(row: Row) -> int:
    value = row.get("dropped_time")
    if isinstance(value, int):
        return value * 1000
    text = str(value)
    if re.fullmatch(r"(0x)?[0-9a-fA-F]{16}", text):
        milliseconds = int.from_bytes(bytes.fromhex(text.removeprefix("0x")), "big", signed=True)
        return milliseconds * 1000
    if _ISO_TIME.fullmatch(text) is None:
        raise SystemSchemaError(f"schema: dropped_time must be ISO 8601 in UTC ending in Z in the row {dict(row)!r}")
    whole, _, fraction = text.removesuffix("Z").partition(".")
    seconds = calendar.timegm(datetime.fromisoformat(whole + "Z").timetuple())
    return seconds * 1_000_000 + int(fraction.ljust(9, "0")[:6] or 0)
