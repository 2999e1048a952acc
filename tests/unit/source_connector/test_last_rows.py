"""Which rows count as already published."""

from __future__ import annotations

import pytest

from source_connector.host.record import SourceRecord
from source_connector.rows.last_rows import LastRows


def record(value: bytes | None = b"v", key: bytes = b"k", **properties: str) -> SourceRecord:
    return SourceRecord(schema_id=1, key=key, value=value, properties={"kind": "row"} | properties)


def test_only_the_last_acknowledged_row_of_a_key_is_held() -> None:
    """A changed value, key, expiry or table, and a deletion, is a change; a changed write time alone is none."""
    rows = LastRows(10)
    assert not rows.holds(record())
    rows.is_published(record(writetime="1"))
    assert rows.holds(record(writetime="2", segpos="3"))
    others = [record(b"w"), record(key=b"l"), record(None), record(b""), record(expires_at="9"), record(kind="x")]
    assert not any(map(rows.holds, others))
    next_lives = [record(table_id="2"), record(table_generation="2")]
    assert not any(map(rows.holds, next_lives))
    rows.is_on_its_way(record(b"w"))
    assert not rows.holds(record())
    rows.is_published(record(None))
    assert rows.holds(record(None))


@pytest.mark.parametrize(
    "name",
    [
        "kind",
        "table_id",
        "table_generation",
        "expires_at",
        "columns_expire_at",
        "cells_expire_at",
        "row_marker",
        "static_columns",
    ],
)
def test_what_a_reader_makes_of_the_row_is_part_of_it(name: str) -> None:
    """Without the new property, a reader would keep the row too long, or let it expire."""
    rows = LastRows(10)
    rows.is_published(record(**{name: "1"}))
    assert rows.holds(record(**{name: "1"}))
    assert not rows.holds(record(**{name: "2"}))


def test_it_forgets_when_the_process_stood_still() -> None:
    """Another instance may have published meanwhile."""
    now = [0.0]
    rows = LastRows(10, lambda: now[0])
    rows.is_published(record())
    for now[0] in (1.0, 5.5, 9.0):
        assert rows.holds(record())
    now[0] = 15.0
    assert not rows.holds(record())


def test_it_forgets_all_when_many_rows_may_have_changed() -> None:
    """It also forgets the oldest key when there are too many."""
    rows = LastRows(1)
    rows.is_published(record())
    rows.is_published(record(key=b"l"))
    assert (rows.holds(record()), rows.holds(record(key=b"l"))) == (False, True)
    rows.forget()
    assert not rows.holds(record(key=b"l"))
