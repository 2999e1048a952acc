"""Compares Cassandra's rows with the folded data topic: every table, row and column.

Expiry is judged by Cassandra's own TTLs. A value that Cassandra still has must expire when its newest record says. A
value that has expired must have a record that says so.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from tests.fault_kit.oracle.cassandra_rows import Stored
from tests.fault_kit.oracle.folding import Folded, Key, TableShape
from tests.fault_kit.oracle.values import Form, avro_name

__all__ = ["TableComparison", "compare"]

_SHOWN_CHARACTERS: Final = 200
_Row = Mapping[str, Form]
# For differences between clocks, and for slow reads.
_SLACK_S: Final = 10


class _Expiry:
    """When a row and its columns expire by the newest record, to be compared with Cassandra's own TTLs."""

    def __init__(self, properties: Mapping[str, str], now_s: float, *, had_ttls: bool) -> None:
        self._now_s = now_s
        self._had_ttls = had_ttls
        self.row_s = int(properties["expires_at"]) if "expires_at" in properties else None
        self.cells_s = int(properties["cells_expire_at"]) if "cells_expire_at" in properties else None
        self.columns_s: Mapping[str, int] = json.loads(properties.get("columns_expire_at", "{}"))

    def is_row_gone(self, got: _Row) -> bool:
        """Return whether the whole row may have expired by now."""
        if self.row_s is not None:
            return self.row_s <= self._now_s + _SLACK_S
        # No record says whether a row stays after its last value has expired: the row marker may have a TTL, too.
        is_empty = all(value is None or self.is_gone(name) for name, value in got.items())
        return is_empty and (self.cells_s is not None or self._had_ttls)

    def is_gone(self, column: str) -> bool:
        """Return whether the column's value may have expired by now."""
        second = self.columns_s.get(avro_name(column))
        return second is not None and second <= self._now_s + _SLACK_S

    def differences(self, wanted: _Row, ttls_s: Mapping[str, float]) -> Iterator[str]:
        """Describe the differences between expiries and TTLs of a row that Cassandra has."""
        if self.row_s is not None and self.row_s < self._now_s - _SLACK_S:
            yield f"was to go {self._now_s - self.row_s:.0f} s ago, and is in Cassandra"
        for column, value in wanted.items():
            second, own = self.columns_s.get(avro_name(column)), ttls_s.get(column)
            if own is not None and (second is None or abs(second - own) > _SLACK_S):
                yield f"{column} goes at {own:.0f} by its TTL in Cassandra, and at {second} by its record"
            elif second is not None and second < self._now_s - _SLACK_S and value is not None:
                yield f"{column} was to go {self._now_s - second:.0f} s ago, and is in Cassandra"


@dataclass(slots=True)
class TableComparison:
    """The result of the comparison of one table."""

    table: str
    rows: int = 0
    expired_rows: int = 0
    expired_columns: int = 0
    records: int = 0
    markers: int = 0
    duplicates: int = 0
    differences: list[str] = field(default_factory=list)
    in_question: list[tuple[bytes, str]] = field(default_factory=list)
    """Differences of a table with gaps, each with the Avro key of its row (empty: not known), until `judge` is
    called."""
    excused: int = 0

    def judge(self, key_partitions: Mapping[bytes, str], touched: Collection[str]) -> None:
        """Excuse differences of partitions with changes in a gap. The others become `differences`.

        A row without any event is excused as well: all its changes may be in the gap. `key_partitions`: Avro key of the
        events -> partition key; `touched`: partition keys with changes in a gap.
        """
        for key, text in self.in_question:
            partition = key_partitions.get(key)
            if touched and (partition is None or partition in touched):
                self.excused += 1
            else:
                self.differences.append(text)
        self.in_question.clear()


def compare(shape: TableShape, stored: Stored, folded: Folded, *, has_gaps: bool = False) -> TableComparison:
    """Describe every difference. If the table has gaps, the differences are in question until TableComparison.judge."""
    found = TableComparison(
        table=shape.name,
        rows=sum(map(len, stored.rows.values())),
        records=folded.records,
        markers=folded.markers,
        duplicates=folded.duplicates,
        differences=list(folded.problems),
    )
    now_s = time.time()
    for pk in sorted(stored.rows.keys() | folded.rows.keys(), key=repr):
        wanted, got = stored.rows.get(pk, {}), folded.rows.get(pk, {})
        for ck in sorted(wanted.keys() | got.keys(), key=repr):
            key = folded.key_bytes.get((pk, ck), b"")
            expiry = _Expiry(folded.told.get((pk, ck), {}), now_s, had_ttls=(pk, ck) in folded.had_ttls)
            with _in_question(found, key, has_gaps=has_gaps):
                _compare_row(found, (pk, ck), wanted.get(ck), got.get(ck), expiry)
                if ck in wanted and ck in got:
                    wrong_expiries = expiry.differences(wanted[ck], stored.expiries_s.get((pk, ck), {}))
                    found.differences += [f"{shape.name} {pk} {ck}: {each}" for each in wrong_expiries]
        with _in_question(found, b"", has_gaps=has_gaps):
            _compare_statics(found, pk, stored.statics.get(pk), folded.statics.get(pk))
    return found


@contextmanager
def _in_question(found: TableComparison, key: bytes, *, has_gaps: bool) -> Iterator[None]:
    before = len(found.differences)
    yield
    if has_gaps:
        found.in_question += [(key, text) for text in found.differences[before:]]
        del found.differences[before:]


def _compare_row(
    found: TableComparison, place: tuple[Key, Key], wanted: _Row | None, got: _Row | None, expiry: _Expiry
) -> None:
    name = f"{found.table} {place[0]} {place[1]}"
    if wanted is None and got is not None:
        # No record is published when the last cell expires, so a reader of the topic has to compare expiries with the
        # clock.
        if expiry.is_row_gone(got):
            found.expired_rows += 1
        else:
            found.differences.append(f"{name}: is on the data topic ({_short(got)}) and not in Cassandra")
    elif got is None and wanted is not None:
        found.differences.append(f"{name}: is in Cassandra ({_short(wanted)}) and not on the data topic")
    elif wanted is not None and got is not None:
        for column, value in wanted.items():
            if value == got[column]:
                continue
            if value is None and expiry.is_gone(column):
                found.expired_columns += 1
            else:
                found.differences.append(
                    f"{name}: {column} is {_short(value)} in Cassandra and {_short(got[column])} on the data topic"
                )


def _compare_statics(found: TableComparison, pk: Key, wanted: _Row | None, got: _Row | None) -> None:
    for column in sorted({*(wanted or {}), *(got or {})}):
        values = (wanted or {}).get(column), (got or {}).get(column)
        if values[0] != values[1]:
            found.differences.append(
                f"{found.table} {pk}: static {column} is {_short(values[0])} in Cassandra and {_short(values[1])} on the data topic"
            )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
