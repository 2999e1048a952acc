"""The oracle sees each way to lose, invent or mix up a row."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from tests.fault_kit.oracle.cassandra_rows import Stored
from tests.fault_kit.oracle.changes import Judged, compare_events, covered, order_problems
from tests.fault_kit.oracle.comparison import compare
from tests.fault_kit.oracle.folding import TableShape, fold, newest
from tests.fault_kit.oracle.gaps import Gap, unexplained
from tests.fault_kit.oracle.in_flight import InFlight
from tests.fault_kit.oracle.keyed_rows import differences, last_of_each_key, mirrored, replayed, selected
from tests.fault_kit.oracle.topics import DataRecord, Event
from tests.fault_kit.oracle.values import form_of_avro, form_of_driver
from tests.fault_kit.report import Report, ReportedGap

_ID = "11111111-1111-1111-1111-111111111111"
_OLD_ID = "22222222-2222-2222-2222-222222222222"
_GENERATIONS = {_ID: "2", _OLD_ID: "1"}
_NODE = "33333333-3333-3333-3333-333333333333"
_COLUMNS = {"t": {"v", "w"}}
_SHAPE = TableShape(
    name="t",
    table_id=_ID,
    partition={"pk": "int"},
    clustering={"c1": "int", "c2": "text"},
    static={"s": "text"},
    regular={"v": "text", "w": "int"},
)


def _record(
    kind: str = "row",
    key: tuple[int, int | None, str | None] = (1, 1, "a"),
    value: Mapping[str, object] | None = None,
    *,
    table_id: str = _ID,
    segpos: str = "1:1",
    published_ms: int = 1000,
    at: tuple[int, int] = (0, 0),
    bounds: tuple[Mapping[str, object] | None, Mapping[str, object] | None] = (None, None),
    **properties: str,
) -> DataRecord:
    return DataRecord(
        key_bytes=repr(key).encode(),
        key={"pk": key[0], "c1": key[1], "c2": key[2]},
        value=value,
        value_bytes=None,
        properties={
            "kind": kind,
            "table_id": table_id,
            "table_generation": _GENERATIONS[table_id],
            "node": _NODE,
            "segpos": segpos,
            **properties,
        },
        published_ms=published_ms,
        partition=at[0],
        place=at[1],
        bounds=bounds,
    )


def _in_a_row(*records: DataRecord) -> list[DataRecord]:
    """The records with positions one after the other in one topic partition."""
    return [replace(record, place=place) for place, record in enumerate(records)]


def test_in_a_topic_partition_the_record_behind_the_others_is_the_newest() -> None:
    """This holds whatever the clocks of the producers say."""
    records = [_record(segpos=name, published_ms=at) for name, at in (("1:1", 100), ("1:2", 90))]
    assert newest(_in_a_row(*records)).properties["segpos"] == "1:2"


def test_in_two_topic_partitions_the_record_that_was_published_later_is_the_newest() -> None:
    """Of equal times, the later write wins; records count as published no earlier than their key's before."""
    old = [_record(segpos=f"1:{n}", published_ms=at, at=(0, n)) for n, at in ((1, 300), (2, 90))]
    for published_ms, writetime, expected in (
        (200, "9", "1:2"),
        (300, "9", "1:3"),
        (301, "1", "1:3"),
        (300, "1", "1:2"),
    ):
        moved = _record(segpos="1:3", published_ms=published_ms, at=(1, 0), writetime=writetime)
        records = [replace(each, properties={**each.properties, "writetime": "5"}) for each in old]
        assert newest([*records, moved]).properties["segpos"] == expected
        assert newest([moved, *records]).properties["segpos"] == expected


