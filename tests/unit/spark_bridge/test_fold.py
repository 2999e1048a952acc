"""The folding rules compared with a dictionary that applies single records, on Arrow batches as in Spark's workers."""

from __future__ import annotations

import base64
import io
import itertools
import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from schemas.row_record import record_writer
from spark_bridge.rows.fold import (
    NOTHING,
    PARTITION,
    RANGE,
    ROW,
    STATIC,
    Deleted,
    Going,
    KeyRecords,
    Place,
    Rules,
    Valued,
    newest,
)
from spark_bridge.rows.fold_batches import (
    BOUNDS,
    FOLD_COLUMNS,
    FOLDED_SCHEMA,
    KEPT_SCHEMA,
    fold_batches,
    folded_table,
)
from spark_bridge.rows.range_scope import RangeScope
from spark_bridge.topics.table_clearing import TableClearing
from spark_bridge.topics.topic_schemas import AvroRecord
from tests.fixtures.spark import table_schemas

KEY, VALUE = table_schemas(
    partition_key={"pk": "text"}, clustering={"a": "int", "b": "text"}, regular={"v": "int"}, static={"s": "int"}
)
VERSION: Final = 3
NOW_S: Final = 1_000
WRITE_KEY, WRITE_VALUE = record_writer(KEY), record_writer(VALUE)
KEPT: Final = to_arrow_schema(KEPT_SCHEMA)
KEPT_PARTS: Final = [each for each in KEPT if each.name not in ("owner", "key", "scope", "bounds", "key_version")]
NUMBERS: Final = {
    "key_version": pa.int64(),
    "ledger": pa.int64(),
    "entry": pa.int64(),
    "batch_index": pa.int32(),
    "partition": pa.int32(),
    "clock_us": pa.int64(),
    "writetime": pa.int64(),
    "expires_at": pa.int64(),
    "cells_expire_at": pa.int64(),
    "deletion_time": pa.int64(),
    "run": pa.int64(),
}
OTHERS: Final = {
    "owner": pa.string(),
    "key": pa.binary(),
    "scope": pa.string(),
    "bounds": KEPT.field("bounds").type,
    "value": pa.binary(),
    "columns_expire_at": pa.string(),
    "is_sure": pa.bool_(),
    "static_columns": pa.string(),
    "kept": pa.struct(KEPT_PARTS),
}
TOLD: Final = pa.schema([(name, {**NUMBERS, **OTHERS}[name]) for name in FOLD_COLUMNS])
Told = dict[str, object]


class Row(NamedTuple):
    """From now on the partition has this row and these static columns."""

    a: int
    b: str
    v: int
    s: int | None


class Delete(NamedTuple):
    """Deletes one row."""

    a: int
    b: str


class DeleteRange(NamedTuple):
    """Deletes the rows between two prefixes of clustering columns; an empty prefix is an open end."""

    start: tuple[int | str, ...]
    end: tuple[int | str, ...]
    has_start: bool
    has_end: bool


class Static(NamedTuple):
    """Sets the static column alone; None deletes it."""

    s: int | None


class DeletePartition(NamedTuple):
    """Deletes the whole partition."""


Change = Row | Delete | DeleteRange | Static | DeletePartition
PREFIXES: Final = st.one_of(
    st.just(()), st.tuples(st.integers(-2, 2)), st.tuples(st.integers(-2, 2), st.sampled_from(["", "a", "b", "é"]))
)
CHANGES: Final = st.one_of(
    st.builds(
        Row, st.integers(-2, 2), st.sampled_from(["", "a", "b", "é"]), st.integers(0, 9), st.none() | st.integers(0, 9)
    ),
    st.builds(Delete, st.integers(-2, 2), st.sampled_from(["", "a", "b", "é"])),
    st.builds(DeleteRange, PREFIXES, PREFIXES, st.booleans(), st.booleans()),
    st.builds(Static, st.none() | st.integers(0, 9)),
    st.builds(DeletePartition),
)


