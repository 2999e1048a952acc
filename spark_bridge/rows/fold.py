"""The folding rules: from the records of a Cassandra partition to its rows. Plain values, no Spark.

The newest record of a key wins. A marker removes the earlier rows in its scope. The newest record of a Cassandra
partition that has a value gives its static columns. A row whose data has expired is gone, and so is a column that
expires alone.

Which of two records is newer:

- In the same topic partition, the one with the later position.
- In different topic partitions, ledgers have no order between them. There, the one that was published later is newer,
  then the one with the higher write time, then the one in the topic partition with the higher number. A record counts
  as published no earlier than the earlier records of its key in its topic partition, because another producer's clock
  may lag.

A key has records in several topic partitions after their number was increased.

A folded result can be folded again with later records, in any steps, with the same final result.

The rules are in one module, above 500 lines, so that each of them stands in one place and can be tested without Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from spark_bridge.rows.cleared import clears
from spark_bridge.topics.table_clearing import TableClearing

__all__ = [
    "NOTHING",
    "PARTITION",
    "RANGE",
    "ROW",
    "STATIC",
    "Bounds",
    "Covers",
    "Deleted",
    "FoldedKey",
    "Going",
    "KeyRecords",
    "Passing",
    "Place",
    "Rules",
    "StaticSource",
    "Valued",
]

ROW: Final = "row"
STATIC: Final = "static"
PARTITION: Final = "partition"
RANGE: Final = "range"
"""Scope of a record: a row, a partition's static row, all rows of a partition, or a range of its rows."""
NOTHING: Final = "nothing"
"""Scope of a kept row without content. A fold skips it, but it replaces what earlier folds kept of its partition.

`fold_batches` writes it when nothing is left of a Cassandra partition of which an earlier fold kept something.
`KeptRecords.read` gives this scope to a marker that is forgotten.
"""

_Order = tuple[int, tuple[int, int, int]]
"""Time of publication in microseconds, then position."""

_FEW: Final = 64
_EARLIEST: Final = -(1 << 63)
_BEFORE_ALL: Final[_Order] = (_EARLIEST, (-1, -1, -1))
_SECOND_US: Final = 1_000_000


class Place(NamedTuple):
    """Place of a record: its topic partition, and there ledger, entry and index in the batch (-1: no batch).

    `clock` is the time of publication in microseconds. It is None if the topic has no partitions: positions then give
    the whole order. `writetime_us` is None if the record has no write time.
    """

    position: tuple[int, int, int]
    partition: int
    clock: int | None
    writetime_us: int | None

    @property
    def by_clock(self) -> tuple[int, int, int]:
        """Order of places in different topic partitions.

        A place without a clock, or without a write time, comes first.
        """
        clock = _EARLIEST if self.clock is None else self.clock
        return clock, _EARLIEST if self.writetime_us is None else self.writetime_us, self.partition

    @property
    def by_clock_and_position(self) -> _Order:
        """Order of the records about a Cassandra partition's static columns. They are mostly in one topic partition."""
        return (_EARLIEST if self.clock is None else self.clock), self.position

    def is_behind(self, other: Place) -> bool:
        """True when this record is later than the other one of the same key."""
        if self.partition == other.partition:
            return self.position > other.position
        return self.by_clock > other.by_clock

    @property
    def message_id(self) -> str:
        """The message id, as the raw rows show it."""
        ledger, entry, index = self.position
        text = f"{ledger}:{entry}:{self.partition}"
        return text if index < 0 else f"{text}:{index}"


class Going(NamedTuple):
    """What a record says about the expiry of its row.

    `columns_expire_at`: JSON object of seconds by column. `cells_expire_at`: the second at which the last cell expires.
    `is_sure`: no row marker of an earlier INSERT keeps the row beyond its expiry.
    """

    columns_expire_at: str | None = None
    cells_expire_at: int | None = None
    is_sure: bool = False


class Valued(NamedTuple):
    """A record with a value. `is_removed`: a deletion removed its row, and may be forgotten since.

    A removed record is kept only as long as it gives the static columns of its partition.
    """

    at: Place
    value: bytes
    schema_version: int
    expires_at: int | None
    going: Going
    is_removed: bool = False