@pytest.mark.parametrize(
    ("marker", "is_there"),
    [
        ({"at": (0, 1), "published_ms": 1}, False),
        ({"at": (1, 0), "published_ms": 999}, True),
        ({"at": (1, 0), "published_ms": 1001}, False),
        ({"at": (1, 0), "published_ms": 1000, "deletion_time": "4"}, True),
        ({"at": (1, 0), "published_ms": 1000, "deletion_time": "5"}, False),
    ],
)
def test_a_marker_removes_rows_before_it_in_any_topic_partition(marker: dict[str, Any], is_there: bool) -> None:
    """A marker has another key than the rows, so it may stay in another topic partition."""
    deletion = _record("partition_deletion", (1, None, None), **marker)
    folded = fold(_SHAPE, [_record(value=_VALUE, writetime="5"), deletion])
    assert (folded.rows[1,] != {}, folded.statics.get((1,)) is not None) == (is_there, is_there)


def test_a_life_counts_by_its_generation() -> None:
    """With one instance, no record of an earlier table may follow in a topic partition; with two instances it may."""
    records = [
        _record(value=_VALUE, at=(0, 0)),
        _record(value=None, table_id=_OLD_ID, at=(1, 0)),
        _record(value={**_VALUE, "v": "of the life before"}, table_id=_OLD_ID, at=(0, 1)),
    ]
    stored = _stored({(1, "a"): _ROW}, {"s": None})
    assert compare(_SHAPE, stored, fold(_SHAPE, records[:2])).differences == []
    assert compare(_SHAPE, stored, fold(_SHAPE, records, instances=2)).differences == []
    (behind,) = compare(_SHAPE, stored, fold(_SHAPE, records)).differences
    assert f"table id {_OLD_ID} stands behind one of {_ID}" in behind


def _event(position: int = 10, *, kind: str = "ROW", key: bytes = b"k", **changed: Any) -> Event:
    values: dict[str, Any] = {
        "table": "t",
        "table_id": _ID,
        "node": _NODE,
        "segment": 1,
        "position": position,
        "ordinal": 0,
        "kind": kind,
        "key": key,
        "partition_key": "01",
        "clustering": ("02",),
        "bounds": None,
        "writetime_us": 1_000_000,
        "expiry_s": None,
        "columns": ("v",),
        "partition": 0,
        "published_ms": 2_000,
        **changed,
    }
    return Event(**values)


def _stored(
    rows: Mapping[tuple[int, str], Mapping[str, object]], statics: Mapping[str, object] | None = None
) -> Stored:
    stored = Stored()
    stored.rows[1,] = dict(rows)
    if statics is not None:
        stored.statics[1,] = statics
    return stored


_VALUE = {"v": "x", "w": 1, "s": None}
_ROW = {"v": "x", "w": 1}


def _differences(stored: Stored, *records: DataRecord) -> list[str]:
    return compare(_SHAPE, stored, fold(_SHAPE, _in_a_row(*records))).differences


def test_equal_sides_have_no_difference() -> None:
    """The newest record of a key wins."""
    assert _differences(_stored({(1, "a"): _ROW}), _record(value={**_VALUE, "v": "old"}), _record(value=_VALUE)) == []


@pytest.mark.parametrize(
    ("stored", "records", "expected"),
    [
        pytest.param({(1, "a"): _ROW}, [], "is in Cassandra", id="a lost row"),
        pytest.param({}, [_record(value=_VALUE)], "is on the data topic", id="a lost deletion"),
        pytest.param(
            {(1, "a"): {"v": "y", "w": 1}}, [_record(value=_VALUE)], "v is 'y' in Cassandra", id="an old value"
        ),
        pytest.param(
            {(1, "a"): {"v": "x", "w": None}}, [_record(value=_VALUE)], "w is None", id="a lost column delete"
        ),
        pytest.param(
            {(1, "a"): _ROW}, [_record(value=_VALUE), _record(value=None)], "is in Cassandra", id="a deletion too late"
        ),
        pytest.param(
            {(1, "a"): _ROW},
            [_record(value=_VALUE), _record("partition_deletion", (1, None, None), deletion_time="1")],
            "is in Cassandra",
            id="a marker whose survivors are missing",
        ),
        pytest.param(
            {(1, "a"): _ROW},
            [_record(value=_VALUE, table_id=_OLD_ID)],
            "latest table id is",
            id="only of the old table",
        ),
        pytest.param(
            {(1, "a"): _ROW},
            [_record(value=_VALUE, table_id=_OLD_ID), _record(value=_VALUE), _record(value=_VALUE, table_id=_OLD_ID)],
            "stands behind one of",
            id="the old table once more",
        ),
        pytest.param({}, [_record("unheard_of")], "unknown kind", id="an unknown kind"),
    ],
)
def test_each_difference_is_seen(
    stored: Mapping[tuple[int, str], Mapping[str, object]], records: list[DataRecord], expected: str
) -> None:
    """The message says where the difference is."""
    assert expected in _differences(_stored(stored), *records)[0]