class Model:
    """The partition as Cassandra has it."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, str], int] = {}
        self.static: int | None = None

    def apply(self, change: Change) -> None:
        """Apply the next change."""
        match change:
            case Row(a, b, v, s):
                self.rows[a, b], self.static = v, s
            case Delete(a, b):
                self.rows.pop((a, b), None)
            case DeleteRange():
                self.rows = {key: v for key, v in self.rows.items() if not _covers(change, key)}
            case Static(s):
                self.static = s
            case DeletePartition():
                self.rows, self.static = {}, None


def _covers(change: DeleteRange, key: tuple[int, str]) -> bool:
    start, end = key[: len(change.start)], key[: len(change.end)]
    is_behind = not change.start or start > change.start or (start == change.start and change.has_start)
    return is_behind and (not change.end or end < change.end or (end == change.end and change.has_end))


def told_of(change: Change, position: int) -> Told:
    """The change as a record of the data topic."""
    given: Told = dict.fromkeys(FOLD_COLUMNS)
    given.update(owner="p", ledger=position // 7, entry=position % 7, batch_index=-1, partition=0, key_version=VERSION)
    given.update(clock_us=position // 3, writetime=position, is_sure=False, scope=ROW)
    match change:
        case Row(a, b, v, s):
            given.update(key=key_of(a, b), value=WRITE_VALUE({"v": v, "s": s}))
        case Delete(a, b):
            given.update(key=key_of(a, b))
        case DeleteRange(start, end, has_start, has_end):
            bounds = [
                *map(bound_of, (start, end)),
                *[str(each).lower() for each in (has_start, has_end)],
                None,
                None,
                VERSION,
            ]
            given.update(scope=RANGE, key=key_of(), bounds=dict(zip(BOUNDS, bounds, strict=True)))
            given.update(deletion_time=position)
        case Static(s):
            value = None if s is None else WRITE_VALUE({"v": None, "s": s})
            given.update(scope=STATIC, key=key_of(), value=value)
        case DeletePartition():
            given.update(scope=PARTITION, key=key_of(), deletion_time=position)
    return given


def key_of(*clustering: int | str) -> bytes:
    return WRITE_KEY({"pk": "p", **dict(zip(("a", "b"), (*clustering, None, None), strict=False))})


def bound_of(prefix: Sequence[int | str]) -> str | None:
    return base64.b64encode(key_of(*prefix)).decode() if prefix else None


def fold(told: Sequence[Told], rules: Rules, now_s: int = NOW_S) -> list[dict[str, Any]]:
    """The folded rows, from batches of three records."""
    batches = [pa.RecordBatch.from_pylist(list(told[at : at + 3]), schema=TOLD) for at in range(0, len(told), 3)]
    folded = list(fold_batches(rules, now_s)(batches))
    assert all(each.schema == to_arrow_schema(FOLDED_SCHEMA) for each in folded)
    return [row for each in folded for row in each.to_pylist()]


def rules_of(static_names: Sequence[str] | None, clearings: Sequence[TableClearing] = ()) -> Rules:
    return Rules(True, static_names, RangeScope([(VERSION, cast("AvroRecord", KEY))]), clearings)


def kept_of(folded: Sequence[dict[str, Any]], run: int = 0) -> list[Told]:
    """The kept rows of an earlier fold with this run number, as a later fold gets them."""
    names = [each.name for each in KEPT_PARTS]
    return [
        {
            **dict.fromkeys(FOLD_COLUMNS),
            **{each: row[each] for each in ("owner", "key", "scope", "bounds", "key_version")},
            "run": run,
            "kept": {name: row[name] for name in names},
        }
        for row in folded
        if not row["is_dropped"]
    ]


def read(data: bytes, schema: object) -> dict[str, Any]:
    return cast(
        "dict[str, Any]",
        fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(cast("dict[str, object]", schema)), None),
    )


def shown(folded: Sequence[dict[str, Any]]) -> tuple[dict[tuple[int, str], int], int | None]:
    """The rows, and the static column that the rows, or the partition alone, show."""
    rows, statics = {}, set()
    for each in folded:
        if each["is_alive"]:
            key = read(each["key"], KEY)
            rows[key["a"], key["b"]] = read(each["valued"]["value"], VALUE)["v"]
        if each["is_alive"] or each["is_static_only"]:
            assert each["static_names"] == ["s"]
            statics.add(None if each["static_value"] is None else read(each["static_value"], VALUE)["s"])
    assert len(statics) <= 1
    return rows, next(iter(statics), None)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(CHANGES, st.booleans()), max_size=30), st.randoms(use_true_random=False))
def test_in_whatever_steps_records_come_the_rows_are_those_of_a_dictionary(
    changes: Sequence[tuple[Change, bool]], random: Any
) -> None:
    """The rows are compared after each step, which has records in any order and the rows that earlier steps kept.

    The fold also gets rows that still earlier steps kept, which must not count again.
    """
    rules = rules_of(["s"])
    model, step, kept = Model(), list[Told](), list[Told]()
    for position, (change, ends_step) in enumerate([*changes, (Static(5), True)]):
        model.apply(change)
        step.append(told_of(change, position))
        if not ends_step:
            continue
        told = [*step, *kept]
        random.shuffle(told)
        folded = fold(told, rules)
        rows, static = shown(folded)
        assert rows == model.rows
        assert static == model.static
        step, kept = [], [*kept, *kept_of(folded, run=position)]


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(CHANGES, max_size=12), st.lists(CHANGES, max_size=12))
def test_a_truncation_leaves_what_came_after_it(before: Sequence[Change], after: Sequence[Change]) -> None:
    """The truncation may apply to records or to kept rows of a fold; later records do not change the result."""
    first = [told_of(each, at) for at, each in enumerate(before)]
    then = [told_of(each, at) for at, each in enumerate([*after, Static(5)], start=len(before))]
    last = divmod(len(before) - 1, 7) if before else None
    truncation = TableClearing(
        kind="truncation",
        table_id="t",
        table_generation=None,
        time_ms=1,
        nodes=(),
        data_topic="persistent://public/default/data-shop.t",
        positions=(last,),
    )
    cleared = rules_of(["s"], [truncation])
    model = Model()
    for each in [*after, Static(5)]:
        model.apply(each)
    wanted = model.rows, model.static
    assert shown(fold([*first, *then], cleared)) == wanted
    kept = kept_of(fold(first, rules_of(["s"])))
    swept = fold(kept, cleared)
    assert not any(each["is_alive"] or each["is_static_only"] for each in swept)
    assert shown(fold([*kept_of(swept, run=1), *kept, *then], rules_of(["s"]))) == wanted
    late = fold([*first, *then], rules_of(["s"]))
    assert shown(fold(kept_of(late), cleared)) == wanted


LAST: Final = (
    ("within a partition the position tells", ((5, 0, 100, 9), (6, 0, 90, 1))),
    ("between partitions the clock tells", ((6, 0, 90, 9), (5, 1, 100, 1))),
    ("of equal clocks the write time tells", ((6, 0, 100, None), (7, 2, 100, 1), (5, 1, 100, 2))),
    ("what follows in a partition is no earlier", ((7, 1, 95, 1), (5, 0, 100, 1), (6, 0, 90, 1))),
    ("a topic without partitions", ((5, -1, None, 9), (6, -1, None, 1))),
)


@pytest.mark.parametrize(("case", "places"), LAST)
def test_positions_order_a_partition_and_clocks_order_partitions(
    case: str, places: Sequence[tuple[int, int, int | None, int | None]]
) -> None:
    """The last record of each case is the newest in any order. Numbers: ledger, topic partition, clock, write time."""
    records = [
        Valued(Place((ledger, 0, -1), partition, clock, writetime), str(number).encode(), 1, None, Going())
        for number, (ledger, partition, clock, writetime) in enumerate(places)
    ]
    for order in itertools.permutations(records):
        found = newest(order)
        assert found is not None, case
        assert found.value == records[-1].value, case


@pytest.mark.parametrize(
    ("written_us", "deleted_us", "is_alive"),
    [(11, 10, True), (10, 10, False), (9, 10, False), (None, 10, True), (10, None, True)],
)
def test_a_marker_of_another_topic_partition_that_was_published_at_the_same_moment_goes_by_write_times(
    written_us: int | None, deleted_us: int | None, is_alive: bool
) -> None:
    """As in Cassandra, a deletion removes what has its own time. Without a time, the row may stay."""
    row, marker = KeyRecords(key=key_of(1, "a"), scope=ROW), KeyRecords(key=b"", scope=PARTITION)
    row.add_value(Valued(Place((5, 0, -1), 0, 100, written_us), b"", 1, None, Going()))
    marker.add_deletion(Deleted(Place((5, 0, -1), 1, 100, None), deleted_us))
    folded = rules_of([]).fold([row, marker], NOW_S)
    assert [each.is_alive for each in folded if each.scope == ROW] == [is_alive]


@pytest.mark.parametrize("expires_at", [None, NOW_S + 500], ids=["without a TTL", "with a TTL"])
def test_what_a_forgotten_marker_has_removed_does_not_keep_a_later_row_beyond_its_ttl(expires_at: int | None) -> None:
    """The removed record stays for its static columns only."""
    row, marker = KeyRecords(key=key_of(1, "a"), scope=ROW), KeyRecords(key=b"", scope=PARTITION)
    row.add_value(Valued(Place((5, 0, -1), 0, 100, 9), b"", 1, expires_at, Going()))
    marker.add_deletion(Deleted(Place((6, 0, -1), 0, 101, None), 10))
    kept = next(each for each in rules_of([]).fold([row, marker], NOW_S) if each.scope == ROW)
    again = KeyRecords(key=kept.key, scope=ROW)
    assert kept.valued is not None and kept.valued.is_removed
    again.add_kept_value(kept.valued)
    if kept.lasting is not None:
        again.add_lasting(kept.lasting)
    if kept.passing is not None:
        again.add_passing(kept.passing)
    again.add_value(Valued(Place((7, 0, -1), 0, 102, 11), b"", 1, NOW_S - 1, Going()))
    assert [each.is_alive for each in rules_of([]).fold([again], NOW_S)] == [False]


def test_static_columns_that_a_forgotten_marker_has_removed_do_not_come_back() -> None:
    """A later row of the partition has none."""
    static, marker = KeyRecords(key=key_of(), scope=STATIC), KeyRecords(key=b"", scope=PARTITION)
    static.add_value(Valued(Place((5, 0, -1), 0, 100, 9), b"", 1, None, Going()))
    marker.add_deletion(Deleted(Place((6, 0, -1), 0, 101, None), 10))
    kept = next(each for each in rules_of(["s"]).fold([static, marker], NOW_S) if each.scope == STATIC)
    again, row = KeyRecords(key=kept.key, scope=STATIC), KeyRecords(key=key_of(1, "a"), scope=ROW)
    if kept.valued is not None:
        again.add_kept_value(kept.valued)
    row.add_deletion(Deleted(Place((7, 0, -1), 0, 102, 11), None))
    assert [each.is_static_only for each in rules_of(["s"]).fold([again, row], NOW_S)] == [False, False]


@pytest.mark.parametrize("lag_us", [0, 10], ids=["equal clocks", "a later producer whose clock lags"])
def test_static_columns_are_those_of_the_last_record_in_a_topic_partition(lag_us: int) -> None:
    """The position decides, as for the records of one key, also if an earlier step has kept the first record."""
    first, second = told_of(Row(1, "a", 1, 1), 1), told_of(Row(2, "a", 2, 2), 2)
    for told, clock_us in ((first, 100), (second, 101 - lag_us)):
        told.update(clock_us=clock_us)
    rules = rules_of(["s"])
    wanted = {(1, "a"): 1, (2, "a"): 2}, 2
    assert shown(fold([first, second], rules)) == wanted
    assert shown(fold([second, *kept_of(fold([first], rules))], rules)) == wanted


def test_static_columns_follow_a_clock_that_lags_also_across_topic_partitions() -> None:
    """The last record of the earlier producer's topic partition was published later than that of another one."""
    places = [((1, 0), 0, 100), ((2, 0), 1, 95), ((1, 1), 0, 90)]
    told = [told_of(Row(a, "a", a, a), a) for a in range(3)]
    for each, ((ledger, entry), partition, clock_us) in zip(told, places, strict=True):
        each.update(ledger=ledger, entry=entry, partition=partition, clock_us=clock_us)
    wanted = {(a, "a"): a for a in range(3)}, 2
    rules = rules_of(["s"])
    for order in itertools.permutations(told):
        assert shown(fold(order, rules)) == wanted
        assert shown(fold([order[2], *kept_of(fold(order[:2], rules))], rules)) == wanted


