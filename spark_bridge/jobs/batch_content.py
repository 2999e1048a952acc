"""What a micro-batch holds: read once, into this process where it is little."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from schemas.record_properties import STATIC_COLUMNS, TABLE_ID
from spark_bridge.jobs.mirror_state import RecordPosition
from spark_bridge.rows.record_places import record_place
from spark_bridge.rows.table_lives import TableLife, generation_column, life_of, newest_life

__all__ = ["MOST_HERE", "NO_CONTENT", "BatchContent", "content_here", "content_of", "records_here"]

MOST_HERE: Final = 5_000
"""So many records are taken into this process, which costs less than to have Spark's tasks work on them."""
_LONGEST_HERE: Final = 16 << 10
_MOST_BYTES_HERE: Final = 32 << 20
"""Bytes of a value, and of all records: more might not fit into the memory of this process, or into a task of Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContent:
    """What a micro-batch holds: records, the last position of each topic partition, the latest life of the table, times.

    `static_columns`: all that records of the table have named, in any order.
    """

    records: int
    positions: Mapping[str, RecordPosition]
    life: TableLife | None
    static_columns: tuple[str, ...]
    newest_publish_s: int


NO_CONTENT: Final = BatchContent(records=0, positions={}, life=None, static_columns=(), newest_publish_s=0)
"""Of a micro-batch without records."""


def records_here(raw: DataFrame) -> pa.Table | None:
    """All raw rows, read by one Spark job; None where they are more, or longer, than this process should take."""
    fits = F.coalesce(F.length("value"), F.lit(0)) <= _LONGEST_HERE
    found = raw.withColumns({"value": F.when(fits, F.col("value")), "fits": fits}).limit(MOST_HERE + 1).toArrow()
    is_little = len(found) <= MOST_HERE and found.nbytes <= _MOST_BYTES_HERE
    if not is_little or not pc.all(found["fits"], min_count=0).as_py():
        return None
    return found.drop_columns(["fits"])


def content_here(records: pa.Table, known: TableLife | None) -> BatchContent:
    """Of `records_here`. `known`: the mirror's life, for the batch may lag behind it."""
    names = ("topic", "partition", "message_id", "publish_time", "properties")
    columns = [records[name].to_pylist() for name in names]
    parts = dict[tuple[str, int], _PartContent]()
    for topic, partition, message_id, published, properties in zip(*columns, strict=True):
        part = parts.setdefault((topic, partition), _PartContent(topic, partition))
        part.records += 1
        part.last = max(part.last, _position(message_id))
        part.publish_s = max(part.publish_s, int(published.timestamp()))
        said = dict(properties)
        part.said.add((life_of(said), said.get(STATIC_COLUMNS)))
    return _content(parts.values(), known)


def content_of(raw: DataFrame, known: TableLife | None) -> BatchContent:
    """As `content_here`, of raw rows; one pass over them."""
    said = F.struct(
        F.col("properties")[TABLE_ID].alias("table_id"),
        generation_column().alias("generation"),
        F.col("properties")[STATIC_COLUMNS].alias("static_columns"),
    )
    found = (
        raw.groupBy("topic", "partition")
        .agg(
            F.count("*").alias("records"),
            F.max(record_place().getField("position")).alias("last"),
            F.collect_set(said).alias("said"),
            F.max(F.unix_seconds("publish_time")).alias("publish_s"),
        )
        .collect()
    )
    return _content(map(_PartContent.of_row, found), known)


@dataclass(slots=True)
class _PartContent:
    """Of one topic partition. `said`: lives and lists of static columns that its records name."""

    topic: str
    partition: int
    records: int = 0
    last: RecordPosition = (-1, -1, -1)
    publish_s: int = 0
    said: set[tuple[TableLife | None, str | None]] = field(default_factory=set)

    @classmethod
    def of_row(cls, row: Row) -> _PartContent:
        last = row["last"]
        said = {
            (None if each.table_id is None else TableLife(each.table_id, each.generation), each.static_columns)
            for each in row.said
        }
        position = last.ledger, last.entry, last["index"]
        return cls(row.topic, row.partition, row.records, position, row.publish_s, said)

    @property
    def name(self) -> str:
        """The topic partition's."""
        return self.topic if self.partition < 0 else f"{self.topic}-partition-{self.partition}"


def _content(parts: Iterable[_PartContent], known: TableLife | None) -> BatchContent:
    parts = list(parts)
    said = [each for part in parts for each in part.said]
    lives = [life for life, _ in said if life is not None]
    newest = newest_life([*lives, *([] if known is None else [known])])
    lists = [
        statics
        for life, statics in said
        if statics and (life is None or (newest is not None and life.table_id == newest.table_id))
    ]
    return BatchContent(
        records=sum(each.records for each in parts),
        positions={each.name: each.last for each in parts},
        life=newest_life(lives),
        static_columns=tuple(sorted({name for each in lists for name in json.loads(each)})),
        newest_publish_s=max((each.publish_s for each in parts), default=0),
    )


def _position(message_id: str) -> RecordPosition:
    ledger, entry, _, *index = map(int, message_id.split(":"))
    return ledger, entry, index[0] if index else -1