class Deleted(NamedTuple):
    """A record without a value; the time is in microseconds."""

    at: Place
    deletion_time: int | None


class Passing(NamedTuple):
    """The record with a TTL that expires last, among all records of a key."""

    expires_at: int
    at: Place


class _Placed(NamedTuple):
    at: Place


class Bounds(NamedTuple):
    """The range of a range deletion, as the record's properties describe it.

    The bounds are Avro keys of `schema_version`, as base64. `range_reversed` is a JSON list of column names,
    `range_types` a JSON object of types by column name (None: no such column, or a record of an earlier version).
    """

    range_start: str | None
    range_end: str | None
    range_start_inclusive: str | None
    range_end_inclusive: str | None
    range_reversed: str | None
    range_types: str | None
    schema_version: int


_Record = TypeVar("_Record", Valued, Deleted, _Placed)


@dataclass(slots=True)
class KeyRecords:
    """Candidates of one key in one scope (and of one range). The newest of each kind counts.

    `lasting`: records whose row has no TTL. `sure`: records that are sure of their row's expiry. No earlier record
    keeps the row beyond it.
    `static_columns`: the latest list of the static columns' names, as JSON, with its order. ALTER TABLE makes the list
    longer or shorter.
    """

    key: bytes
    scope: str
    bounds: Bounds | None = None
    key_version: int = 0
    valued: list[Valued] = field(default_factory=list)
    deleted: list[Deleted] = field(default_factory=list)
    lasting: list[_Placed] = field(default_factory=list)
    sure: list[_Placed] = field(default_factory=list)
    passing: Passing | None = None
    static_columns: tuple[_Order, str] | None = None

    def add_value(self, record: Valued) -> None:
        """Add a record with a value."""
        self.add_kept_value(record)
        if record.expires_at is not None:
            self.add_passing(Passing(record.expires_at, record.at))
        elif record.going.cells_expire_at is None:
            # a record that may or may not expire with its last cell does not decide about the records before it
            self.add_lasting(record.at)

    def add_kept_value(self, record: Valued) -> None:
        """Add a value that an earlier fold kept.

        That fold kept the expiry separately (`add_lasting`, `add_passing`).
        """
        _add(self.valued, record)
        if record.going.is_sure:
            _add(self.sure, _Placed(record.at))

    def add_deletion(self, record: Deleted) -> None:
        """Add a record without a value."""
        _add(self.deleted, record)

    def add_lasting(self, at: Place) -> None:
        """Add the place of a record whose row has no TTL."""
        _add(self.lasting, _Placed(at))

    def add_passing(self, passing: Passing) -> None:
        """Add a record whose row has a TTL."""
        if self.passing is None or passing > self.passing:
            self.passing = passing

    def name_statics(self, names: str, at: Place | None) -> None:
        """Add a list of the table's static columns (JSON), from the record at `at`.

        None: a marker removed the record. Its list then counts as older than all others.
        """
        named = _BEFORE_ALL if at is None else at.by_clock_and_position, names
        if self.static_columns is None or named > self.static_columns:
            self.static_columns = named


class StaticSource(NamedTuple):
    """The record that gives a partition's static columns."""

    value: bytes
    version: int
    writetime_us: int | None
    going: Going


class _Seconds(NamedTuple):
    """Expiry of columns that expire alone: the expired ones, when the last one expired, and when the next one will."""

    gone: Sequence[str]
    last_gone_us: int | None
    next_s: int | None

    @classmethod
    def of(
        cls, going: Going, now_s: int, *, only: Sequence[str] | None = None, without: Sequence[str] = ()
    ) -> _Seconds:
        """Return this for all columns of a record, or for some of them."""
        if going.columns_expire_at is None:
            return _NONE_GOES
        all_seconds = _json_object(going.columns_expire_at)
        seconds = {
            name: second
            for name, second in all_seconds.items()
            if (only is None or name in only) and name not in without
        }
        gone = {name: second for name, second in seconds.items() if second <= now_s}
        last_s = _latest(gone.values())
        later = [second for second in seconds.values() if second > now_s]
        return cls(tuple(gone), None if last_s is None else last_s * _SECOND_US, _soonest(later))


