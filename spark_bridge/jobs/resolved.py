"""Resolved timestamps for a batch pipeline: until when a table is complete."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from schemas.errors import ConfigError
from spark_bridge.jobs.mirror_state import MirrorTables
from spark_bridge.jobs.state_file import newest_state
from spark_bridge.reading.folders import FsspecFolder
from spark_bridge.topics.options import BridgeOptions, batch_options
from spark_bridge.topics.resolved import ResolvedTimestamps, table_of, wait_until_resolved

__all__ = ["mirror_resolved_ms", "mirror_resolved_timestamp", "resolved_timestamp", "wait_until_complete"]

Options = Mapping[str, str | int | bool]


def resolved_timestamp(spark: SparkSession, options: Options) -> datetime | None:
    """The data topic has every write that Cassandra acknowledged before this time (UTC); None: not known.

    Call this first, and then read: a read after the call has these writes. Raises ConfigError, PulsarUnreachableError,
    TopicError, and UnresolvedError if the options do not tell the table.
    """
    del spark  # an argument of every function here; only Pulsar is asked
    parsed = BridgeOptions.from_mapping(batch_options(options))
    with ResolvedTimestamps(parsed) as timestamps:
        return _time(timestamps.read(table_of(parsed)).resolved_ms)


def wait_until_complete(
    spark: SparkSession, options: Options, *, until: datetime | None = None, timeout_s: float = 300
) -> datetime:
    """Wait until the data topic has every write that was acknowledged up to `until` (with its zone; None: this call).

    Return the resolved timestamp. Raises UnresolvedError after `timeout_s`, and the errors of `resolved_timestamp`.
    """
    del spark
    if until is not None and until.tzinfo is None:
        raise ConfigError.of("until", "has no zone: datetime.now(UTC), for example")
    until_ms = int(time.time() * 1000) if until is None else int(until.timestamp() * 1000)
    parsed = BridgeOptions.from_mapping(batch_options(options))
    found = wait_until_resolved(parsed, table_of(parsed), until_ms, timeout_s).resolved_ms
    assert found is not None
    return datetime.fromtimestamp(found / 1000, UTC)


def mirror_resolved_timestamp(spark: SparkSession, target: str) -> datetime | None:
    """The mirror's tables have every write that Cassandra acknowledged before this time (UTC); None: not known."""
    return _time(MirrorTables(spark, target).applied().resolved_ms)


def mirror_resolved_ms(target: str) -> int | None:
    """As `mirror_resolved_timestamp`, in milliseconds since 1970, without a session.

    Raises OSError when this Python cannot read the folder.
    """
    stored = newest_state(FsspecFolder(f"{target.rstrip('/')}/applied"))
    found = None if stored is None else json.loads(stored).get("resolved_ms")
    return None if found is None else int(found)


def _time(time_ms: int | None) -> datetime | None:
    return None if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC)