def test_a_static_column_goes_by_itself_in_every_row_of_its_partition() -> None:
    """A row's own columns expire by its newest record, and static columns by the partition's newest record."""
    rules = rules_of(["s"])
    first = told_of(Row(1, "a", 1, 1), 1)
    first.update(columns_expire_at=json.dumps({"v": NOW_S + 50, "s": NOW_S - 7}))
    second = told_of(Row(2, "a", 2, 2), 2)
    second.update(columns_expire_at=json.dumps({"v": NOW_S - 3, "s": NOW_S + 20}))
    found = {each["key"]: each for each in fold([first, second], rules)}
    one, two = found[key_of(1, "a")], found[key_of(2, "a")]
    assert (one["gone_columns"], one["next_expiry_s"]) == ([], NOW_S + 20)
    assert (two["gone_columns"], two["next_expiry_s"]) == (["v"], NOW_S + 20)
    later = {each["key"]: each["gone_columns"] for each in fold([first, second], rules, NOW_S + 20)}
    assert later == {key_of(1, "a"): ["s"], key_of(2, "a"): ["v", "s"]}
    assert found[key_of(2, "a")]["writetime_us"] == (NOW_S - 3) * 1_000_000


def test_the_names_of_static_columns_outlive_the_record_that_a_marker_took() -> None:
    """Only these names tell which columns are static, until another record names them."""
    rules = rules_of(None)
    told = told_of(Static(1), 1)
    told.update(static_columns='["s"]')
    kept = kept_of(fold([told, told_of(DeletePartition(), 2), told_of(Row(1, "a", 1, 3), 3)], rules))
    for _ in range(2):
        folded = fold([told_of(Row(2, "a", 2, 4), 4), *kept], rules)
        assert [(each["static_names"], each["gone_columns"]) for each in folded if each["is_alive"]] == [
            (["s"], [])
        ] * 2
        kept = kept_of(folded)


