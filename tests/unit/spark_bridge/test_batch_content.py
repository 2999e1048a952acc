"""What a micro-batch of few records holds, as the driver reads it."""

from __future__ import annotations

import pyarrow as pa

from schemas.record_properties import STATIC_COLUMNS, TABLE_GENERATION, TABLE_ID
from spark_bridge.jobs.batch_content import NO_CONTENT, content_here
from spark_bridge.reading.raw_columns import to_arrow
from spark_bridge.rows.table_lives import TableLife

_TOPIC = "persistent://public/default/data-shop.t"
_OLD = {TABLE_ID: "a", TABLE_GENERATION: "5", STATIC_COLUMNS: '["gone"]'}
_NEW = {TABLE_ID: "b", TABLE_GENERATION: "6", STATIC_COLUMNS: '["s"]'}
_LATER = {TABLE_ID: "b", TABLE_GENERATION: "6", STATIC_COLUMNS: '["s", "t"]'}


def _records(*parts: tuple[int, list[tuple[str, dict[str, str], int]]]) -> pa.Table:
    """Of topic partitions: message id, properties and publish time in microseconds."""
    return pa.Table.from_batches([
        to_arrow(_TOPIC, partition, [(b"k", None, said, at, 0, None, publish_us) for at, said, publish_us in rows])
        for partition, rows in parts
    ])  # fmt: skip


def test_positions_the_newest_life_and_its_static_columns() -> None:
    """Of each topic partition the last position, whatever the order; static columns are those of the newest life."""
    records = _records(
        (0, [("7:9:0", _NEW, 2_000_000), ("7:10:0:3", _LATER, 9_500_000), ("7:10:0:2", _OLD, 1_000_000)]),
        (1, [("3:1:1", {}, 4_000_000), ("12:0:1", {STATIC_COLUMNS: '["u"]'}, 3_000_000)]),
    )
    found = content_here(records, None)
    assert found.records == 5
    assert found.positions == {f"{_TOPIC}-partition-0": (7, 10, 3), f"{_TOPIC}-partition-1": (12, 0, -1)}
    assert found.life == TableLife("b", 6)
    assert found.static_columns == ("s", "t", "u")
    assert found.newest_publish_s == 9


def test_a_batch_may_lag_behind_the_mirrors_life() -> None:
    """Static columns of a life that is over do not count; a topic without partitions keeps its name."""
    found = content_here(_records((-1, [("7:9:-1", _OLD, 2_000_000)])), TableLife("b", 6))
    assert found.life == TableLife("a", 5)
    assert found.static_columns == ()
    assert found.positions == {_TOPIC: (7, 9, -1)}


def test_nothing() -> None:
    """No record at all."""
    assert content_here(_records((0, [("1:1:0", {}, 1)])).slice(0, 0), None) == NO_CONTENT
