"""A mirror without change log and history: the driver folds small micro-batches, and the merge reads no rows."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal

import pytest

from schemas.errors import ConfigError
from spark_bridge.jobs.small_merge import merge_folded
from spark_bridge.rows.folding import folded_here
from tests.fixtures.mirror import MirrorOf
from tests.fixtures.spark import MakeTopic, Record, table_schemas
from tests.topics.table_records import PLAIN, WIDE, partition_deletion, range_deletion, row, row_deletion, static_row

pytestmark = [pytest.mark.timeout(1_500), pytest.mark.spark_line(">=4.1")]

_LONG = "x" * 20_000
"""The driver does not fold micro-batches with a static value of this length."""

_STEPS: Sequence[tuple[str, list[Record], tuple[int, int, int]]] = [
    (
        "the first rows make the table",
        [row("p", 1, "x", 1, s="s"), row("p", 2, "x", 2, s="s"), row("q", 1, "x", 1), row("gone", 1, "x", 1)],
        (4, 0, 0),
    ),
    (
        "new, changed and deleted; static columns change all rows of a partition; what is the same is no change",
        [
            row("p", 3, "x", 3, s="s"),
            static_row("p", s="s2"),
            row_deletion("q", 1, "x"),
            row_deletion("q", 9, "x"),
            row("gone", 1, "x", 1),
        ],
        (1, 2, 1),
    ),
    (
        "a partition without rows keeps its static columns, and shows them",
        [
            range_deletion("p", start={"a": 2}),
            row_deletion("p", 1, "x"),
            static_row("only", s="s"),
            static_row("cleared", s=None, t=None),
        ],
        (2, 0, 3),
    ),
    (
        "rows come back to it; a deleted partition has nothing, whatever its rows were",
        [row("p", 5, "x", 5, s="s2"), partition_deletion("gone"), row("only", 1, "y", 1, s=_LONG)],
        (2, 0, 3),
    ),
    (
        "what was long is gone",
        [partition_deletion("only"), row("p", 5, "x", 6, s="s2")],
        (0, 1, 1),
    ),
]


def test_small_micro_batches_give_the_current_table(
    mirror_of: MirrorOf, data_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and counts are right, as in the topic's current table, also when the driver leaves the fold to Spark."""
    topic = data_topic(*WIDE)
    kept = mirror_of(topic)
    folds = list[str]()
    used = "spark_bridge.jobs.touched_rows"
    monkeypatch.setattr(f"{used}.folded_here", lambda *args: _noted(folds, "here", folded_here(*args)))
    monkeypatch.setattr(f"{used}.merge_folded", lambda *args: _noted(folds, "merge", merge_folded(*args)))
    for case, records, counts in _STEPS:
        topic.write(*records)
        summary = kept.run(changelog=False, history=False)
        assert (summary.inserted, summary.updated, summary.deleted) == counts, case
        assert kept.rows() == kept.wanted(), case
    assert folds == ["here", "here", "merge", "here", "merge", "not here", "not here"]
    again = kept.run(changelog=False, history=False)
    assert (again.records, again.inserted, again.updated, again.deleted) == (0, 0, 0, 0)


def test_numbers_as_text_are_merged_alike(data_topic: MakeTopic, mirror_of: MirrorOf) -> None:
    """Spark's Python processes format these numbers, and a `MERGE` would repeat this in each of its passes."""
    topic = data_topic(*PLAIN)
    kept = mirror_of(topic, numbers="string")
    for data in (b"\x05", b"\x7f" * 30):
        topic.write(Record(key={"id": 1}, value={"name": "a", "price": {"bigint": data, "scale": 2}}))
        summary = kept.run(changelog=False, history=False)
    assert (summary.inserted, summary.updated, summary.deleted) == (0, 1, 0)
    (row,) = kept.table("rows").collect()
    assert row.price == str(Decimal(int.from_bytes(b"\x7f" * 30, "big")).scaleb(-2, Context(prec=100)))


def test_owners_do_not_depend_on_the_session_s_time_zone(data_topic: MakeTopic, mirror_of: MirrorOf) -> None:
    """A run and a fresh table in another time zone find the kept records of a partition whose key is a timestamp."""
    schemas = table_schemas(partition_key={"at": "timestamp"}, clustering={"a": "int"}, regular={"v": "int"})
    topic = data_topic(*schemas)
    kept = mirror_of(topic)
    records = [Record(key={"at": 1_795_000_000_000, "a": a}, value={"v": a}) for a in range(2)]
    topic.write(*records)
    kept.run(changelog=False, history=False)
    zone = kept.spark.conf.get("spark.sql.session.timeZone")
    kept.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        topic.write(Record(key={"at": 1_795_000_000_000, "a": 0}, value={"v": 7}))
        assert kept.fresh() == kept.wanted()
        kept.run(changelog=False, history=False)
        assert kept.rows() == kept.wanted()
    finally:
        kept.spark.conf.set("spark.sql.session.timeZone", zone)


@pytest.mark.extended
def test_a_table_may_have_columns_of_any_name(data_topic: MakeTopic, mirror_of: MirrorOf) -> None:
    """Columns may have the names of the job's own columns. Only a history refuses names that it adds itself."""
    regular = dict.fromkeys(["op", "value", "closes", "step", "before", "after", "owner", "source", "scope"], "text")
    topic = data_topic(*table_schemas(partition_key={"key": "text"}, clustering={"epoch": "int"}, regular=regular))
    mirrors = [(mirror_of(topic, folder="plain"), False), (mirror_of(topic, folder="more"), True)]
    for written in ("first", "again"):
        values = {name: f"{name} {written}" for name in regular}
        topic.write(
            *[
                Record(key={"key": written, "epoch": 1}, value=values),
                Record(key={"key": "k", "epoch": 1}, value=values),
            ]
        )
        for kept, keeps_more in mirrors:
            kept.run(changelog=keeps_more, history=keeps_more)
            assert kept.rows() == kept.wanted()
    more, _ = mirrors[1]
    assert more.rows() == more.replayed() == more.open_versions()
    own = data_topic(*table_schemas(partition_key={"id": "int"}, regular={"Valid_From": "int"}))
    own.write(Record(key={"id": 1}, value={"Valid_From": 1}))
    with pytest.raises(ConfigError, match=r"history: the table has columns that a history adds itself \(Valid_From\)"):
        mirror_of(own, folder="own").run()


def _noted(folds: list[str], what: str, done: object) -> object:
    folds.append(what if done is not None else f"not {what}")
    return done
