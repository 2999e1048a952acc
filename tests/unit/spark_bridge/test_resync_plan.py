"""How a resync plans its work from the gap records of the topic."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from uuid import UUID

import pytest

from schemas.gap_record import GapRecord, decode_gap, encode_gap, open_gaps
from spark_bridge.jobs.cassandra_rows import CassandraAccess, RangeReader, RawRow
from spark_bridge.jobs.resync_plan import Fate, fate_of, needs_no_event, plan_of
from spark_bridge.jobs.time_spans import TimeSpan, is_within, merged
from tests.cql.tables import table_of
from tests.topics.gaps import GAP

_NODE, _TABLE, _OTHER = UUID(int=1), UUID(int=2), UUID(int=3)


def test_windows_of_a_table_are_merged_and_closed_gaps_have_none() -> None:
    """Windows of all nodes are merged; the margin is added on both sides, and may join windows."""
    later = replace(GAP, node_id=_OTHER, first_segment_id=20, last_segment_id=21, from_ms=165_000, to_ms=170_000)
    far = replace(GAP, first_segment_id=30, last_segment_id=30, from_ms=900_000, to_ms=900_000)
    closed = replace(GAP, first_segment_id=40, last_segment_id=40, from_ms=None)
    parts = replace(GAP, table="parts", from_ms=None)
    sent = [GAP, parts, later, far, closed, closed.closed(1, "sent")]
    orders, of_parts = plan_of(open_gaps(decode_gap(encode_gap(each)) for each in sent), margin_ms=5_000)
    assert (orders.name, orders.gaps) == ("shop.orders", (GAP, later, far))
    assert orders.spans == ((95_000_000, 175_000_999), (895_000_000, 905_000_999))
    assert (of_parts.name, of_parts.spans) == ("shop.parts", ((-(2**62), 165_000_999),))
    assert orders.only([far], 0).spans == ((900_000_000, 900_000_999),)


def test_spans_that_touch_are_one() -> None:
    """Spans may be in any order, also one within another."""
    assert merged([(5, 9), (1, 4), (6, 7), (11, 12)]) == ((1, 9), (11, 12))
    assert merged([]) == ()


def test_a_row_without_a_write_time_is_in_no_window() -> None:
    """Windows include both ends."""
    spans = ((1, 9), (11, 12))
    assert [each for each in (None, 0, 1, 9, 10, 11, 12, 13) if is_within(spans, each)] == [1, 9, 11, 12]


@pytest.mark.parametrize(
    ("gap", "table_id", "fate"),
    [
        (GAP, _TABLE, Fate.RESYNC),
        (replace(GAP, node_id=_OTHER), _TABLE, Fate.RESYNC),
        (replace(GAP, table_id=UUID(int=0)), _TABLE, Fate.RESYNC),
        (GAP, _OTHER, Fate.MADE_AGAIN),
        (GAP, None, Fate.DROPPED),
        (replace(GAP, table_id=UUID(int=0)), None, Fate.DROPPED),
        (replace(GAP, node_id=_OTHER), None, Fate.OTHER_CLUSTER),
        (replace(GAP, node_id=_OTHER), _OTHER, Fate.OTHER_CLUSTER),
    ],
)
def test_a_gap_closes_without_a_row_only_where_its_rows_are_surely_gone(
    gap: GapRecord, table_id: UUID | None, fate: Fate
) -> None:
    """A missing table does not count as dropped if the gap's node is not in the cluster that was asked."""
    assert fate_of(gap, table_id, {_NODE}) is fate
    assert fate.closes_at_once == (fate in (Fate.DROPPED, Fate.MADE_AGAIN))


def _holds(
    condition: str, row_us: int | None, topic_us: int | None, *, static_us: int | None = None, same_row: bool = False
) -> bool:
    """Evaluate the condition in a database that treats null as Spark does."""
    newest_us = max((each for each in (row_us, static_us) if each is not None), default=None)
    question = (
        f"SELECT {condition} FROM (SELECT ? AS writetime, ? AS row_writetime) AS cassandra, (SELECT ? AS writetime) AS topic, "
        "(SELECT ? AS same_row)"
    )
    with closing(sqlite3.connect(":memory:")) as database:
        return bool(database.execute(question, (newest_us, row_us, topic_us, same_row)).fetchone()[0])


