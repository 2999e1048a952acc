"""The content of a micro-batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from schemas.record_properties import STATIC_COLUMNS, TABLE_ID
from spark_bridge.jobs.mirror_state import RecordPosition
from spark_bridge.rows.record_places import RECORD_POSITION, said
from spark_bridge.rows.sql_columns import struct
from spark_bridge.rows.table_lives import GENERATION, TableLife, newest_life

__all__ = ["MOST_HERE", "NO_CONTENT", "BatchContent", "content_of"]

MOST_HERE: Final = 5_000
"""Up to this number, records are folded in this process: to start Spark's Python processes for them takes longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContent:
    """The content of a micro-batch: the number of records, the last position of each topic partition, the latest life
    of the table, all static columns that the table's records have named, and the newest publication in seconds.
    """

    records: int
    positions: Mapping[str, RecordPosition]
    life: TableLife | None
    static_columns: tuple[str, ...]
    newest_publish_s: int


NO_CONTENT: Final = BatchContent(records=0, positions={}, life=None, static_columns=(), newest_publish_s=0)
"""The content of a micro-batch without records."""


def content_of(raw: DataFrame, known: TableLife | None) -> BatchContent:
    """The content of a micro-batch of raw rows, in one pass.

    `known`: the mirror's life, which may be later than the batch's.
    """
    of_table = {"table_id": said(TABLE_ID), "generation": GENERATION, "static_columns": said(STATIC_COLUMNS)}
    told = {
        "records": "count(*)",
        "last": f"max({RECORD_POSITION})",
        "said": f"collect_set({struct(of_table)})",
        "publish_s": "max(unix_seconds(publish_time))",
    }
    grouped = raw.groupBy("topic", "partition")
    found = grouped.agg(*[F.expr(f"{each} AS {name}") for name, each in told.items()]).collect()
    all_said = [each for row in found for each in row.said]
    lives = [TableLife(each.table_id, each.generation) for each in all_said if each.table_id is not None]
    newest = newest_life([*lives, *([] if known is None else [known])])
    of_newest = (None, None if newest is None else newest.table_id)
    lists = [each.static_columns for each in all_said if each.static_columns and each.table_id in of_newest]
    return BatchContent(
        records=sum(row.records for row in found),
        positions={
            _partition_topic(row): (row["last"].ledger, row["last"].entry, row["last"]["index"]) for row in found
        },
        life=newest_life(lives),
        static_columns=tuple(sorted({name for each in lists for name in json.loads(each)})),
        newest_publish_s=max((row.publish_s for row in found), default=0),
    )


def _partition_topic(row: Row) -> str:
    return str(row.topic) if row.partition < 0 else f"{row.topic}-partition-{row.partition}"