_NONE_GOES: Final = _Seconds((), None, None)


@dataclass(slots=True)
class FoldedKey:
    """The result of a fold for one key in one scope: what is kept for later folds, and the content of the table's row.

    `is_alive`: the key is a row of the table. `is_gone`: the scope is a row, and the row does not exist. `removed_us`:
    since when it does not exist, in microseconds (None: not known). `is_static_only`: the key stands for a partition
    that has static columns and no rows. `is_dropped`: nothing of the key needs to be kept for later folds.
    `expires_at`: the second at which the row or one of its columns expires next (None: nothing expires).
    `gone_columns`: names of expired columns.
    """

    key: bytes
    key_version: int
    scope: str
    bounds: Bounds | None
    valued: Valued | None
    deleted: Deleted | None
    lasting: Place | None
    passing: Passing | None
    static_columns: str | None
    is_alive: bool = False
    is_gone: bool = False
    is_dropped: bool = False
    is_static_only: bool = False
    removed_us: int | None = None
    writetime_us: int | None = None
    expires_at: int | None = None
    gone_columns: Sequence[str] = ()
    static_source: StaticSource | None = None
    static_names: Sequence[str] = ()

    @property
    def place(self) -> str:
        """Message id of the value, or of the deletion where there is no value."""
        known = self.valued or self.deleted
        return "" if known is None else known.at.message_id

    def show_statics(self, names: Sequence[str], given: StaticSource | None, going: _Seconds) -> None:
        """Add the partition's static columns to the row. If one of them expires, this counts for the row, too."""
        self.static_source, self.static_names = given, names
        if given is not None:
            self.gone_columns = (*self.gone_columns, *going.gone)
            self.writetime_us = _latest([self.writetime_us, given.writetime_us, going.last_gone_us])
            self.expires_at = _soonest([self.expires_at, going.next_s])


Covers = Callable[[Bounds, bytes, int], bool]
"""True if a range covers the row with this key in Avro, by this schema version."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The folding rules of one table. `static_names`: names of its static columns (None: the records name them).

    `clearings`: the truncations and drops that count, of the table life to which the records belong.
    """

    has_clustering: bool
    static_names: Sequence[str] | None
    covers: Covers
    clearings: Sequence[TableClearing] = ()

    def is_cleared(self, at: Place, *, is_deletion: bool = False) -> bool:
        """Return True if a truncation or a drop removes the record at `at`. `is_deletion`: the record has no value."""
        return any(
            clears(each, at.partition, at.position, at.writetime_us, is_deletion=is_deletion) for each in self.clearings
        )

    def fold(self, records: Iterable[KeyRecords], now_s: int) -> list[FoldedKey]:
        """Fold all that is known of one Cassandra partition. `now_s`: the time, in seconds since the epoch."""
        known = [_Judgement(each) for each in records]
        wiped, names = None, tuple[str, ...]()
        if self.has_clustering:
            names = _static_names(known) if self.static_names is None else tuple(self.static_names)
            of_partition = [each.folded.deleted for each in known if each.folded.scope == PARTITION]
            wiped = max((each for each in of_partition if each), key=lambda each: each.at.position, default=None)
        ranges = [each.folded for each in known if each.folded.scope == RANGE]
        for each in known:
            if each.folded.scope == ROW:
                each.judge([*([wiped] if wiped else []), *self._covering(ranges, each.folded)], names, now_s)
        if self.has_clustering:
            _add_statics(known, names, wiped, now_s)
        return [each.folded for each in known]

    def _covering(self, ranges: Iterable[FoldedKey], row: FoldedKey) -> list[Deleted]:
        return [
            each.deleted
            for each in ranges
            if each.deleted and each.bounds and self.covers(each.bounds, row.key, row.key_version)
        ]


