"""A table's rows as a keyed sink has them: from `SELECT`, from a `rows-` topic, from a `changes-` topic, from a
mirror."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tests.cql.type_text import split_arguments
from tests.fault_kit.oracle.cassandra_rows import Stored
from tests.fault_kit.oracle.folding import Key, TableShape
from tests.fault_kit.oracle.topics import DataRecord
from tests.fault_kit.oracle.values import Form, avro_name, form_of_avro

__all__ = ["Rows", "differences", "last_of_each_key", "mirrored", "replayed", "selected"]

Rows = dict[tuple[Key, Key], Mapping[str, Form]]
"""By partition key and clustering: static and regular columns. A partition that has only static columns has one row,
whose clustering and regular columns are null."""

_SHOWN: Final = 5
# By `op`: whether `before` and `after` are null.
_NULLS: Final = {"c": (True, False), "r": (True, False), "u": (False, False), "d": (False, True)}


def selected(shape: TableShape, stored: Stored) -> Rows:
    """The rows that Cassandra returns."""
    nothing = dict.fromkeys(shape.regular)
    found: Rows = {}
    for pk, rows in stored.rows.items():
        statics = stored.statics.get(pk, {})
        for ck, row in rows.items():
            found[pk, ck] = {**statics, **row}
        if not rows:
            found[pk, (None,) * len(shape.clustering)] = {**statics, **nothing}
    return found


def last_of_each_key(shape: TableShape, records: Iterable[DataRecord]) -> Rows:
    """The rows that a keyed sink keeps of `rows-`: the last record of each key, unless it has no value."""
    found: dict[bytes, DataRecord] = {}
    for record in records:
        found[record.key_bytes] = record
    return {
        _key(shape, record.key): _values(shape, record.value) for record in found.values() if record.value is not None
    }


def replayed(shape: TableShape, records: Iterable[DataRecord]) -> tuple[Rows, list[str]]:
    """Return the rows after all changes, and a line for each change whose `before` is not the last `after` of its key,
    or whose `op` does not fit."""
    found: Rows = {}
    problems: list[str] = []
    for record in records:
        assert record.value is not None
        envelope: Any = record.value
        key, op = _key(shape, record.key), envelope["op"]
        before, after = (
            None if envelope[name] is None else _values(shape, envelope[name]) for name in ("before", "after")
        )
        if before != found.get(key):
            problems.append(f"{shape.name} {key}: {op} has before {before}, and the last after is {found.get(key)}")
        if _NULLS.get(op) != (before is None, after is None):
            problems.append(f"{shape.name} {key}: {op} has before {before} and after {after}")
        if after is None:
            found.pop(key, None)
        else:
            found[key] = after
    return found, problems


def mirrored(shape: TableShape, rows: Iterable[Mapping[str, Any]]) -> Rows:
    """The rows of a mirror, given as dictionaries by column. Except for maps, their types must have the same values in
    Spark and Avro."""

    def values(columns: Mapping[str, str], row: Mapping[str, Any]) -> dict[str, Form]:
        return {name: _of_spark(cql_type, row[avro_name(name)]) for name, cql_type in columns.items()}

    return {
        (tuple(values(shape.partition, row).values()), tuple(values(shape.clustering, row).values())): values(
            {**shape.static, **shape.regular}, row
        )
        for row in rows
    }


def differences(name: str, wanted: Rows, found: Rows) -> list[str]:
    """A line for each of the first rows that differ; if there are more, a last line with the number of rows that
    differ."""
    keys = [key for key in {**wanted, **found} if wanted.get(key) != found.get(key)]
    lines = [f"{name} {key}: Cassandra has {wanted.get(key)}, it has {found.get(key)}" for key in keys[:_SHOWN]]
    return lines + ([f"{name}: {len(keys)} rows differ"] if len(keys) > _SHOWN else [])


def _of_spark(cql_type: str, value: Any) -> Form:
    if value is not None and split_arguments(cql_type)[0] == "map":
        return frozenset(value.items())
    return form_of_avro(cql_type, value)


def _key(shape: TableShape, key: Mapping[str, object]) -> tuple[Key, Key]:
    return tuple(_forms(shape.partition, key).values()), tuple(_forms(shape.clustering, key).values())


def _values(shape: TableShape, value: Mapping[str, object]) -> dict[str, Form]:
    return _forms({**shape.static, **shape.regular}, value)


def _forms(columns: Mapping[str, str], record: Mapping[str, object]) -> dict[str, Form]:
    return {name: form_of_avro(cql_type, record.get(avro_name(name))) for name, cql_type in columns.items()}