def test_static_columns_come_with_rows_and_by_themselves() -> None:
    """The newest record with static columns wins, whatever its kind."""
    stored = _stored({(1, "a"): _ROW}, {"s": "new"})
    static = _record("static_row", (1, None, None), {"v": None, "w": None, "s": "new"})
    old_row = _record(value={**_VALUE, "s": "old"})
    assert _differences(stored, old_row, static) == []
    assert "static s is 'new'" in _differences(stored, static, old_row)[0]


@pytest.mark.parametrize(
    ("start", "end", "left"),
    [
        ((3, None), None, [(5, "a"), (4, "a")]),
        (None, (3, None), [(2, "a")]),
        ((3, "b"), (3, "b"), [(5, "a"), (4, "a"), (3, "a"), (3, "c"), (2, "a")]),
        (None, None, []),
    ],
)
def test_a_range_takes_the_rows_between_its_bounds(
    start: tuple[int, str | None] | None, end: tuple[int, str | None] | None, left: list[tuple[int, str]]
) -> None:
    """Bounds are in clustering order, with a descending first column; a prefix includes all rows that begin with it."""
    rows = [(5, "a"), (4, "a"), (3, "a"), (3, "b"), (3, "c"), (2, "a")]
    bounds = tuple(None if each is None else {"pk": 1, "c1": each[0], "c2": each[1]} for each in (start, end))
    marker = _record(
        "range_deletion",
        (1, None, None),
        bounds=(bounds[0], bounds[1]),
        range_start_inclusive="true",
        range_end_inclusive="true",
        range_reversed='["c1"]',
    )
    folded = fold(_SHAPE, _in_a_row(*(_record(key=(1, *row), value=_VALUE) for row in rows), marker))
    assert list(folded.rows[1,]) == left


def _goes(at_s: float, *columns: str, row: bool = False) -> dict[str, str]:
    """The properties of a record whose columns, and perhaps row, expire at that second."""
    second = int(at_s)
    told = {"columns_expire_at": json.dumps(dict.fromkeys(columns, second))}
    if set(columns) == set(_ROW):
        told["cells_expire_at"] = str(second)
    return {**told, "expires_at": str(second)} if row else told


def test_what_is_gone_was_to_go() -> None:
    """A row or column that is gone without an expiry in a record, or before its time, is a difference."""
    past, future = time.time() - 60, time.time() + 600
    over = fold(_SHAPE, [_record(value=_VALUE, **_goes(past, "v", "w", row=True))])
    found = compare(_SHAPE, _stored({}), over)
    assert (found.expired_rows, found.differences) == (1, [])
    found = compare(_SHAPE, _stored({}), fold(_SHAPE, [_record(value=_VALUE, **_goes(past, "v", "w"))]))
    assert (found.expired_rows, found.differences) == (1, [])
    without_v = _stored({(1, "a"): {"v": None, "w": 1}})
    found = compare(_SHAPE, without_v, fold(_SHAPE, [_record(value=_VALUE, **_goes(past, "v"))]))
    assert (found.expired_columns, found.differences) == (1, [])
    for told in ({}, _goes(future, "v", "w", row=True), _goes(past, "w")):
        assert _differences(_stored({}), _record(value=_VALUE, **told)) != []
        assert _differences(without_v, _record(value=_VALUE, **told)) != []


