"""One form of each key, by whatever version of the topic's schema it was written.

A user type in a clustering column may get more fields (`ALTER TYPE ... ADD`). For Cassandra the row of an earlier key is
still the same row, with nulls in the new fields. But Avro writes these nulls, so the key of a later record has other
bytes. Here each key has the form of the first version that can hold it. Later versions never change this form.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructType

from spark_bridge.rows.avro_types import AvroType, NamedRecords, bare_type, field_types, named_records
from spark_bridge.rows.range_scope import KeySchemas
from spark_bridge.rows.record_reader import record_reader, record_rewriter
from spark_bridge.topics.topic_schemas import AvroRecord

__all__ = ["KEY_VERSION", "UNREADABLE", "KeyForms"]

KEY_VERSION: Final = "key_version"
"""The column with the version of a key's form."""
UNREADABLE: Final = (EOFError, ValueError, LookupError, TypeError, AttributeError, OverflowError, struct.error)
"""The exceptions of fastavro for bytes that are not a record of a schema."""


class KeyForms:
    """Gives each key of one topic its form. It is pickled into tasks."""

    def __init__(self, schemas: KeySchemas) -> None:
        # The present version, which is negative, is that of no record, and is as new as the newest one.
        self._schemas = dict(sorted(schemas, key=lambda each: (each[0] < 0, each[0])))
        self._forms: dict[int, _Form] = {}  # filled in the process that uses them, which is another one

    @property
    def differ(self) -> bool:
        """True if a user type in the key has got more fields. Otherwise all keys have their form already."""
        sizes: dict[str, int] = {}
        return any(
            sizes.setdefault(name, size) != size
            for record in self._schemas.values()
            for name, size in _sizes(record).items()
        )

    def of(self, key: bytes, version: int) -> tuple[bytes, int]:
        """The key in its form, and the version of this form. A key that cannot be read stays as it is."""
        if version not in self._schemas:
            return key, version
        try:
            mine = self._form(version)
            values = mine.read(key)
            for each in self._schemas:
                if each == version:
                    break
                earlier = self._form(each)
                if earlier.columns == mine.columns:
                    try:
                        return earlier.write(mine.narrowed(values, earlier)), each
                    except _TooNarrowError:
                        continue
        except UNREADABLE:
            pass
        return key, version

    def applied(self, rows: DataFrame, version: str) -> DataFrame:
        """The rows with each `key` in its form, and with KEY_VERSION. `version`: the column with the keys' versions."""
        mine = self
        others = [each for each in rows.columns if each not in ("key", KEY_VERSION)]
        schema = StructType([*rows.select("key", *others).schema]).add(KEY_VERSION, LongType())

        def form(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                keys = zip(batch.column("key").to_pylist(), batch.column(version).to_pylist(), strict=True)
                formed = [mine.of(*each) for each in keys]
                columns = {
                    "key": pa.array([key for key, _ in formed], batch.column("key").type),
                    **{name: batch.column(name) for name in others},
                    KEY_VERSION: pa.array([each for _, each in formed], pa.int64()),
                }
                yield pa.RecordBatch.from_pydict(columns)

        return rows.mapInArrow(form, schema)

    def _form(self, version: int) -> _Form:
        known = self._forms.get(version)
        if known is None:
            known = self._forms[version] = _Form(self._schemas[version])
        return known


class _TooNarrowError(Exception):
    """A value has a field that an earlier version of its type lacks."""


class _Form:
    """The form of keys of one version. `columns`: their types by place, without the fields of user types."""

    def __init__(self, schema: AvroRecord) -> None:
        self._named = named_records(schema)
        self._fields = field_types(schema)
        self.columns = [_kind(bare_type(each, self._named)) for _, each in self._fields]
        self.read = record_reader(schema)
        self.write = record_rewriter(schema)

    def narrowed(self, values: dict[str, Any], earlier: _Form) -> dict[str, Any]:
        """The values of a key in the earlier form. Raises _TooNarrowError."""
        return _narrowed_fields(values, self._fields, self._named, earlier._fields, earlier._named)


def _narrowed(value: Any, mine: AvroType, named: NamedRecords, earlier: AvroType, known: NamedRecords) -> Any:
    if value is None:
        return None
    match bare_type(mine, named), bare_type(earlier, known):
        case {"type": "record"} as record, {"type": "record"} as target:
            return _narrowed_fields(value, field_types(record), named, field_types(target), known)
        case {"items": inner}, {"items": target}:
            return [_narrowed(each, inner, named, target, known) for each in value]
        case {"values": inner}, {"values": target}:
            return {name: _narrowed(each, inner, named, target, known) for name, each in value.items()}
        case _:
            return value


def _narrowed_fields(
    values: dict[str, Any],
    mine: Sequence[tuple[str, AvroType]],
    named: NamedRecords,
    earlier: Sequence[tuple[str, AvroType]],
    known: NamedRecords,
) -> dict[str, Any]:
    if len(earlier) > len(mine) or any(values[name] is not None for name, _ in mine[len(earlier) :]):
        raise _TooNarrowError
    return {
        now: _narrowed(values[name], kind, named, target, known)
        for (name, kind), (now, target) in zip(mine, earlier, strict=False)
    }


def _sizes(record: AvroRecord) -> dict[str, int]:
    """The number of fields of each user type in a key."""
    root = str(record["name"]).rpartition(".")[2]
    return {name: len(field_types(each)) for name, each in named_records(record).items() if name != root}


def _kind(bare: AvroType) -> object:
    if not isinstance(bare, dict):
        return bare
    return bare.get("logicalType") or (bare["type"], str(bare.get("name")).rpartition(".")[2])