def test_another_producers_properties_are_taken_as_nothing() -> None:
    """The properties are text, and need not be valid JSON."""
    told = told_of(Row(1, "a", 1, 1), 1)
    told.update(columns_expire_at="soon", static_columns="s, t")
    (found,) = fold([told], rules_of(None))
    assert (found["is_alive"], found["gone_columns"], found["static_names"]) == (True, [], [])


def test_what_was_kept_of_a_row_is_over_when_the_row_is_deleted() -> None:
    """A NOTHING row replaces the kept rows: otherwise an old row without a TTL would outlast a later one with a TTL."""
    rules = Rules(has_clustering=False, static_names=None, covers=RangeScope([(VERSION, cast("AvroRecord", KEY))]))
    first = kept_of(fold([told_of(Row(1, "a", 1, None), 1)], rules), run=1)
    second = kept_of(fold([told_of(Delete(1, "a"), 2), *first], rules), run=2)
    assert [each["scope"] for each in second] == [NOTHING]
    third = told_of(Row(1, "a", 2, None), 3)
    third.update(expires_at=NOW_S - 1)
    assert not any(each["is_alive"] for each in fold([third, *first, *second], rules))


def test_a_table_of_rows_in_any_order_is_folded_by_partition() -> None:
    """The driver's table of a small micro-batch has mixed owners in several chunks, and kept rows between records."""
    rules = rules_of(["s"])
    told = [
        {**told_of(Row(number % 4, "a", number, number), number), "owner": owner}
        for number in range(12)
        for owner in ("p", "q", "o")
    ]
    kept = [{**each, "owner": owner} for owner in "pq" for each in kept_of(fold([told_of(Static(7), 0)], rules))]
    mixed = [each for pair in itertools.zip_longest(told, kept) for each in pair if each is not None]
    batches = [pa.RecordBatch.from_pylist(mixed[at : at + 5], schema=TOLD) for at in range(0, len(mixed), 5)]
    folded = folded_table(pa.Table.from_batches(batches), rules, NOW_S)
    assert folded.schema == to_arrow_schema(FOLDED_SCHEMA)
    wanted = [row for owner in "opq" for row in fold([each for each in mixed if each["owner"] == owner], rules)]
    assert sorted(folded.to_pylist(), key=repr) == sorted(wanted, key=repr)
    nothing = folded_table(pa.Table.from_batches([], schema=TOLD), rules, NOW_S)
    assert (len(nothing), nothing.schema) == (0, folded.schema)


