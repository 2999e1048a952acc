"""A mirror's table as it is now: its rows, updated by the topic's records since its last micro-batch. Nothing is
written.

So the mirror need not merge often. The newer records are folded by the same rules, together with the records that the
mirror keeps. All rows of Cassandra partitions that they do not touch come from the mirror. The mirror may be written at
the same time: records that it has merged meanwhile are folded again here, with the same result.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from schemas.errors import ConfigError
from spark_bridge.jobs.mirror_batch import MirrorBatch, MirrorSettings
from spark_bridge.jobs.mirror_state import Applied, MirrorTables, not_applied
from spark_bridge.reading.readers import raw_batch
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.clearings import clearings_now
from spark_bridge.topics.options import BridgeOptions, batch_options, texts_without
from spark_bridge.topics.positions import Position

__all__ = ["fresh_table"]

Options = Mapping[str, str | int | bool]


def fresh_table(
    spark: SparkSession, options: Options, target: str, *, static_columns: Sequence[str] | None = None
) -> DataFrame:
    """The result of `SELECT *` now, the key's columns first: the mirror below `target` and the topic's newer records.

    These records are read during this call. Only they and the Cassandra partitions that they touch are folded. The
    frame does not change later: for later changes call again, or make a view of each result
    (`createOrReplaceTempView`). `options` and `static_columns` are those of the mirror. Raises ConfigError if there is
    no mirror, or one of another topic, TopicError, PulsarUnreachableError, OtherTopicError, DataLossError, StateFileError.
    """
    tables = MirrorTables(spark, target)
    applied = tables.applied()
    if tables.rows.read() is None and not applied.epoch:
        reason = f"there is no mirror below {target}; `spark_bridge.current_table` reads the topic alone"
        raise ConfigError.of("target", reason)
    given = batch_options(options)
    parsed = BridgeOptions.from_mapping(given)
    settings = MirrorSettings(static_columns=None if static_columns is None else tuple(static_columns))
    tables.refuse_other_topic(parsed.only_topic)
    topic = tables.with_numbers(parsed.of_topic(parsed.only_topic))
    batch = MirrorBatch(tables, topic, settings, clearings=lambda: clearings_now(topic))
    tail = raw_batch(
        spark, {**texts_without(given, "startingoffsets", "endingoffsets"), **_offsets(parsed, applied)}
    ).where(not_applied(applied))
    return batch.fresh(tail, replace(applied, clock_s=int(time.time())))


def _offsets(options: BridgeOptions, applied: Applied) -> dict[str, str]:
    """Offsets from the mirror's positions to the topic's current end, so that each read of the tail is the same."""
    with PulsarAdmin(options) as admin:
        ends = {topic: str(admin.last_position(topic)) for topic in admin.topic_partitions()}
    starts = {
        topic: str(Position(*applied.positions[topic][:2])) if topic in applied.positions else "earliest"
        for topic in ends
    }
    return {"startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}
