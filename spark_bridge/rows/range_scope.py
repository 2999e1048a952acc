"""Which rows a range deletion covers: clustering values between two bounds, compared as Cassandra compares them.

Cassandra source: o.a.c.db.ClusteringComparator, ClusteringBound. A bound is a prefix of the clustering columns; an
inclusive start lies before all rows with that prefix, an exclusive one after them. For an end, it is the reverse.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from schemas.long_numbers import decimal_of
from spark_bridge.rows.avro_types import AvroType, bare_type, named_records
from spark_bridge.rows.fold import Bounds
from spark_bridge.rows.record_reader import record_reader

if TYPE_CHECKING:  # without PySpark this module can be imported, too
    from spark_bridge.topics.topic_schemas import AvroRecord

__all__ = ["KeySchemas", "RangeScope", "float_order"]

KeySchemas: TypeAlias = "Sequence[tuple[int, AvroRecord]]"
"""Schemas of a topic's keys by version."""

_Values = Sequence[Any]
_Comparable = Callable[[Any], Any]
_Types = tuple[str | None, ...]


class RangeScope:
    """Tells whether a range covers a row, for the keys of one topic."""

    def __init__(self, schemas: KeySchemas) -> None:
        self._schemas = dict(schemas)
        # filled in the process that uses them, which is another one
        self._readers: dict[tuple[int, _Types], _KeyReader] = {}
        self._known: dict[Bounds, _Range] = {}

    def __call__(self, bounds: Bounds, key: bytes, key_version: int) -> bool:
        """Return True if the range holds the row of `key`, an Avro key of the schema version `key_version`.

        Raises KeyError for an unknown version, and fastavro's errors for bytes that are not a key of this version.
        """
        known = self._known.get(bounds)
        if known is None:
            known = self._known[bounds] = self._range(bounds)
        return known.holds(self._reader(key_version, known.types).clustering(key))

    def _reader(self, version: int, types: _Types) -> _KeyReader:
        reader = self._readers.get((version, types))
        if reader is None:
            reader = self._readers[version, types] = _KeyReader(self._schemas[version], types)
        return reader

    def _range(self, bounds: Bounds) -> _Range:
        known = json.loads(bounds.range_types or "{}")
        # by position, because a later version of the schema may have other names
        types = tuple(known.get(each["name"]) for each in _clustering_fields(self._schemas[bounds.schema_version]))
        reader = self._reader(bounds.schema_version, types)
        backwards = json.loads(bounds.range_reversed or "[]")

        def bound(text: str | None) -> _Values | None:
            return None if text is None else reader.clustering(base64.b64decode(text))

        return _Range(
            start=bound(bounds.range_start),
            end=bound(bounds.range_end),
            has_start=bounds.range_start_inclusive == "true",
            has_end=bounds.range_end_inclusive == "true",
            reversed=tuple(each in backwards for each in reader.clustering_names),
            types=types,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """Bounds as values of the clustering columns, with None after the bound's prefix.

    A bound is None if that end is open. `types`: the CQL types of the columns whose order Avro does not show, else None.
    """

    start: _Values | None
    end: _Values | None
    has_start: bool
    has_end: bool
    reversed: Sequence[bool]
    types: _Types

    def holds(self, row: _Values) -> bool:
        after_start = self.start is None or self._within(row, self.start, self.has_start, 1)
        return after_start and (self.end is None or self._within(row, self.end, self.has_end, -1))

    def _within(self, row: _Values, bound: _Values, is_inclusive: bool, side: int) -> bool:
        """Return True if the row lies on the inner side of the bound. The first column that differs decides.

        `side`: 1 for a start, -1 for an end. A value of a row is None if it is empty, which comes before all others.
        """
        for value, limit, is_reversed in zip(row, bound, self.reversed, strict=True):
            if limit is None:
                break
            if value == limit:
                continue
            is_above = value is not None and value > limit
            return (is_above != is_reversed) == (side > 0)
        return is_inclusive


class _KeyReader:
    """Keys of one schema version."""

    def __init__(self, schema: AvroRecord, types: _Types) -> None:
        self._named = named_records(schema)
        self._read = record_reader(schema)
        clustering = _clustering_fields(schema)
        self.clustering_names = [str(each["name"]) for each in clustering]
        self._comparables = [
            _BY_TYPE.get(cql_type or "") or self._comparable(each["type"])
            for each, cql_type in zip(clustering, types, strict=True)
        ]

    def clustering(self, key: bytes) -> _Values:
        """Values of the clustering columns, in a form that Python compares as Cassandra does."""
        found = self._read(key)
        return [
            None if found[name] is None else comparable(found[name])
            for name, comparable in zip(self.clustering_names, self._comparables, strict=True)
        ]

    def _comparable(self, avro_type: AvroType) -> _Comparable:
        match bare_type(avro_type, self._named):
            case {"logicalType": "uuid"}:
                return _uuid_order
            case {"logicalType": "cql_varint"}:
                return lambda value: int.from_bytes(value, "big", signed=True)
            case {"logicalType": "cql_decimal"}:
                return _decimal
            case {"type": "float" | "double"} | "float" | "double":
                return float_order
            case {"type": "array", "items": items}:
                element = self._comparable(items)
                return lambda values: [element(each) for each in values]
            case {"type": "map", "values": inner}:
                entry = self._comparable(inner)
                return lambda values: [(name, entry(each)) for name, each in values.items()]
            case {"type": "record", "fields": fields}:
                parts = [(each["name"], self._comparable(each["type"])) for each in fields]
                return lambda values: _fields_order(values, parts)
            case _:
                return lambda value: value


def _clustering_fields(schema: AvroRecord) -> list[Any]:
    """The fields of the clustering columns: unions with null."""
    fields = schema["fields"]
    assert isinstance(fields, list)
    return [each for each in fields if isinstance(each["type"], list)]


def _fields_order(values: Mapping[str, object], parts: Sequence[tuple[str, _Comparable]]) -> list[tuple[object, ...]]:
    """Sort key of a tuple or a user type: field by field, null first.

    Nulls at its end are left out, because keys from before these fields were added do not have them.
    """
    found: list[tuple[object, ...]] = [
        () if values[name] is None else (comparable(values[name]),) for name, comparable in parts
    ]
    while found and found[-1] == ():
        found.pop()
    return found


def _uuid_order(text: str) -> tuple[str, str, bytes]:
    """Sort key of a uuid or timeuuid: by version, then version 1 by its time and its signed last bytes, others by all bytes.

    Avro has the same type for both. If a record does not say which one it is, uuids of version 1 with the same time have
    the order of timeuuids, whose last bytes are signed: that of minTimeuuid and maxTimeuuid depends on it.
    Cassandra source: o.a.c.db.marshal.UUIDType.compareCustom, TimeUUIDType.compareCustom.
    """
    version = text[14]
    if version != "1":
        return version, text, b""
    last = bytes.fromhex(text[19:].replace("-", ""))
    return version, text[15:18] + text[9:13] + text[:8], bytes(each ^ 0x80 for each in last)


def _plain_uuid_order(text: str) -> tuple[str, str, bytes]:
    """Sort key of a uuid in a `uuid` column, where the last bytes of version 1 are unsigned, too."""
    version, time, last = _uuid_order(text)
    return version, time, bytes(each ^ 0x80 for each in last)


def _inet_order(text: str) -> bytes:
    """Sort key of an inet: its 4 or 16 bytes."""
    return ip_address(text).packed


_BY_TYPE: Final[Mapping[str, _Comparable]] = {"inet": _inet_order, "uuid": _plain_uuid_order}
"""The comparables of types whose order Avro does not show."""


def float_order(value: float) -> tuple[bool, float, float]:
    """Sort key of a float or double, as in Java's Double.compare: -0.0 before 0.0, NaN last."""
    is_nan = math.isnan(value)
    return is_nan, 0.0 if is_nan else value, math.copysign(1.0, value) if value == 0 else 0.0


def _decimal(value: Mapping[str, Any]) -> Decimal:
    return decimal_of(int.from_bytes(value["bigint"], "big", signed=True), value["scale"])
