"""Cassandra's rows beside the folded data topic: every table, row and column. What expired is checked against its events."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from cdc.faults.oracle.cassandra_rows import Stored
from cdc.faults.oracle.folding import Folded, Key, TableShape
from cdc.faults.oracle.topics import Event
from cdc.faults.oracle.values import Form

__all__ = ["Expiries", "TableComparison", "compare"]

_SHOWN_CHARACTERS: Final = 200
_Row = Mapping[str, Form]
_HasExpired = Callable[[str | None], bool]


class Expiries:
    """When what was written with a TTL expires: by Avro key of the row and by column, from the events of one table."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._by_key: dict[bytes, list[Event]] = defaultdict(list)
        for event in events:
            if event.expiry_s is not None:
                self._by_key[event.key].append(event)

    def has_expired(self, key: bytes, now_s: float, column: str | None) -> bool:
        """Whether an event wrote this column (None: any) of the row with a TTL that is over."""
        return any(
            event.expiry_s is not None and event.expiry_s <= now_s and (column is None or column in event.columns)
            for event in self._by_key.get(key, ())
        )


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


def compare(shape: TableShape, stored: Stored, folded: Folded, expiries: Expiries) -> TableComparison:
    """Every difference in words."""
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
            _compare_row(found, (pk, ck), wanted.get(ck), got.get(ck), has_expired)
        _compare_statics(found, pk, stored.statics.get(pk), folded.statics.get(pk))
    return found


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