@pytest.mark.parametrize(
    ("cassandra_us", "topic_us", "has_statics", "is_needed"),
    [
        (15, None, False, False),  # Written in the first window, so it was sent already.
        (35, 5, False, False),  # In the second window.
        (25, 5, False, True),  # Between the windows.
        (None, 5, False, True),  # Deleted; the data topic only has a record of a window.
        (5, 5, False, True),  # A deleted column or a collection.
        (5, None, False, True),  # Written with an explicit timestamp.
        (None, None, False, True),  # A row of only its key.
        (49_001, 5, False, False),  # Changed just now: that event has the whole row.
        (None, 49_001, False, False),  # Published just now and deleted since: the deletion has an event.
        (49_001, 5, True, True),  # Perhaps only the static columns of its partition were changed.
        (None, 49_001, True, True),
        (15, 5, True, False),
        (48_999, 5, False, True),  # Longer ago than an event takes.
        (None, 48_999, False, True),
        (51_001, 5, False, True),  # A timestamp in the future.
    ],
)
def test_a_row_that_differs_is_sent_unless_it_was_or_is_changed_now(
    cassandra_us: int | None, topic_us: int | None, has_statics: bool, is_needed: bool
) -> None:
    """The windows are 10 to 20 and 30 to 40. The current time is 50,000 microseconds, and the margin is 1,000."""
    condition = needs_no_event([(10, 20), (30, 40)], 45, 50, 1, has_statics=has_statics)
    assert _holds(condition, cassandra_us, topic_us) != is_needed


def test_what_is_changed_just_now_counts_from_behind_the_windows_only() -> None:
    """The gap was reported a moment ago."""
    condition = needs_no_event([(49_900, 50_010)], 45, 50, 1, has_statics=False)
    needed = [each for each in (49_500, 49_899, 50_005, 50_011) if not _holds(condition, None, each)]
    assert needed == [49_500, 49_899, 50_005]


@pytest.mark.parametrize(
    ("begun_ms", "counted_as_sent"), [(55, [10_000, 40_000, 52_000]), (46, [10_000, 40_000]), (11, []), (10, [])]
)
def test_a_static_column_that_is_written_during_the_run_does_not_hide_a_lost_change(
    begun_ms: int, counted_as_sent: list[int]
) -> None:
    """Its write time is the newest one of a row that was not sent before. Windows from 10 to 20 ms and from 30 to 52 ms."""
    condition = needs_no_event([(10_000, 20_000), (30_000, 52_000)], begun_ms, 60, 1, has_statics=True)
    times = (10_000, 40_000, 52_000)
    assert [each for each in times if _holds(condition, each, 5)] == counted_as_sent
    of_statics = [each for each in times if _holds(condition, 5, 5, static_us=each, same_row=True)]
    assert of_statics == counted_as_sent


_TWO_STATICS = table_of(
    {"pk": "int"},
    {"at": "int"},
    static={"newer": "int", "older": "int"},
    regular={"v": "int"},
    name="shop.orders",
    table_id=_TABLE,
)


def _row_with(*times_us: int | None, keys_only: bool, written: Sequence[TimeSpan] | None = None) -> RawRow | None:
    """The row as it is read, by the write times of `v`, `newer` and `older`; None if no event is sent for its write time."""
    reader = RangeReader(
        CassandraAccess(contact_points=("127.0.0.1",)), _TWO_STATICS, keys_only=keys_only, written=written
    )
    times = [None if each is None else struct.pack(">q", each) for each in times_us]
    values = [] if keys_only else [None if each is None else struct.pack(">i", 3) for each in times_us]
    keys = [struct.pack(">i", each) for each in (1, 2)]
    return reader._row([*keys, *values, *times, struct.pack(">q", -7)])


def test_a_static_column_that_is_deleted_during_the_run_does_not_hide_a_lost_change() -> None:
    """A cell of the row was deleted in a window. The row was not sent, because a static column was written after them.
    When that is deleted, the newest write time is that of another static column, which is in a window."""
    windows = [(10_000, 20_000)]
    assert _row_with(5, 25_000, 15_000, keys_only=True, written=windows) is None
    row = _row_with(5, None, 15_000, keys_only=False)
    assert row is not None
    condition = needs_no_event(windows, 40, 60, 1, has_statics=True)
    assert not _holds(condition, 5, 5, static_us=row[3], same_row=False)
    # The event of the deletion publishes all static columns.
    assert _holds(condition, 5, 5, static_us=row[3], same_row=True)
    assert _holds(condition, 15_000, 5, static_us=25_000, same_row=False)
    assert (row[3], row[6]) == (15_000, 5)