class _Judgement:
    """One key while its partition is judged."""

    def __init__(self, records: KeyRecords) -> None:
        lasting, sure = newest(records.lasting), newest(records.sure)
        if lasting is not None and sure is not None and sure.at.is_behind(lasting.at):
            lasting = None
        self.named = records.static_columns
        self.folded = FoldedKey(
            key=records.key,
            key_version=records.key_version,
            scope=records.scope,
            bounds=records.bounds,
            valued=newest(records.valued),
            deleted=newest(records.deleted),
            lasting=None if lasting is None else lasting.at,
            passing=records.passing,
            static_columns=None if records.static_columns is None else records.static_columns[1],
        )

    def judge(self, markers: Sequence[Deleted], static_names: Sequence[str], now_s: int) -> None:
        """Decide whether the row exists, which of its columns have expired, and what is kept of it.

        `markers`: the deletions that cover the row. If the newest record is sure of the row's expiry, its `expires_at`
        decides. Otherwise, the row has expired when everything written since its last removal had a TTL and the latest
        of these TTLs has passed.
        """
        one, valued = self.folded, self.folded.valued
        deleted_us = _latest([self._deletion_time(), *[each.deletion_time for each in markers]])
        if valued is None:
            one.is_gone, one.is_dropped, one.removed_us = True, True, deleted_us
            return
        is_sure = valued.going.is_sure
        is_removed = valued.is_removed or self._is_removed(valued.at, markers)
        passing = None if one.passing is None or self._is_removed(one.passing.at, markers) else one.passing
        lasts = one.lasting is not None and not self._is_removed(one.lasting, markers) and not is_sure
        over_s = valued.expires_at
        if not is_sure:
            over_s = passing.expires_at if passing is not None else over_s
            over_s = None if over_s is None else _latest([over_s, valued.going.cells_expire_at])
        is_over = not lasts and over_s is not None and over_s <= now_s
        one.is_alive = not is_removed and not is_over
        one.is_gone = one.is_dropped = not one.is_alive
        if one.is_alive:
            self._show(valued, _Seconds.of(valued.going, now_s, without=static_names), None if lasts else over_s)
        else:
            one.removed_us = deleted_us if is_removed or over_s is None else over_s * _SECOND_US
        self._keep(valued, passing, is_removed=is_removed, lasts=lasts)

    def _show(self, valued: Valued, going: _Seconds, over_s: int | None) -> None:
        one = self.folded
        one.gone_columns = tuple(going.gone)
        one.writetime_us = _latest([valued.at.writetime_us, going.last_gone_us])
        one.expires_at = _soonest([over_s, going.next_s])

    def _keep(self, valued: Valued, passing: Passing | None, *, is_removed: bool, lasts: bool) -> None:
        """Records that a deletion removed must not count again when the deletion is forgotten."""
        one = self.folded
        if is_removed:
            one.valued = valued._replace(is_removed=True)
            one.lasting = one.passing = None
            return
        if not lasts:
            one.lasting = None
        if passing is None and one.passing is not None:
            one.passing = None if valued.expires_at is None else Passing(valued.expires_at, valued.at)

    def _is_removed(self, at: Place, markers: Iterable[Deleted]) -> bool:
        """True when a later record of the same key, or a later marker, says that there is no row."""
        deleted = self.folded.deleted
        return (deleted is not None and deleted.at.is_behind(at)) or any(_is_later(each, at) for each in markers)

    def _deletion_time(self) -> int | None:
        deleted = self.folded.deleted
        if deleted is None:
            return None
        return deleted.at.writetime_us if deleted.deletion_time is None else deleted.deletion_time

    def _is_cleared(self) -> bool:
        """True for a static row whose newest record says that it has no columns any more."""
        one = self.folded
        if one.scope != STATIC or one.deleted is None:
            return False
        return one.valued is None or one.deleted.at.is_behind(one.valued.at)

    @property
    def static_place(self) -> Place | None:
        """Place of the key's record about the static columns; None if there is none."""
        one = self.folded
        judged = one.deleted if self._is_cleared() else one.valued
        return judged.at if judged is not None and one.scope in (ROW, STATIC) else None

    @property
    def static_source(self) -> StaticSource | None:
        """The static columns that the key's record gives; None if it says that there are none."""
        valued = self.folded.valued
        if valued is None or self._is_cleared():
            return None
        return StaticSource(valued.value, valued.schema_version, valued.at.writetime_us, valued.going)


