"""The data topic folded to a table, by the rules of the contract and by nothing else.

The newest record of a key wins in topic order; a marker removes the earlier rows of its scope; a static-only record updates the
static columns of its partition, and every row brings them, too; a new table id starts an empty table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cdc.faults.oracle.topics import DataRecord
from cdc.faults.oracle.values import Form, avro_name, form_of_avro

__all__ = ["Folded", "Key", "TableShape", "fold"]

Key = tuple[Form, ...]
"""Forms of the columns of a partition key, or of a clustering."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """A table as Cassandra describes it now: columns by name with their CQL types, in key order where they have one."""

    name: str
    table_id: str
    partition: Mapping[str, str]
    clustering: Mapping[str, str]
    static: Mapping[str, str]
    regular: Mapping[str, str]


@dataclass(slots=True)
class Folded:
    """What a data topic makes of a table. `told` are the properties of each row's newest record; `had_ttls` are the rows of
    which some record told that a part of them goes; `key_bytes` is the Avro key of each row, for what events tell of it."""

    rows: dict[Key, dict[Key, Mapping[str, Form]]] = field(default_factory=dict)
    statics: dict[Key, Mapping[str, Form]] = field(default_factory=dict)
    told: dict[tuple[Key, Key], Mapping[str, str]] = field(default_factory=dict)
    had_ttls: set[tuple[Key, Key]] = field(default_factory=set)
    key_bytes: dict[tuple[Key, Key], bytes] = field(default_factory=dict)
    records: int = 0
    markers: int = 0
    duplicates: int = 0
    problems: list[str] = field(default_factory=list)


def fold(shape: TableShape, records: Iterable[DataRecord]) -> Folded:
    """Fold all records of the table's topic."""
    folded = Folded()
    table_ids: list[str] = []
    newer_since = ""
    seen: set[tuple[object, ...]] = set()
    for record in records:
        folded.records += 1
        table_id = record.properties.get("table_id", "")
        if table_id not in table_ids:
            table_ids.append(table_id)
            folded.rows, folded.statics, folded.told, folded.key_bytes = {}, {}, {}, {}
            newer_since = _place(record)
        elif table_id != table_ids[-1]:
            folded.problems.append(
                f"{shape.name}: a record of table id {table_id} stands behind one of {table_ids[-1]} "
                f"({_place(record)}; the newer one came first with {newer_since})"
            )
            continue
        change = (
            record.key_bytes,
            record.properties["kind"],
            record.properties.get("node"),
            record.properties.get("segpos"),
        )
        folded.duplicates += change in seen
        seen.add(change)
        if table_id == shape.table_id:
            _take(shape, folded, record)
    if table_ids and table_ids[-1] != shape.table_id:
        folded.problems.append(
            f"{shape.name}: the topic ends with table id {table_ids[-1]}, the table is {shape.table_id}"
        )
    return folded


def _place(record: DataRecord) -> str:
    properties = record.properties
    return f"{properties['kind']} of {properties.get('segpos')}, published at {record.published_ms} ms"


def _take(shape: TableShape, folded: Folded, record: DataRecord) -> None:
    pk = _key(shape.partition, record.key)
    rows = folded.rows.setdefault(pk, {})
    match record.properties["kind"]:
        case "partition_deletion":
            folded.markers += 1
            rows.clear()
            folded.statics.pop(pk, None)
        case "range_deletion":
            folded.markers += 1
            _remove_range(shape, rows, record)
        case "static_row":
            folded.statics[pk] = {} if record.value is None else _values(shape.static, record.value)
        case "row" | "row_deletion":
            ck = _key(shape.clustering, record.key)
            folded.told[pk, ck] = record.properties
            folded.key_bytes[pk, ck] = record.key_bytes
            if "expires_at" in record.properties or "columns_expire_at" in record.properties:
                folded.had_ttls.add((pk, ck))
            if record.value is None:
                rows.pop(ck, None)
                return
            rows[ck] = _values(shape.regular, record.value)
            if shape.static:
                folded.statics[pk] = _values(shape.static, record.value)
        case kind:
            folded.problems.append(f"{shape.name}: a record of unknown kind {kind}")


def _key(columns: Mapping[str, str], record: Mapping[str, object]) -> Key:
    return tuple(form_of_avro(cql_type, record[avro_name(name)]) for name, cql_type in columns.items())


def _values(columns: Mapping[str, str], record: Mapping[str, object]) -> dict[str, Form]:
    """A column that the record's schema does not have yet is null."""
    return {name: form_of_avro(cql_type, record.get(avro_name(name))) for name, cql_type in columns.items()}


def _remove_range(shape: TableShape, rows: dict[Key, Mapping[str, Form]], record: DataRecord) -> None:
    properties = record.properties
    reversed_columns = set(json.loads(properties.get("range_reversed", "[]")))
    signs = [-1 if name in reversed_columns else 1 for name in shape.clustering]
    start, end = ((_prefix(shape, each) if each is not None else None) for each in record.bounds)
    for ck in list(rows):
        behind_start = start is None or _is_in(ck, start, signs, 1, properties["range_start_inclusive"] == "true")
        before_end = end is None or _is_in(ck, end, signs, -1, properties["range_end_inclusive"] == "true")
        if behind_start and before_end:
            del rows[ck]


def _prefix(shape: TableShape, bound: Mapping[str, object]) -> Key:
    return tuple(form for form in _key(shape.clustering, bound) if form is not None)


def _is_in(ck: Key, bound: Key, signs: Sequence[int], side: int, inclusive: bool) -> bool:
    """Whether a row lies on that side of a bound (1: behind a start, -1: before an end)."""
    for own, other, sign in zip(ck, bound, signs, strict=False):
        if own != other:
            assert isinstance(own, int | str) and isinstance(other, int | str)
            is_greater = own > other  # type: ignore[operator]
            return is_greater == (sign * side > 0)
    return inclusive
