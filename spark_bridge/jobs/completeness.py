"""Completeness: until when the tables of a run have every write that Cassandra acknowledged.

A resolved timestamp is about the data topic. So it is read first, and then the topic's end: tables with all records up
to this end are complete until the timestamp.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Final, Self

from pyspark.sql import SparkSession

from schemas.errors import CdcError
from spark_bridge.jobs.mirror_state import Applied
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.positions import Position
from spark_bridge.topics.resolved import ResolvedTimestamps, table_of, utc_text

__all__ = ["Completeness", "lack_of_read", "tag_commits"]

_log: Final = logging.getLogger(__name__)
_MOST_WAITING: Final = 64
# seconds between two requests of a long run
_PAUSE_S: Final = 2.0
_PROPERTY: Final = "cdc.resolved"
_OF_DELTA: Final = "spark.databricks.delta.commitInfo.userMetadata"
_OF_ICEBERG: Final = f"spark.sql.iceberg.snapshot-property.{_PROPERTY}"

RecordPosition = tuple[int, int, int]


class Completeness:
    """The resolved timestamps of the options' one topic. If they are not known, because no agent publishes progress,
    nothing fails. Safe for several threads.
    """

    def __init__(self, options: BridgeOptions) -> None:
        self._options: Final = options
        self._lock: Final = threading.Lock()
        self._timestamps: ResolvedTimestamps | None = None
        self._waiting: Final[deque[tuple[int, Mapping[str, Position]]]] = deque()
        self._asked_at = float("-inf")
        self._reported = ""
        self._lack: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._close()

    def note_lack(self, why: str | None) -> None:
        """Say why the tables may lack records: then no time is known. None: they lack none."""
        with self._lock:
            self._lack = why

    def ask(self) -> None:
        """Read the resolved timestamp, and then the topic's end. Does nothing within 2 s of the last call that did."""
        with self._lock:
            if time.monotonic() < self._asked_at + _PAUSE_S:
                return
            self._asked_at = time.monotonic()
            try:
                resolved_ms = self._resolved_ms()
                if resolved_ms is None:
                    return
                with PulsarAdmin(self._options) as admin:
                    ends = {topic: admin.last_position(topic) for topic in admin.topic_partitions()}
            except CdcError as error:
                self._say(str(error))
                self._close()
                return
            self._waiting.append((resolved_ms, ends))
            if len(self._waiting) > _MOST_WAITING:
                del self._waiting[-2]

    def reached(self, positions: Mapping[str, RecordPosition]) -> int | None:
        """The newest time until which tables with all records up to these positions are complete; None: not known.

        In milliseconds since 1970. Each time is returned once.
        """
        with self._lock:
            newest = None
            while self._waiting and all(
                end.entry < 0 or (topic in positions and Position(*positions[topic][:2]) >= end)
                for topic, end in self._waiting[0][1].items()
            ):
                newest = self._waiting.popleft()[0]
            return newest

    def _resolved_ms(self) -> int | None:
        table = table_of(self._options)
        if not self._options.fail_on_data_loss:
            self._say(f"{table}: failOnDataLoss is false, so records may be missing")
            return None
        if self._options.starting_offsets != "earliest":
            self._say(f"{table}: startingOffsets is not earliest, so older records may be missing")
            return None
        if self._lack is not None:
            self._say(f"{table}: {self._lack}, so records may be missing; a mirror with --rebuild begins anew")
            return None
        if self._timestamps is None:
            self._timestamps = ResolvedTimestamps(self._options)
        found = self._timestamps.read(table)
        if found.resolved_ms is None:
            self._say(f"{table}: {'; '.join(found.problems)}")
        return found.resolved_ms

    def _say(self, why: str) -> None:
        if why != self._reported:
            self._reported = why
            _log.info("until when the table is complete is not known: %s", why)

    def _close(self) -> None:
        if self._timestamps is not None:
            self._timestamps.close()
            self._timestamps = None


def lack_of_read(options: BridgeOptions, mirror: Applied | None) -> str | None:
    """Why the rows of a read with these options may lack records of the topic; None: they lack none.

    `mirror`: the progress of the mirror that is read with the topic's newer records; then the offsets have no effect.
    """
    if not options.fail_on_data_loss:
        return "failOnDataLoss is false"
    if mirror is not None:
        return mirror.may_lack
    if options.starting_offsets != "earliest":
        return "startingOffsets is not earliest"
    return None if options.ending_offsets == "latest" else "endingOffsets is not latest"


def tag_commits(session: SparkSession, resolved_ms: int | None) -> None:
    """Set the resolved timestamp that later commits of the session have; None: they have none.

    Delta Lake: `userMetadata` in the table's history; Iceberg: a property `cdc.resolved` in the snapshot's summary.
    """
    if resolved_ms is None:
        session.conf.unset(_OF_DELTA)
        session.conf.unset(_OF_ICEBERG)
        return
    session.conf.set(_OF_DELTA, json.dumps({_PROPERTY: utc_text(resolved_ms)}))
    session.conf.set(_OF_ICEBERG, utc_text(resolved_ms))
