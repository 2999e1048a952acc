"""Folds a data topic to a table, only by the rules of the contract.

- Only records of the table's latest life count, the life with the greatest generation.
- The newest record of a key wins.
- A marker removes the earlier rows of its scope.
- A static row updates the static columns of its partition. Each row has the static columns, too, and updates them.
- A truncation removes records at or before its positions that were written before it, and values there without a write
  time.
- A drop removes all records at or before its positions.

In one topic partition, the record at the later place is the later one. In two topic partitions, it is the record that
was published later; at equal times, the later write. A record counts as published no earlier than the records of its
key before it in its topic partition.
"""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tests.fault_kit.oracle.topics import Clearing, DataRecord
from tests.fault_kit.oracle.values import Form, avro_name, form_of_avro

__all__ = ["Folded", "Key", "TableShape", "fold", "newest"]

Key = tuple[Form, ...]
"""Forms of the columns of a partition key, or of a clustering."""

_NEVER_WRITTEN: Final = -(1 << 63)
# The Unix epoch in the time of UUIDs, in units of 100 ns.
_UUID_EPOCH: Final = 0x01B21DD213814000


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """A table's definition in Cassandra: column name -> CQL type; key columns are in key order."""

    name: str
    table_id: str
    partition: Mapping[str, str]
    clustering: Mapping[str, str]
    static: Mapping[str, str]
    regular: Mapping[str, str]


@dataclass(slots=True)
class Folded:
    """The table that a data topic folds to. `told`: the properties of each row's newest record. `had_ttls`: rows with a
    record that has an expiry of the row or of a column. `key_bytes`: the Avro key of each row, by which events are
    looked up."""

    rows: dict[Key, dict[Key, Mapping[str, Form]]] = field(default_factory=dict)
    statics: dict[Key, Mapping[str, Form]] = field(default_factory=dict)
    told: dict[tuple[Key, Key], Mapping[str, str]] = field(default_factory=dict)
    had_ttls: set[tuple[Key, Key]] = field(default_factory=set)
    key_bytes: dict[tuple[Key, Key], bytes] = field(default_factory=dict)
    records: int = 0
    markers: int = 0
    duplicates: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Partition:
    """The records of one Cassandra partition: by row, of the static row, and markers (ranges by `_range_key`)."""

    rows: dict[Key, list[DataRecord]] = field(default_factory=lambda: defaultdict(list))
    statics: list[DataRecord] = field(default_factory=list)
    deletions: list[DataRecord] = field(default_factory=list)
    ranges: dict[bytes, list[DataRecord]] = field(default_factory=lambda: defaultdict(list))


def fold(
    shape: TableShape, records: Iterable[DataRecord], *, instances: int = 1, clearings: Sequence[Clearing] = ()
) -> Folded:
    """Fold all records of the table's topic: topic partition by topic partition, each in its order.

    With one instance, a record of an earlier life behind one of a later life in the same topic partition is a problem:
    a single instance of the connector never publishes them in this order.
    """
    known = list(records)
    folded = Folded(records=len(known))
    lives = _Lives(known)
    if known and lives.newest[1] != shape.table_id:
        folded.problems.append(
            f"{shape.name}: the topic's latest table id is {lives.newest[1]}, that of the table is {shape.table_id}"
        )
    if instances == 1:
        folded.problems += lives.left_behind(shape.name, known)
    seen: set[tuple[object, ...]] = set()
    partitions: dict[Key, _Partition] = defaultdict(_Partition)
    for record in known:
        properties = record.properties
        change = record.key_bytes, properties["kind"], properties.get("node"), properties.get("segpos")
        folded.duplicates += change in seen
        seen.add(change)
        if any(_is_cleared(record, each) for each in clearings):
            continue
        if lives.of(record) == lives.newest and properties.get("table_id", "") == shape.table_id:
            _take(shape, folded, partitions[_key(shape.partition, record.key)], record)
    for pk, partition in partitions.items():
        _judge(shape, folded, pk, partition)
    return folded