_UPDATED: Final[Told] = {"cells_expire_at": 120}
_INSERTED: Final[Told] = {"expires_at": 100, "cells_expire_at": 100, "is_sure": True}
_BACKFILLED: Final[Told] = {"expires_at": 110, "cells_expire_at": 110}
_EXPIRIES: Final = st.sampled_from([{}, _UPDATED, _INSERTED, _BACKFILLED])


def _is_alive_after(steps: Sequence[Sequence[Told]], now_s: int) -> bool:
    """Return whether the row exists at this time. The steps are folded before anything has expired."""
    rules, kept = rules_of([]), list[Told]()
    for run, step in enumerate(steps):
        kept = [*kept, *kept_of(fold([*step, *kept], rules, 10), run)]
    return any(each["is_alive"] for each in fold(kept, rules, now_s))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(_EXPIRIES, st.booleans()), min_size=1, max_size=6), st.sampled_from([99, 105, 115, 1_000]))
@example([({}, False), (_INSERTED, True), (_UPDATED, True)], 1_000)
@example([({}, True), (_INSERTED, True), (_BACKFILLED, True)], 1_000)
def test_in_whatever_steps_records_come_a_row_expires_the_same_way(
    given_records: Sequence[tuple[Told, bool]], now_s: int
) -> None:
    """An INSERT with a TTL replaces the row marker of an earlier one without TTL, which must not keep the row
    afterwards."""
    told = [told_of(Row(1, "a", at, None), at) | expiry for at, (expiry, _) in enumerate(given_records)]
    steps = [list[Told]()]
    for record, (_, ends_step) in zip(told, given_records, strict=True):
        steps[-1].append(record)
        if ends_step:
            steps.append([])
    assert _is_alive_after(steps, now_s) == _is_alive_after([told], now_s)


def test_an_insert_with_a_ttl_ends_what_an_earlier_one_without_kept() -> None:
    """The later UPDATE does not say whether the row remains, so the INSERT decides."""
    told = [told_of(Row(1, "a", at, None), at) | each for at, each in enumerate(({}, _INSERTED, _UPDATED))]
    assert [_is_alive_after([told], now_s) for now_s in (119, 120)] == [True, False]
    lasts = told_of(Row(1, "a", 3, None), 3)
    assert _is_alive_after([[*told, lasts]], 1_000)