def _static_names(known: Sequence[_Judgement]) -> tuple[str, ...]:
    """The latest list of static columns that the records of a partition name."""
    named = max((each.named for each in known if each.named is not None), default=None)
    return () if named is None else _json_names(named[1])


def _add_statics(known: Sequence[_Judgement], names: Sequence[str], wiped: Deleted | None, now_s: int) -> None:
    """Add the partition's static columns to all of its keys. If it has no rows, choose the key that stands for it."""
    speaking: list[tuple[Place, _Judgement]] = []
    for each in known:
        at = each.static_place
        if at is not None and wiped is not None and _is_later(wiped, at):
            if each.folded.scope == STATIC:
                each.folded.valued = each.folded.deleted = None  # it must not count again when the marker is forgotten
        elif at is not None and names:
            speaking.append((at, each))
    source = _last_to_speak(speaking)
    given = None if source is None else source.static_source
    if source is not None and given is not None:
        source.folded.is_dropped = False
    going = _NONE_GOES if given is None else _Seconds.of(given.going, now_s, only=names)
    has_rows = False
    for each in known:
        has_rows |= each.folded.is_alive
        each.folded.show_statics(names, given, going)
    if given is not None and not has_rows:
        min((each.folded for each in known), key=lambda each: (each.key, each.scope)).is_static_only = True


def _last_to_speak(speaking: Iterable[tuple[Place, _Judgement]]) -> _Judgement | None:
    """The key with the newest of these records, which are of several keys; None if there is none.

    As in `newest`, the position decides in a topic partition, and there no record is earlier than those before it.
    """
    last: dict[int, tuple[Place, _Judgement]] = {}
    clocks: dict[int, int] = {}
    for at, each in speaking:
        known = last.get(at.partition)
        if known is None or at.position > known[0].position:
            last[at.partition] = at, each
        if at.clock is not None:
            clocks[at.partition] = max(at.clock, clocks.get(at.partition, at.clock))
    found = max(last.values(), key=lambda each: (clocks.get(each[0].partition, 0), each[0].position), default=None)
    return None if found is None else found[1]


def newest(records: Sequence[_Record]) -> _Record | None:
    """Return the latest of some records of one key, with the clock by which it is compared."""
    if len(records) < 2:
        return records[0] if records else None
    return max(_newest_of_each(records), key=lambda each: each.at.by_clock)


def _newest_of_each(records: Iterable[_Record]) -> list[_Record]:
    """Return the last record of each topic partition.

    Its clock is at least that of the earlier records there, because the clock of its producer may lag.
    """
    found: dict[int, _Record] = {}
    for each in records:
        known = found.get(each.at.partition)
        if known is None:
            found[each.at.partition] = each
            continue
        later, earlier = (each, known) if each.at.position > known.at.position else (known, each)
        if earlier.at.clock is not None and later.at.clock is not None and earlier.at.clock > later.at.clock:
            later = later._replace(at=later.at._replace(clock=earlier.at.clock))
        found[each.at.partition] = later
    return list(found.values())


def _add(records: list[_Record], record: _Record) -> None:
    records.append(record)
    if len(records) >= _FEW:
        records[:] = _newest_of_each(records)


def _is_later(marker: Deleted, at: Place) -> bool:
    """True when the marker came after a record of another key."""
    mine = marker.at
    if mine.partition == at.partition:
        return mine.position > at.position
    if mine.clock is None or at.clock is None:
        return False
    if mine.clock != at.clock:
        return mine.clock > at.clock
    times = at.writetime_us, marker.deletion_time
    return times[0] is not None and times[1] is not None and times[0] <= times[1]


def _latest(times: Iterable[int | None]) -> int | None:
    return max((each for each in times if each is not None), default=None)


def _soonest(times: Iterable[int | None]) -> int | None:
    return min((each for each in times if each is not None), default=None)


def _json_object(text: str | None) -> Mapping[str, int]:
    """The JSON object in a property; empty if the property, of another producer, holds no JSON object."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _json_names(text: str) -> tuple[str, ...]:
    try:
        found = json.loads(text)
    except ValueError:
        return ()
    return tuple(found) if isinstance(found, list) else ()
