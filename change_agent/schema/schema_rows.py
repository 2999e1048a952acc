"""Rows of `system_schema`, table by table: taken from a node's answer, or built from the log. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from change_agent.schema.schema_mutations import TableChange
from schemas.system_schema import Row, SystemSchema

__all__ = ["TableRows", "altered", "dated_types", "is_whole", "rows_by_table"]

# A name of CQL: quoted, or plain.
_NAME: Final = re.compile(r'"((?:[^"]|"")+)"|(\w+)')
# Added to each row that is queried: the write time in microseconds of a column that each CREATE and ALTER writes.
_WRITTEN: Final = "written_us"

_KEY_KINDS: Final = frozenset({"partition_key", "clustering"})

_TypesByName = Mapping[str, Row]


class TableRows(NamedTuple):
    """The rows of one table with the user types that it uses, and when they were written (microseconds)."""

    rows: SystemSchema
    since_us: int
    types_since_us: int


def rows_by_table(schema: SystemSchema) -> dict[UUID, TableRows]:
    """The rows of each table and view, by table id. Rows without a write time count as written at 0.

    A table without columns is left out. A node that was killed during CREATE or DROP TABLE may keep such incomplete
    rows; it ignores them itself (o.a.c.schema.SchemaKeyspace.MissingColumns).
    """
    types: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in schema.get("types", ()):
        types[str(row["keyspace_name"])][str(row["type_name"])] = row
    columns = _grouped(schema.get("columns", ()))
    dropped = _grouped(schema.get("dropped_columns", ()))
    found: dict[UUID, TableRows] = {}
    for list_name, name_column in (("tables", "table_name"), ("views", "view_name")):
        for row in schema.get(list_name, ()):
            name = str(row["keyspace_name"]), str(row[name_column])
            if not columns[name]:
                continue
            own_types = _used_types([*columns[name], *dropped[name]], types[name[0]])
            rows = {
                list_name: [_plain(row)],
                "columns": [_plain(each) for each in columns[name]],
                "dropped_columns": [_plain(each) for each in dropped[name]],
                "types": [_plain(each) for each in own_types],
            }
            types_since_us = max((_written_us(each) for each in own_types), default=0)
            found[UUID(str(row["id"]))] = TableRows(rows, _written_us(row), types_since_us)
    return found


def dated_types(schema: SystemSchema) -> list[tuple[Row, int]]:
    """The row of each user type, and when it was written (microseconds; 0 if not known)."""
    return [(_plain(row), _written_us(row)) for row in schema.get("types", ())]


def is_whole(change: TableChange, before: SystemSchema | None) -> bool:
    """True if a change creates its table, which means that it has the complete definition.

    `before` has the rows before the change, if they are known. Some ALTERs write columns of the partition key, too.
    RENAME writes the new name and deletes the old one. A change of a column's mask (5.0) writes the column again as it
    was.
    """
    kinds = {row.get("kind") for row in change.columns}
    if "partition_key" not in kinds:
        return False
    dropped = {row["column_name"] for row in change.dropped_columns}
    if kinds <= _KEY_KINDS and change.removed - dropped:
        return False
    known = [_definition(row) for row in ({} if before is None else before).get("columns", ())]
    return any(_definition(row) not in known for row in change.columns)


def altered(base: SystemSchema | None, change: TableChange, types: _TypesByName) -> SystemSchema:
    """The rows of a table after a change; `base` has the rows before it, if there were any.

    `types` are the keyspace's user types at that time, by name.
    """
    base = base or {}
    # `base` may be a later definition, in which a key column already has another name.
    taken = {(row.get("kind"), row.get("position")) for row in change.columns if row.get("kind") in _KEY_KINDS}
    columns = {
        str(row["column_name"]): row
        for row in base.get("columns", ())
        if row["column_name"] not in change.removed and (row.get("kind"), row.get("position")) not in taken
    }
    columns |= {str(row["column_name"]): row for row in change.columns}
    dropped = {str(row["column_name"]): row for row in base.get("dropped_columns", ())}
    dropped |= {str(row["column_name"]): row for row in change.dropped_columns}
    row = dict(base[change.list_name][0]) if base.get(change.list_name) else {}
    all_columns = [*columns.values(), *dropped.values()]
    known_types = {str(each["type_name"]): each for each in base.get("types", ())} | dict(types)
    return {
        change.list_name: [row | dict(change.row)],
        "columns": list(columns.values()),
        "dropped_columns": list(dropped.values()),
        "types": _used_types(all_columns, known_types),
    }


def _grouped(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    grouped: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        grouped[str(row["keyspace_name"]), str(row["table_name"])].append(row)
    return grouped


def _used_types(columns: Iterable[Row], types: _TypesByName) -> list[Row]:
    """The user types that columns use, directly or through other user types, sorted by name."""
    used: dict[str, Row] = {}
    texts = [str(column["type"]) for column in columns] if types else []
    while texts:
        for quoted, plain in _NAME.findall(texts.pop()):
            name = quoted.replace('""', '"') or plain
            if name in types and name not in used:
                used[name] = types[name]
                fields = types[name].get("field_types")
                texts += map(str, fields if isinstance(fields, Sequence) else ())
    return [used[name] for name in sorted(used)]


def _definition(row: Row) -> tuple[object, ...]:
    """The values of a column's row that matter here."""
    return tuple(row.get(name) for name in ("column_name", "kind", "position", "clustering_order", "type"))


def _plain(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != _WRITTEN}


def _written_us(row: Row) -> int:
    written = row.get(_WRITTEN)
    return written if isinstance(written, int) else 0
