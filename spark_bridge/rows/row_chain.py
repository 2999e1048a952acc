"""Every change of every row in a micro-batch, one record after the other. Plain values, no Spark.

A row changes by its own records, by deletions of many rows that cover it, and by records that change its Cassandra
partition's static columns. Its first image is that of the mirror. Its last image is the result of the folding rules,
also if the topic partitions give another order.

An image is a number here: that of the row of the given table that holds its values (spark_bridge.rows.row_images).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise, zip_longest
from typing import Final, NamedTuple

from spark_bridge.rows.fold import PARTITION, RANGE, ROW, STATIC, Bounds, Covers

__all__ = ["FIRST_STEP", "STATIC_ID", "ChainRules", "Compared", "Image", "Op", "Said", "SaidKind", "Step", "Texts"]

FIRST_STEP: Final = 2
"""Number of a row's first step in a micro-batch. The number 1 is for the rows that existed when a change log began."""
STATIC_ID: Final = "static:"
"""Begins the identity of a Cassandra partition that has static columns and no rows; its owner follows."""


class SaidKind(StrEnum):
    """The kind of a row of the input: a row of the mirror, its result, or a record (by its scope)."""

    BEFORE = "before"
    AFTER = "after"
    ROW = ROW
    STATIC = STATIC
    PARTITION = PARTITION
    RANGE = RANGE


class Op(StrEnum):
    """How a row changed. `TOUCH`: only its write time or expiry changed. `SAME`: nothing changed."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TOUCH = "touch"
    SAME = "same"


class Texts(NamedTuple):
    """The columns of an image as text, for comparison: those of the row, and the static ones."""

    cells: str | None
    statics: str | None


class Said(NamedTuple):
    """One row of the input.

    `number`: number of its image and of its source. `identity`: identity of the row (empty: the record is about a whole
    Cassandra partition). `is_row`: the image has the columns of a row. `place` orders the records of a Cassandra
    partition. `texts`: the static columns are None if the record does not name them. `times`: write time and expiry of
    the image. `key_version`: schema version of the row's key; None if the row of the input does not tell it.
    """

    number: int
    kind: str
    identity: str
    is_row: bool
    place: tuple[int, int, int, int]
    texts: Texts
    changed_us: int | None
    bounds: Bounds | None = None
    times: tuple[int | None, int | None] = (None, None)
    key_version: int | None = None


class Image(NamedTuple):
    """A row, as the numbers of two images: the one with its own columns, and the one with its static columns.

    `texts`: both as text, for comparison.
    """

    cells: int
    statics: int
    texts: Texts


class Step(NamedTuple):
    """One change of a row. `step` counts the changes from FIRST_STEP.

    `next_us`: time of the row's next change in the same micro-batch. `source`: number of the record that made the
    change; None if no record did, because the row expired or was truncated.
    """

    identity: str
    op: Op
    before: Image | None
    after: Image | None
    changed_us: int | None
    step: int
    next_us: int | None
    source: int | None


class Compared(NamedTuple):
    """A row of the mirror, compared with its result. `after`: number of the result's image; None if there is no row."""

    identity: str
    op: Op
    after: int | None


class _Event(NamedTuple):
    """The effect of a record on one row: it replaces its columns, removes it, or replaces its static columns."""

    record: Said
    cells: Said | None = None
    statics: Said | None = None
    removes: bool = False


@dataclass(slots=True)
class _Row:
    """The input about one row. If the row is gone, `after` may be there, but `is_row` is false."""

    before: Said | None = None
    after: Said | None = None
    records: list[Said] = field(default_factory=list)

    @property
    def result(self) -> Said | None:
        return self.after if self.after is not None and self.after.is_row else None

    @property
    def key_version(self) -> int | None:
        """The schema version of the row's key. The result of a fold tells it, also if the row is gone."""
        told = self.records if self.after is None else [self.after, *self.records]
        return next((each.key_version for each in told if each.key_version is not None), None)

    @property
    def is_known(self) -> bool:
        """True when the mirror has the row, or will have it."""
        return self.before is not None or self.result is not None