def _is_cleared(record: DataRecord, clearing: Clearing) -> bool:
    properties = record.properties
    if properties.get("table_id") != clearing.table_id:
        return False
    generation = properties.get("table_generation")
    if None not in (generation, clearing.generation) and int(generation or 0) != clearing.generation:
        return False
    last = clearing.positions[record.partition] if record.partition < len(clearing.positions) else None
    if last is None or record.position > last:
        return False
    if clearing.kind == "drop":
        return True
    if "writetime" not in properties:
        return record.value_bytes is not None
    return _writetime_us(record) < clearing.time_ms * 1000


class _Lives:
    """The life of the table that a record belongs to: the generation (or else the time inside the id) and the table
    id."""

    def __init__(self, records: Iterable[DataRecord]) -> None:
        self._generations: dict[str, int] = {}
        known = list(records)
        for record in known:
            if (told := record.properties.get("table_generation")) is not None:
                table_id = record.properties.get("table_id", "")
                self._generations[table_id] = max(int(told), self._generations.get(table_id, 0))
        self.newest = max(map(self.of, known), default=(0, ""))

    def of(self, record: DataRecord) -> tuple[int, str]:
        """Return the life of a record. A record without a generation belongs to the latest life of its table id."""
        table_id = record.properties.get("table_id", "")
        told = record.properties.get("table_generation")
        if told is not None:
            return int(told), table_id
        return self._generations.get(table_id, _time_of(table_id)), table_id

    def left_behind(self, table: str, records: Iterable[DataRecord]) -> list[str]:
        """Describe the records of an earlier life that are behind a record of a later life in their topic partition."""
        latest: dict[int, tuple[tuple[int, str], str]] = {}
        found = []
        for record in records:
            life, place = self.of(record), _place(record)
            before = latest.get(record.partition)
            if before is None or life > before[0]:
                latest[record.partition] = life, place
            elif life < before[0]:
                found.append(
                    f"{table}: a record of table id {life[1]} stands behind one of {before[0][1]}"
                    f" ({place}; the newer one came first with {before[1]})"
                )
        return found


def _time_of(table_id: str) -> int:
    """The time of a table id in microseconds since the epoch; 0 if the id has no time."""
    try:
        parsed = uuid.UUID(table_id)
    except ValueError:
        return 0
    return (parsed.time - _UUID_EPOCH) // 10 if parsed.version == 1 else 0


def _place(record: DataRecord) -> str:
    properties = record.properties
    return f"{properties['kind']} of {properties.get('segpos')}, published at {record.published_ms} ms"


def newest(records: Sequence[DataRecord]) -> DataRecord:
    """The latest record of one key. Its `published_ms` is at least that of the records before it in its topic
    partition."""
    last: dict[int, DataRecord] = {}
    for record in sorted(records, key=lambda each: (each.partition, each.place)):
        before = last.get(record.partition)
        published_ms = record.published_ms if before is None else max(before.published_ms, record.published_ms)
        last[record.partition] = replace(record, published_ms=published_ms)
    return max(last.values(), key=lambda each: (each.published_ms, _writetime_us(each), each.partition))


def _writetime_us(record: DataRecord) -> int:
    return int(record.properties.get("writetime", _NEVER_WRITTEN))


def _is_behind(marker: DataRecord, record: DataRecord) -> bool:
    """Return whether a marker is later than a record of another key."""
    if marker.partition == record.partition:
        return marker.place > record.place
    if marker.published_ms != record.published_ms:
        return marker.published_ms > record.published_ms
    return int(marker.properties.get("deletion_time", _NEVER_WRITTEN)) >= _writetime_us(record)


