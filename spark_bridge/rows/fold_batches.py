"""The folding rules over Arrow batches, in Spark's Python workers: records in, folded keys out.

The batches of a task hold complete Cassandra partitions, one after the other (sorted by `owner`), so a task keeps one
of them in memory at a time. Values pass through unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema

from spark_bridge.rows.fold import (
    NOTHING,
    Bounds,
    Deleted,
    FoldedKey,
    Going,
    KeyRecords,
    Passing,
    Place,
    Rules,
    Valued,
)

__all__ = [
    "BOUNDS",
    "FOLDED_SCHEMA",
    "FOLD_COLUMNS",
    "KEPT_SCHEMA",
    "fold_batches",
    "folded_table",
]

_TIME: Final = pa.timestamp("us", "UTC")
_PLACE: Final = pa.struct(
    [
        ("position", pa.struct([("ledger", pa.int64()), ("entry", pa.int64()), ("index", pa.int32())])),
        ("partition", pa.int32()),
        ("clock", _TIME),
        ("writetime", pa.int64()),
    ]
)
BOUNDS: Final = tuple(Bounds._fields)
_BOUNDS: Final = pa.struct([(name, pa.int64() if name == "schema_version" else pa.string()) for name in BOUNDS])
_VALUED: Final = pa.struct(
    [
        ("value", pa.binary()),
        ("schema_version", pa.int64()),
        ("at", _PLACE),
        ("expires_at", pa.int64()),
        ("is_removed", pa.bool_()),
    ]
)
_DELETED: Final = pa.struct([("at", _PLACE), ("deletion_time", pa.int64())])
_PASSING: Final = pa.struct([("expires_at", pa.int64()), ("at", _PLACE)])
_GOING: Final = pa.struct(
    [
        ("columns_expire_at", pa.string()),
        ("cells_expire_at", pa.int64()),
        ("is_sure", pa.bool_()),
    ]
)
_KEPT: Final = pa.schema(
    [
        ("owner", pa.string()),
        ("key", pa.binary()),
        ("scope", pa.string()),
        ("bounds", _BOUNDS),
        ("key_version", pa.int64()),
        ("valued", _VALUED),
        ("deleted", _DELETED),
        ("lasting", _PLACE),
        ("passing", _PASSING),
        ("going", _GOING),
        ("static_columns", pa.string()),
    ]
)
_FOLDED: Final = pa.schema(
    [
        *_KEPT,
        ("is_dropped", pa.bool_()),
        ("is_alive", pa.bool_()),
        ("is_gone", pa.bool_()),
        ("is_static_only", pa.bool_()),
        ("removed_us", pa.int64()),
        ("writetime_us", pa.int64()),
        ("next_expiry_s", pa.int64()),
        ("gone_columns", pa.list_(pa.string())),
        ("static_value", pa.binary()),
        ("static_version", pa.int64()),
        ("static_names", pa.list_(pa.string())),
        ("place", pa.string()),
    ]
)

KEPT_SCHEMA: Final = from_arrow_schema(_KEPT)
"""Columns that a fold keeps of a key for the next fold: those of a mirror's `records`."""
FOLDED_SCHEMA: Final = from_arrow_schema(_FOLDED)
"""One row for each key, scope and range: `spark_bridge.rows.fold.FoldedKey` as columns."""

_MANY_KEYS: Final = 4096
_MANY_BYTES: Final = 8 << 20


class _FoldRow(NamedTuple):
    """One row of the input: a record, or a row that an earlier fold kept.

    A kept row has its content in the column `kept`; of the columns after `bounds`, only `key_version` and `run` are
    then not null. A later fold of the same Cassandra partition has a higher `run`, and replaces all rows of the earlier
    one.
    """

    owner: str
    key: bytes
    scope: str
    bounds: dict[str, object] | None
    key_version: int
    value: bytes | None
    ledger: int
    entry: int
    batch_index: int
    partition: int
    clock_us: int | None
    writetime: int | None
    expires_at: int | None
    columns_expire_at: str | None
    cells_expire_at: int | None
    is_sure: bool
    deletion_time: int | None
    static_columns: str | None
    run: int | None