@dataclass(frozen=True, slots=True)
class ChainRules:
    """The rules by which a table's rows change.

    `gone_us`: time of a row's removal, if nothing else tells it. `key_version`: schema version of keys for which the
    input does not tell it.
    """

    has_clustering: bool
    covers: Covers
    key_version: int
    gone_us: int

    def changes(self, said: Iterable[Said]) -> Iterator[Step | Compared]:
        """The changes of the rows of one Cassandra partition. `said`: all of its input, in any order."""
        rows, others = _by_row(said)
        markers = [each for each in others if each.kind in (SaidKind.PARTITION, SaidKind.RANGE)]
        statics = _changes_of_statics(others) if self.has_clustering else []
        for identity, row in rows.items():
            is_met = bool(row.records) or (row.before is not None and not identity.startswith(STATIC_ID))
            around = [*self._covering(identity, row.key_version, markers), *statics] if is_met else []
            yield from self._steps(identity, row, around)
            if row.is_known:
                yield _compared(identity, row)

    def _covering(self, identity: str, key_version: int | None, markers: Sequence[Said]) -> list[_Event]:
        version = self.key_version if key_version is None else key_version
        return [
            _Event(each, removes=True)
            for each in markers
            if each.bounds is None or self.covers(each.bounds, bytes.fromhex(identity), version)
        ]

    def _steps(self, identity: str, row: _Row, around: Sequence[_Event]) -> Iterator[Step]:
        """The changes of one row, in order.

        A record of this row changes the row's columns before it changes the static columns of all rows.
        """
        own = [
            _Event(each, cells=each if each.is_row else None, statics=_named(each), removes=not each.is_row)
            for each in row.records
        ]
        held, named, changed_us = row.before, row.before, None
        images: list[tuple[Image | None, int | None, int | None]] = [(_image(held, named), None, None)]
        for event in sorted([*own, *around], key=lambda each: each.record.place):
            held = None if event.removes else event.cells or held
            named = event.statics or named
            changed_us = event.record.changed_us
            images.append((_image(held, named), changed_us, event.record.number))
        images.append((_image(row.result, row.result), self._result_us(row, changed_us), None))
        changed = [(before, *after) for (before, _, _), after in pairwise(images) if _texts(before) != _texts(after[0])]
        later = [each[2] for each in changed[1:]]
        for number, ((before, after, at_us, source), next_us) in enumerate(zip_longest(changed, later), FIRST_STEP):
            yield Step(identity, _op(before, after), before, after, at_us, number, next_us, source)

    def _result_us(self, row: _Row, last_us: int | None) -> int | None:
        """When the row got its result. `last_us`: time of its last record in the micro-batch."""
        known_us = self.gone_us if row.after is None and row.before is not None else None
        if row.after is not None:
            known_us = row.after.changed_us
        if row.is_known:
            return known_us
        # The row was made and removed within the micro-batch. The writers' clocks may differ, but the removal must not
        # be earlier than the last record.
        return max((each for each in (known_us, last_us) if each is not None), default=None)


def _by_row(said: Iterable[Said]) -> tuple[Mapping[str, _Row], list[Said]]:
    """The input about each row, by its identity; and all records, because each may name the static columns."""
    rows, others = defaultdict[str, _Row](_Row), list[Said]()
    for each in said:
        if each.kind == SaidKind.BEFORE:
            rows[each.identity].before = each
        elif each.kind == SaidKind.AFTER:
            rows[each.identity].after = each
        elif each.kind == SaidKind.ROW:
            rows[each.identity].records.append(each)
        if each.kind not in (SaidKind.BEFORE, SaidKind.AFTER):
            others.append(each)
    return rows, others


def _changes_of_statics(records: Iterable[Said]) -> list[_Event]:
    """The changes of a Cassandra partition's static columns. The first record that names them counts as a change."""
    found, last = list[_Event](), None
    for each in sorted([each for each in records if _named(each)], key=lambda each: each.place):
        if each.texts.statics != last:
            found.append(_Event(each, statics=each))
        last = each.texts.statics
    return found


def _named(record: Said) -> Said | None:
    """The record, if it says what the static columns are."""
    return None if record.texts.statics is None else record


def _image(cells: Said | None, statics: Said | None) -> Image | None:
    if cells is None:
        return None
    given = statics or cells
    return Image(cells.number, given.number, Texts(cells.texts.cells, given.texts.statics))


def _texts(image: Image | None) -> Texts | None:
    return None if image is None else image.texts


def _op(before: Image | None, after: Image | None) -> Op:
    if before is None:
        return Op.INSERT
    return Op.DELETE if after is None else Op.UPDATE


def _compared(identity: str, row: _Row) -> Compared:
    before, after = row.before, row.result
    if before is None or after is None:
        return Compared(identity, Op.INSERT if before is None else Op.DELETE, None if after is None else after.number)
    op = Op.UPDATE if before.texts != after.texts else Op.SAME if before.times == after.times else Op.TOUCH
    return Compared(identity, op, after.number)
