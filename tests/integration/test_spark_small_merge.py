"""A mirror without change log and history: small micro-batches are folded in the driver and merged without a look at the rows."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal

import pytest

from spark_bridge.jobs.small_merge import merge_folded
from spark_bridge.rows.folding import folded_here
from tests.fixtures.mirror import MirrorOf
from tests.fixtures.spark import PY4J_LEAVES_SOCKETS_OPEN, MakeTopic, Record
from tests.topics.table_records import PLAIN, WIDE, partition_deletion, range_deletion, row, row_deletion, static_row

pytestmark = [
    pytest.mark.filterwarnings(PY4J_LEAVES_SOCKETS_OPEN),
    pytest.mark.timeout(1_500),
    pytest.mark.spark_line(">=4.1"),
]

_LONG = "x" * 20_000
"""A static column's value of such a length is not folded in the driver."""

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
    """Rows and counts, beside the table that the topic alone gives; and where the driver leaves the fold to Spark."""
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
    """Spark's Python processes write them out, which a `MERGE` would ask for again in each of its passes."""
    topic = data_topic(*PLAIN)
    kept = mirror_of(topic, numbers="string")
    for data in (b"\x05", b"\x7f" * 30):
        topic.write(Record(key={"id": 1}, value={"name": "a", "price": {"bigint": data, "scale": 2}}))
        summary = kept.run(changelog=False, history=False)
    assert (summary.inserted, summary.updated, summary.deleted) == (0, 1, 0)
    (row,) = kept.table("rows").collect()
    assert row.price == str(Decimal(int.from_bytes(b"\x7f" * 30, "big")).scaleb(-2, Context(prec=100)))


def _noted(folds: list[str], what: str, done: object) -> object:
    folds.append(what if done is not None else f"not {what}")
    return done
