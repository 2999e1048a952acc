"""The table as it is now, or as of a time. Each call reads the whole topic, since no state is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from schemas.errors import ConfigError
from spark_bridge.rows.current_table import current_table
from spark_bridge.topics.options import texts_without
from spark_bridge.topics.positions import parse_time_ms

__all__ = ["latest_on_read"]

Options = Mapping[str, str | int | bool]


def latest_on_read(
    spark: SparkSession, options: Options, *, as_of: str | None = None, static_columns: Sequence[str] | None = None
) -> DataFrame:
    """The table's rows by the topic's records, up to its end or to a time with its zone (`2026-11-21T05:00:00Z`).

    With a time, only records count that were published before it, and rows with a TTL that had not expired then. The
    columns are those of the newest schema. Raises ConfigError, TopicError, PulsarUnreachableError.
    """
    if as_of is None:
        return current_table(spark, options, static_columns=static_columns)
    given = texts_without(options, "endingoffsets")
    time_ms = parse_time_ms(as_of)
    if time_ms is None:
        raise ConfigError.of("as_of", f"{as_of!r} is no time with its zone, such as 2026-11-21T05:00:00Z")
    return current_table(
        spark, {**given, "endingOffsets": as_of}, static_columns=static_columns, clock_s=time_ms // 1000
    )
