"""A data topic is given more partitions: records of one key stand in two of them, whose ledgers tell no order."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from spark_bridge.rows.record_places import newest_of
from tests.fix_mirror import MirrorOf
from tests.fix_spark import PY4J_LEAVES_SOCKETS_OPEN, MakeTopic
from tests.table_records import WIDE, row, row_deletion

pytestmark = [
    pytest.mark.filterwarnings(PY4J_LEAVES_SOCKETS_OPEN),
    pytest.mark.timeout(1_500),
    pytest.mark.spark_line(">=4.1"),
]

_PLACED = (
    "name string, record struct<at: struct<position: struct<ledger: int, entry: int>, partition: int, clock: int, "
    "writetime: bigint>, value: string>"
)
_RecordPlace = tuple[int, int, int, int | None]
"""Ledger, topic partition, clock, write time."""
_LAST: Sequence[tuple[str, Sequence[_RecordPlace]]] = (
    ("within a partition the position tells", ((5, 0, 100, 9), (6, 0, 90, 1))),
    ("between partitions the clock tells", ((6, 0, 90, 9), (5, 1, 100, 1))),
    ("of equal clocks the write time tells", ((6, 0, 100, None), (7, 2, 100, 1), (5, 1, 100, 2))),
    ("what follows in a partition is no earlier", ((7, 1, 95, 1), (5, 0, 100, 1), (6, 0, 90, 1))),
    ("a topic without partitions", ((5, -1, 0, 9), (6, -1, 0, 1))),
)


def test_a_later_update_or_deletion_of_a_moved_key_wins(data_topic: MakeTopic, mirror_of: MirrorOf) -> None:
    topic = data_topic(*WIDE, partitions=2)
    mirror = mirror_of(topic)
    old, new = (replace(topic, name=f"{topic.name}-partition-{number}") for number in (0, 1))
    # The old partition's ledger is the younger one, as when it rolls over while keys still come to it.
    new.write(row("p", 9, "", 9))
    old.write(*[row("p", a, "", 1) for a in (1, 2, 3, 4, 5)])
    new.write(row("p", 1, "", 2), row_deletion("p", 2, ""))
    mirror.run()
    assert _values(mirror.rows()) == {1: 2, 3: 1, 4: 1, 5: 1, 9: 9}
    new.write(row("p", 2, "", 3), row("p", 3, "", 2), row_deletion("p", 4, ""))
    mirror.run()
    assert _values(mirror.rows()) == {1: 2, 2: 3, 3: 2, 5: 1, 9: 9}
    assert mirror.rows() == mirror.wanted() == mirror.replayed() == mirror.open_versions()


def test_positions_order_a_partition_and_clocks_order_partitions(spark: SparkSession) -> None:
    """The last of each case is the newest one, in whatever order the records come."""
    rows = [
        {"name": f"{name}, {number}", "record": _record(at, is_last=at == places[-1])}
        for name, places in _LAST
        for number, order in enumerate(itertools.permutations(places))
        for at in order
    ]
    lines = spark.createDataFrame([(json.dumps(each),) for each in rows], "line string")
    records = lines.select(F.from_json("line", _PLACED).alias("each")).select("each.*")
    newest = records.groupBy("name").agg(newest_of(F.col("record")).alias("record"))
    found = {each.name: each.value for each in newest.select("name", "record.value").collect()}
    assert found == {each["name"]: "last" for each in rows}


def _record(at: _RecordPlace, *, is_last: bool) -> dict[str, object]:
    ledger, partition, clock, writetime = at
    position = {"ledger": ledger, "entry": 0}
    place = {"position": position, "partition": partition, "clock": clock, "writetime": writetime}
    return {"at": place, "value": "last" if is_last else "earlier"}


def _values(rows: Sequence[str]) -> dict[int, int]:
    return {each["a"]: each["v"] for each in map(json.loads, rows)}