def test_what_is_there_was_not_to_go() -> None:
    """A row or column that Cassandra still has, although its record says that it has expired, is a difference."""
    past = time.time() - 60
    (row,) = _differences(_stored({(1, "a"): _ROW}), _record(value=_VALUE, expires_at=str(int(past))))
    assert "was to go" in row
    (value,) = _differences(_stored({(1, "a"): _ROW}), _record(value=_VALUE, **_goes(past, "v")))
    assert "v was to go" in value


def test_a_record_tells_cassandras_own_ttls() -> None:
    """The expiries must agree to the second, apart from tolerance for clocks and slow reads."""
    goes_s = time.time() + 600
    stored = _stored({(1, "a"): _ROW})
    stored.expiries_s[(1,), (1, "a")] = {"v": goes_s}
    assert _differences(stored, _record(value=_VALUE, **_goes(goes_s + 1, "v"))) == []
    for told in ({}, _goes(goes_s + 60, "v"), _goes(goes_s, "w")):
        assert any("v goes at" in each for each in _differences(stored, _record(value=_VALUE, **told)))


def test_records_that_came_again_are_counted() -> None:
    """A duplicate has the same key, kind and position in the commit log."""
    folded = fold(_SHAPE, [_record(value=_VALUE), _record(value=_VALUE), _record(value=_VALUE, segpos="1:2")])
    assert (folded.records, folded.duplicates) == (3, 1)


def _line(*rows: str, position: int = 10, table: str = "t") -> str:
    cells = '"complex_deletions": [], "cells": [{"column": "v"}], "liveness": null, "deletion": null'
    update = {
        "table": table,
        "table_id": _ID,
        "partition_key": "01",
        "partition_deletion": None,
        "range_tombstones": [],
        "static_row": None,
        "rows": [json.loads(f'{{"clustering": ["{row}"], {cells}}}') for row in rows],
    }
    return json.dumps(
        {"segment": "CommitLog-7-1.log", "position": position, "size": 1, "keyspace": "k", "updates": [update]}
    )


def _judged(*lines: str, columns: set[str] | None = None) -> Judged:
    judged = Judged()
    judged.add(lines, "k", ["t"], {"t": {"v"} if columns is None else columns})
    return judged


def test_events_are_compared_with_what_cassandra_reads() -> None:
    """Missing and invented events are reported; other nodes' events and tables without CDC do not count."""
    judged = _judged(_line("02"), _line("03", table="untracked", position=20))
    assert compare_events(_NODE, judged, [_event()], _COLUMNS) == []
    assert compare_events(_NODE, judged, [], _COLUMNS) == [
        "1 changes are on no events topic",
        f"is on no events topic: {(1, 10, _ID, 'ROW', '01', ('02',), None)}",
    ]
    invented = compare_events(_NODE, judged, [_event(), _event(11)], _COLUMNS)
    assert invented[0] == "1 events are of no change that Cassandra reads"
    assert compare_events(_NODE, judged, [_event(), _event(11, node=str(UUID(int=1)))], _COLUMNS) == []


def test_only_what_a_gap_announces_may_be_missing() -> None:
    """A gap covers changes of its node and table, after its first position and up to its last one."""
    judged = _judged(_line("02"))
    gap = Gap(node=_NODE, table="t", table_id=_ID, first=(1, 5), last=(1, 10))
    assert compare_events(_NODE, judged, [], _COLUMNS, [gap]) == []
    for other in (
        replace(gap, first=(1, 10)),
        replace(gap, last=(1, 9)),
        replace(gap, table_id=_OLD_ID),
        replace(gap, node=str(UUID(int=1))),
    ):
        assert len(compare_events(_NODE, judged, [], _COLUMNS, [other])) == 2


def test_a_gap_that_nothing_explains_is_a_difference() -> None:
    """Otherwise the kit would excuse the loss that such a gap covers."""
    gap = Gap(node=_NODE, table="t", table_id=_ID, first=(1, 5), last=(1, 10), reason="it has another subscription")
    (found,) = unexplained([gap], {"another"})
    assert "no strike took its events topic away: it has another subscription" in found
    assert unexplained([gap], {"t"}) == []


