"""Cassandra's rows beside the folded data topic: every table, row and column. What expired is checked against its events."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from cdc.faults.oracle.cassandra_rows import Stored
from cdc.faults.oracle.folding import Folded, Key, TableShape
from cdc.faults.oracle.topics import Event
from cdc.faults.oracle.values import Form, is_multi_cell

__all__ = ["Expiries", "TableComparison", "compare"]

_SHOWN_CHARACTERS: Final = 200
_Row = Mapping[str, Form]
_HasExpired = Callable[[str | None], bool]


class Expiries:
    """Whether Cassandra may have forgotten what a data topic still tells: by Avro key of the row and by column.

    A column has expired when its newest write, by write time, carried a TTL that is over. Nothing is known of single cells
    of a collection, so there any such write is enough.
    """

    def __init__(self, shape: TableShape, events: Iterable[Event]) -> None:
        """`events` of the table; those of an earlier table of its name do not count."""
        own = [event for event in events if event.table_id == shape.table_id]
        expiring = {event.key for event in own if event.expiry_s is not None}
        self._one_cell = {name for name, cql_type in shape.regular.items() if not is_multi_cell(cql_type)}
        self._by_key: dict[bytes, dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
        for event in own:
            if event.key in expiring and event.writetime_us is not None:
                self._by_key[event.key][event.writetime_us].append(event)

    def has_expired(self, key: bytes, now_s: float, column: str | None) -> bool:
        """Whether the newest write of this column (None: any write) of the row had a TTL that is over."""
        by_time = self._by_key.get(key, {})
        if column is None or column not in self._one_cell:
            return any(
                _is_over(event, now_s) and (column is None or column in event.columns)
                for events in by_time.values()
                for event in events
            )
        for time_us in sorted(by_time, reverse=True):
            writes = [event for event in by_time[time_us] if _writes(event, column)]
            # Of writes of the same time Cassandra takes the one that expires.
            if any(_is_over(event, now_s) for event in writes):
                return True
            # A replica that was repaired logs cells of several writes at once, under the time of the newest: where another
            # event of that time left the column out, this is such a one, and the column's own time is an earlier one.
            if writes and len(writes) == len(by_time[time_us]):
                return False
        return False


def _is_over(event: Event, now_s: float) -> bool:
    return event.expiry_s is not None and event.expiry_s <= now_s


def _writes(event: Event, column: str) -> bool:
    """A deletion of the row writes all its columns."""
    return event.kind == "ROW_DELETION" or column in event.columns


@dataclass(slots=True)
class TableComparison:
    """What was found of one table."""

    table: str
    rows: int = 0
    expired_rows: int = 0
    expired_columns: int = 0
    records: int = 0
    markers: int = 0
    duplicates: int = 0
    differences: list[str] = field(default_factory=list)
    in_question: list[tuple[bytes, str]] = field(default_factory=list)
    """Differences of a table with a gap, and the row's Avro key (empty: not known), until it is known what the gap covers."""
    excused: int = 0

    def judge(self, key_partitions: Mapping[bytes, str], touched: Collection[str]) -> None:
        """Excuse what concerns a partition with changes in a gap; a row without any event has had none but those.

        `key_partitions`: the partition key of each Avro key that events have; `touched`: partition keys with changes in a gap.
        """
        for key, text in self.in_question:
            partition = key_partitions.get(key)
            if touched and (partition is None or partition in touched):
                self.excused += 1
            else:
                self.differences.append(text)
        self.in_question.clear()


def compare(
    shape: TableShape, stored: Stored, folded: Folded, expiries: Expiries, *, has_gaps: bool = False
) -> TableComparison:
    """Every difference in words; with gaps they are in question until TableComparison.judge."""
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
            has_expired = partial(expiries.has_expired, key, now_s)
            with _in_question(found, key, has_gaps=has_gaps):
                _compare_row(found, (pk, ck), wanted.get(ck), got.get(ck), has_expired)
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
    found: TableComparison, place: tuple[Key, Key], wanted: _Row | None, got: _Row | None, has_expired: _HasExpired
) -> None:
    name = f"{found.table} {place[0]} {place[1]}"
    if wanted is None and got is not None:
        # Nothing tells the topic that the last cell has expired: whoever folds looks at the clock.
        if has_expired(None) and all(value is None or has_expired(column) for column, value in got.items()):
            found.expired_rows += 1
        else:
            found.differences.append(f"{name}: is on the data topic ({_short(got)}) and not in Cassandra")
    elif got is None and wanted is not None:
        found.differences.append(f"{name}: is in Cassandra ({_short(wanted)}) and not on the data topic")
    elif wanted is not None and got is not None:
        for column, value in wanted.items():
            if value == got[column]:
                continue
            if value is None and has_expired(column):
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