def _take(shape: TableShape, folded: Folded, partition: _Partition, record: DataRecord) -> None:
    match record.properties["kind"]:
        case "partition_deletion":
            folded.markers += 1
            partition.deletions.append(record)
        case "range_deletion":
            folded.markers += 1
            partition.ranges[_range_key(record)].append(record)
        case "static_row":
            partition.statics.append(record)
        case "row" | "row_deletion":
            partition.rows[_key(shape.clustering, record.key)].append(record)
        case kind:
            folded.problems.append(f"{shape.name}: a record of unknown kind {kind}")


def _range_key(record: DataRecord) -> bytes:
    """The key of a range marker: markers of the same range in the same partition have the same key."""
    told = [record.properties.get(f"range_{name}", "") for name in ("start", "end", "start_inclusive", "end_inclusive")]
    return record.key_bytes + json.dumps(told).encode()


def _judge(shape: TableShape, folded: Folded, pk: Key, partition: _Partition) -> None:
    rows = folded.rows.setdefault(pk, {})
    wipes = [newest(partition.deletions)] if partition.deletions else []
    ranges = [newest(each) for each in partition.ranges.values()]
    for ck, records in partition.rows.items():
        record = newest(records)
        folded.told[pk, ck] = record.properties
        folded.key_bytes[pk, ck] = record.key_bytes
        if any({"expires_at", "columns_expire_at"} & each.properties.keys() for each in records):
            folded.had_ttls.add((pk, ck))
        covering = [*wipes, *(each for each in ranges if _is_in_range(shape, ck, each))]
        if record.value is not None and not any(_is_behind(marker, record) for marker in covering):
            rows[ck] = _values(shape.regular, record.value)
    if shape.static:
        _add_statics(shape, folded, pk, partition, wipes)


def _add_statics(
    shape: TableShape, folded: Folded, pk: Key, partition: _Partition, wipes: Sequence[DataRecord]
) -> None:
    """Take the static columns from the latest static row or row with a value that no later partition deletion
    removes."""
    of_rows = [[each for each in records if each.value is not None] for records in partition.rows.values()]
    sources = [newest(records) for records in (partition.statics, *of_rows) if records]
    left = [each for each in sources if not any(_is_behind(marker, each) for marker in wipes)]
    if left:
        source = newest(left)
        folded.statics[pk] = {} if source.value is None else _values(shape.static, source.value)


def _key(columns: Mapping[str, str], record: Mapping[str, object]) -> Key:
    return tuple(form_of_avro(cql_type, record[avro_name(name)]) for name, cql_type in columns.items())


def _values(columns: Mapping[str, str], record: Mapping[str, object]) -> dict[str, Form]:
    """The values of these columns; null for a column that the record's schema does not have."""
    return {name: form_of_avro(cql_type, record.get(avro_name(name))) for name, cql_type in columns.items()}


def _is_in_range(shape: TableShape, ck: Key, marker: DataRecord) -> bool:
    properties = marker.properties
    reversed_columns = set(json.loads(properties.get("range_reversed", "[]")))
    signs = [-1 if name in reversed_columns else 1 for name in shape.clustering]
    start, end = ((_prefix(shape, each) if each is not None else None) for each in marker.bounds)
    behind_start = start is None or _is_in(ck, start, signs, 1, properties["range_start_inclusive"] == "true")
    before_end = end is None or _is_in(ck, end, signs, -1, properties["range_end_inclusive"] == "true")
    return behind_start and before_end


def _prefix(shape: TableShape, bound: Mapping[str, object]) -> Key:
    return tuple(form for form in _key(shape.clustering, bound) if form is not None)


def _is_in(ck: Key, bound: Key, signs: Sequence[int], side: int, inclusive: bool) -> bool:
    """Return whether a row is on this side of a bound (1: behind a start, -1: before an end)."""
    for own, other, sign in zip(ck, bound, signs, strict=False):
        if own != other:
            assert isinstance(own, int | str) and isinstance(other, int | str)
            is_greater = own > other  # type: ignore[operator]
            return is_greater == (sign * side > 0)
    return inclusive