def test_the_report_tells_what_each_gap_covers() -> None:
    """The report has a gap's node and table, its range, and how many changes it covers and how many are lost."""
    judged = _judged(_line("02", "03"), _line("04", position=11))
    gap = Gap(node=_NODE, table="t", table_id=_ID, first=(1, 5), last=(1, 10), reason="it was deleted")
    inside, missing = covered(gap, judged, [_event(), _event(11, clustering=("04",))])
    assert ({each[5] for each in inside}, missing) == ({("02",), ("03",)}, 1)
    reported = ReportedGap(gap=gap, node=2, changes=len(inside), missing=missing)
    report = Report(seed=1, nodes=2, cassandra="5.0", plan=[], replay="", gaps=[reported])
    assert "  t of node 2, behind 1:5 up to 1:10: 2 changes, 1 of them on no events topic (it was deleted)" in (
        report.lines()
    )


@pytest.mark.parametrize(
    ("touched", "partitions", "excused"),
    [({"01"}, {b"k": "01"}, 1), ({"02"}, {b"k": "01"}, 0), ({"02"}, {}, 1), (set(), {}, 0)],
)
def test_a_row_may_differ_only_where_its_partition_has_a_change_in_a_gap(
    touched: set[str], partitions: dict[bytes, str], excused: int
) -> None:
    """A row without any event can only have had changes that are lost."""
    found = compare(_SHAPE, _stored({(1, "a"): _ROW}), fold(_SHAPE, []), has_gaps=True)
    found.in_question = [(b"k", text) for _, text in found.in_question]
    assert (len(found.in_question), found.differences) == (1, [])
    found.judge(partitions, touched)
    assert (found.excused, len(found.differences)) == (excused, 1 - excused)


def test_a_change_of_which_a_dropped_column_left_nothing_may_be_there_or_not() -> None:
    """The agent may have read the change before or after the ALTER."""
    judged = _judged(_line("02"), columns={"w"})
    assert compare_events(_NODE, judged, [], _COLUMNS) == []
    assert compare_events(_NODE, judged, [_event()], _COLUMNS) == []


def test_an_event_of_dropped_columns_only_is_not_invented() -> None:
    """Cassandra's reader finds nothing of its row. An event with an existing column is invented."""
    judged = _judged()
    assert compare_events(_NODE, judged, [_event(columns=("gone",))], _COLUMNS) == []
    assert compare_events(_NODE, judged, [_event(columns=("gone", "v"))], _COLUMNS) != []
    assert compare_events(_NODE, judged, [_event(columns=())], _COLUMNS) != []


def test_an_older_event_behind_a_newer_one_of_its_key_is_out_of_order() -> None:
    """Repetitions in order are allowed, so an older event is right if it came before already."""
    assert order_problems([_event(10), _event(20), _event(10), _event(20)]) == []
    assert order_problems([_event(20), _event(10, key=b"other", partition_key="02")]) == []
    assert len(order_problems([_event(20), _event(10)])) == 1


def test_a_deletion_of_many_rows_is_in_order_with_each_of_them() -> None:
    """The deletion has another key than the rows, but the same partition key."""
    row, deletion = _event(10), _event(20, kind="PARTITION_DELETION", key=b"scope", clustering=())
    assert order_problems([row, deletion]) == []
    assert len(order_problems([deletion, row])) == 1


def test_a_key_in_two_topic_partitions_has_no_order() -> None:
    """The events of each topic partition may be in order; the later event may even come from another node."""
    assert order_problems([_event(10), _event(20)]) == []
    [problem] = order_problems([_event(10, partition=0), _event(20, partition=1)])
    assert "topic partitions 0 and 1" in problem
    assert len(order_problems([_event(10), _event(20, node=str(UUID(int=1)), partition=1)])) == 1