FOLD_COLUMNS: Final = (*_FoldRow._fields, "kept")
"""Columns of the batches: see `spark_bridge.rows.folding`."""


def fold_batches(rules: Rules, clock_s: int | None) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for `mapInArrow`.

    `clock_s`: the time, in seconds since the epoch (None: when the task runs).
    """

    def fold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        now_s = int(time.time()) if clock_s is None else clock_s
        found: list[tuple[str, FoldedKey]] = []
        size = 0
        for partition in _partitions(batches, rules):
            judged = rules.fold(partition.records(), now_s)
            if partition.was_kept and all(each.is_dropped for each in judged):
                judged.append(_nothing_left())
            for each in judged:
                found.append((partition.owner, each))
                size += _size(each)
            if len(found) >= _MANY_KEYS or size >= _MANY_BYTES:
                yield _to_arrow(found)
                found, size = [], 0
        if found:
            yield _to_arrow(found)

    return fold


def folded_table(rows: pa.Table, rules: Rules, clock_s: int | None) -> pa.Table:
    """Fold all rows of complete Cassandra partitions in this process. The rows may be in any order."""
    by_owner = rows.take(pc.sort_indices(rows["owner"])).combine_chunks()
    return pa.Table.from_batches(fold_batches(rules, clock_s)(by_owner.to_batches()), schema=_FOLDED)


def _partitions(batches: Iterable[pa.RecordBatch], rules: Rules) -> Iterator[_Partition]:
    partition: _Partition | None = None
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in _FoldRow._fields]
        kept = _kept_parts(batch.column("kept"))
        for number, values in enumerate(zip(*columns, strict=True)):
            row = _FoldRow(*values)
            if partition is None or row.owner != partition.owner:
                if partition is not None:
                    yield partition
                partition = _Partition(row.owner, rules)
            partition.add(row, None if kept is None else kept[number])
    if partition is not None:
        yield partition


class _Partition:
    """The records of one Cassandra partition."""

    def __init__(self, owner: str, rules: Rules) -> None:
        self.owner = owner
        self._rules = rules
        self._known = dict[tuple[bytes, str, Bounds | None], KeyRecords]()
        self._run = -1
        self._kept: list[tuple[_FoldRow, _Kept]] = []

    @property
    def was_kept(self) -> bool:
        """True when an earlier fold kept something of this partition."""
        return self._run >= 0

    def add(self, row: _FoldRow, kept: _Kept | None) -> None:
        """Add a record, or a row that an earlier fold kept.

        If several folds kept rows, those of the last fold count.
        """
        if kept is None:
            at = Place((row.ledger, row.entry, row.batch_index), row.partition, row.clock_us, row.writetime)
            if not self._rules.clearings or not self._rules.is_cleared(at, is_deletion=row.value is None):
                _add_record(self._of(row), row, at)
            return
        run = row.run or 0
        if run > self._run:
            self._run, self._kept = run, []
        if run == self._run:
            self._kept.append((row, kept))

    def records(self) -> Iterable[KeyRecords]:
        """Return what is known of each key, after all rows were added."""
        for row, kept in self._kept:
            if row.scope != NOTHING:
                _add_kept(self._of(row), kept, self._rules)
        return self._known.values()

    def _of(self, row: _FoldRow) -> KeyRecords:
        bounds = None if row.bounds is None else Bounds(**row.bounds)  # type: ignore[arg-type]  # Arrow has the fields as the schema says
        name = row.key, row.scope, bounds
        records = self._known.get(name)
        if records is None:
            records = self._known[name] = KeyRecords(row.key, row.scope, bounds)
        records.key_version = max(records.key_version, row.key_version)
        return records


def _nothing_left() -> FoldedKey:
    """The placeholder that replaces all that was kept of a Cassandra partition; see `NOTHING`."""
    return FoldedKey(
        key=b"",
        key_version=0,
        scope=NOTHING,
        bounds=None,
        valued=None,
        deleted=None,
        lasting=None,
        passing=None,
        static_columns=None,
    )


def _add_record(records: KeyRecords, row: _FoldRow, at: Place) -> None:
    if row.value is None:
        records.add_deletion(Deleted(at, row.deletion_time))
    else:
        going = Going(row.columns_expire_at, row.cells_expire_at, row.is_sure)
        records.add_value(Valued(at, row.value, row.key_version, row.expires_at, going))
    if row.static_columns is not None:
        records.name_statics(row.static_columns, at)


class _Kept(NamedTuple):
    """The result of an earlier fold for a key."""

    valued: Valued | None
    deleted: Deleted | None
    lasting: Place | None
    passing: Passing | None
    static_columns: str | None


def _add_kept(records: KeyRecords, kept: _Kept, rules: Rules) -> None:
    """Add what an earlier fold kept, without records that a clearing removed since.

    A kept deletion stays: it removes only records that were published before it.
    """
    if kept.valued is not None and not rules.is_cleared(kept.valued.at):
        records.add_kept_value(kept.valued)
    if kept.deleted is not None:
        records.add_deletion(kept.deleted)
    if kept.lasting is not None and not rules.is_cleared(kept.lasting):
        records.add_lasting(kept.lasting)
    if kept.passing is not None and not rules.is_cleared(kept.passing.at):
        records.add_passing(kept.passing)
    places = [each.at for each in (kept.valued, kept.deleted) if each is not None]
    if kept.static_columns is not None:
        at = max(places, key=lambda each: each.by_clock_and_position, default=None)
        records.name_statics(kept.static_columns, at)


def _kept_parts(column: pa.StructArray) -> list[_Kept | None] | None:
    """The kept part of each row of the batch; None if no row has one."""
    if column.null_count == len(column):
        return None
    valued, deleted, passing = (pc.struct_field(column, [name]) for name in ("valued", "deleted", "passing"))
    going = pc.struct_field(column, ["going"])
    return [
        None if not is_kept else _Kept(*parts)
        for is_kept, *parts in zip(
            column.is_valid().to_pylist(),
            _valued(valued, going),
            _deleted(deleted),
            _places(pc.struct_field(column, ["lasting"])),
            _passing(passing),
            pc.struct_field(column, ["static_columns"]).to_pylist(),
            strict=True,
        )
    ]


def _valued(column: pa.StructArray, going: pa.StructArray) -> list[Valued | None]:
    values, versions, expiries, removed = (
        _list(column, name) for name in ("value", "schema_version", "expires_at", "is_removed")
    )
    goings = [
        Going(columns, cells, bool(is_sure))
        for columns, cells, is_sure in zip(*[_list(going, name) for name in Going._fields], strict=True)
    ]
    return [
        None if at is None else Valued(at, value, version, expires_at, gone, bool(is_removed))
        for at, value, version, expires_at, gone, is_removed in zip(
            _places(pc.struct_field(column, ["at"])), values, versions, expiries, goings, removed, strict=True
        )
    ]


def _deleted(column: pa.StructArray) -> list[Deleted | None]:
    places = _places(pc.struct_field(column, ["at"]))
    return [
        None if at is None else Deleted(at, deletion_time)
        for at, deletion_time in zip(places, _list(column, "deletion_time"), strict=True)
    ]


def _passing(column: pa.StructArray) -> list[Passing | None]:
    places = _places(pc.struct_field(column, ["at"]))
    return [
        None if at is None else Passing(expires_at, at)
        for at, expires_at in zip(places, _list(column, "expires_at"), strict=True)
    ]


def _places(column: pa.StructArray) -> list[Place | None]:
    ledgers, entries, indexes = (_list(column, "position", name) for name in ("ledger", "entry", "index"))
    clocks = pc.struct_field(column, ["clock"]).cast(pa.int64()).to_pylist()
    partitions, writetimes = _list(column, "partition"), _list(column, "writetime")
    return [
        None if ledger is None else Place((ledger, entry, index), partition, clock, writetime)
        for ledger, entry, index, partition, clock, writetime in zip(
            ledgers, entries, indexes, partitions, clocks, writetimes, strict=True
        )
    ]


def _list(column: pa.StructArray, *path: str) -> list[Any]:
    found: list[Any] = pc.struct_field(column, list(path)).to_pylist()
    return found


def _size(one: FoldedKey) -> int:
    value = 0 if one.valued is None else len(one.valued.value)
    return value + (0 if one.static_source is None else len(one.static_source.value))


def _to_arrow(found: Sequence[tuple[str, FoldedKey]]) -> pa.RecordBatch:
    keys = [each for _, each in found]
    sources = [each.static_source for each in keys]
    columns = {
        "owner": [owner for owner, _ in found],
        "bounds": [None if each.bounds is None else each.bounds._asdict() for each in keys],
        "valued": _valued_array([each.valued for each in keys]),
        "deleted": _deleted_array([each.deleted for each in keys]),
        "lasting": _place_array([each.lasting for each in keys]),
        "passing": _passing_array([each.passing for each in keys]),
        "going": _going_array([None if each.valued is None else each.valued.going for each in keys]),
        "next_expiry_s": [each.expires_at for each in keys],
        "static_value": [None if each is None else each.value for each in sources],
        "static_version": [None if each is None else each.version for each in sources],
    }
    arrays = []
    for name, arrow_type in zip(_FOLDED.names, _FOLDED.types, strict=True):
        column = columns.get(name)
        if column is None:
            column = [getattr(each, name) for each in keys]
        arrays.append(column if isinstance(column, pa.Array) else pa.array(column, arrow_type))
    return pa.RecordBatch.from_arrays(arrays, schema=_FOLDED)


def _place_array(places: Sequence[Place | None]) -> pa.StructArray:
    given = [each or _NO_PLACE for each in places]
    position = _struct(
        _PLACE.field("position").type, [[each.position[at] for each in given] for at in range(3)], [False] * len(given)
    )
    columns = [
        position,
        [each.partition for each in given],
        [each.clock for each in given],
        [each.writetime_us for each in given],
    ]
    return _struct(_PLACE, columns, [each is None for each in places])


_NO_PLACE: Final = Place((0, 0, -1), -1, None, None)


def _valued_array(found: Sequence[Valued | None]) -> pa.StructArray:
    columns = [
        [None if each is None else each.value for each in found],
        [None if each is None else each.schema_version for each in found],
        _place_array([None if each is None else each.at for each in found]),
        [None if each is None else each.expires_at for each in found],
        [None if each is None else each.is_removed for each in found],
    ]
    return _struct(_VALUED, columns, [each is None for each in found])


def _deleted_array(found: Sequence[Deleted | None]) -> pa.StructArray:
    columns = [
        _place_array([None if each is None else each.at for each in found]),
        [None if each is None else each.deletion_time for each in found],
    ]
    return _struct(_DELETED, columns, [each is None for each in found])


def _passing_array(found: Sequence[Passing | None]) -> pa.StructArray:
    columns = [
        [None if each is None else each.expires_at for each in found],
        _place_array([None if each is None else each.at for each in found]),
    ]
    return _struct(_PASSING, columns, [each is None for each in found])


def _going_array(found: Sequence[Going | None]) -> pa.StructArray:
    columns = [[None if each is None else getattr(each, name) for each in found] for name in Going._fields]
    return _struct(_GOING, columns, [each is None for each in found])


def _struct(arrow_type: pa.StructType, columns: Sequence[object], is_null: Sequence[bool]) -> pa.StructArray:
    fields = list(arrow_type)
    arrays = [
        each if isinstance(each, pa.Array) else pa.array(each, field.type)
        for each, field in zip(columns, fields, strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(is_null, pa.bool_()))