def test_changes_on_their_way_are_counted_at_a_moment() -> None:
    """The change is written at 1 s, on the events topic at 2 s, and on the data topic at 3 s."""
    record = _record(value=_VALUE)
    key = record.key_bytes
    in_flight = InFlight(777)
    at_3_s = DataRecord(
        key_bytes=key, key=record.key, value=record.value, value_bytes=None, properties={}, published_ms=3_000
    )
    in_flight.add([_event(key=key), _event(20, key=b"given", writetime_us=1_000_777)], [at_3_s])
    in_flight.sort()
    assert [in_flight.at(moment) for moment in (0.5, 1.5, 2.5, 3.5)] == [(0, 0), (1, 0), (0, 1), (0, 0)]


@pytest.mark.parametrize(
    ("cql_type", "driver", "avro"),
    [
        ("double", float("nan"), float("nan")),
        ("float", 1.5, 1.5),
        ("inet", "2001:db8::1", "2001:db8:0:0:0:0:0:1"),
        ("varint", -200, (-200).to_bytes(2, "big", signed=True)),
        ("list<int>", [1, 2], [1, 2]),
        ("frozen<set<text>>", {"a", "b"}, ["b", "a"]),
        ("map<int, frozen<list<bigint>>>", {1: [2]}, {"1": [2]}),
        ("frozen<tuple<int, text>>", (1, None), {"index_0": 1, "index_1": None}),
    ],
)
def test_a_value_has_one_form_on_both_sides(cql_type: str, driver: object, avro: object) -> None:
    """A different value has a different form."""
    assert form_of_driver(cql_type, driver) == form_of_avro(cql_type, avro)
    assert form_of_driver("double", -0.0) != form_of_avro("double", 0.0)


def test_of_the_records_of_a_key_the_last_one_is_what_a_sink_has() -> None:
    """A null deletes the row; a null for a key without a row changes nothing."""
    other = (1, 2, "b")
    records = [_record(value=_VALUE), _record(key=other), _record(value={**_VALUE, "w": 9}), _record(key=other)]
    assert last_of_each_key(_SHAPE, records) == {((1,), (1, "a")): {"s": None, "v": "x", "w": 9}}
    assert last_of_each_key(_SHAPE, [*records, _record()]) == {}


def _told(op: str, before: Mapping[str, object] | None, after: Mapping[str, object] | None) -> DataRecord:
    return _record(value={"op": op, "before": before, "after": after})


def test_changes_are_replayed_if_each_begins_where_the_last_one_ended() -> None:
    """A missing change, a repeated one, and an `op` that does not fit are reported."""
    newer = {**_VALUE, "w": 9}
    chain = [_told("c", None, _VALUE), _told("u", _VALUE, newer), _told("d", newer, None)]
    assert replayed(_SHAPE, chain) == ({}, [])
    assert replayed(_SHAPE, chain[:2]) == ({((1,), (1, "a")): {"s": None, "v": "x", "w": 9}}, [])
    for wrong in (chain[1:], [chain[0], chain[2]], [*chain[:2], *chain[:2]], [_told("u", None, _VALUE)]):
        _, problems = replayed(_SHAPE, wrong)
        assert problems


def test_rows_of_a_sink_are_compared_with_what_cassandra_answers() -> None:
    """Extra rows, missing rows and wrong values are reported; a partition of only static columns is a row of nulls."""
    stored = Stored()
    stored.rows, stored.statics = {(1,): {(1, "a"): {"v": "V", "w": 1}}, (2,): {}}, {(1,): {"s": "S"}, (2,): {"s": "T"}}
    wanted = selected(_SHAPE, stored)
    rows = [
        {"pk": 1, "c1": 1, "c2": "a", "s": "S", "v": "V", "w": 1},
        {"pk": 2, "c1": None, "c2": None, "s": "T", "v": None, "w": None},
    ]
    assert mirrored(_SHAPE, rows) == wanted
    assert differences("mirror", wanted, mirrored(_SHAPE, rows)) == []
    for wrong in (rows[1:], [*rows, {**rows[0], "c1": 2}], [{**rows[0], "w": 2}, rows[1]]):
        (line,) = differences("mirror", wanted, mirrored(_SHAPE, wrong))
        assert line.startswith("mirror ((1,), (")
