"""Counters of a running agent. One stage writes each counter; the reports read them."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from dataclasses import dataclass, field, fields
from typing import Final, final

from change_agent.errors import Damage

__all__ = ["DELAY_BUCKETS_S", "AgentMetrics", "TableMetrics"]

DELAY_BUCKETS_S: Final = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
"""Upper bounds of the write-to-publish histogram, which has one more bucket for longer delays."""


@final
class TableMetrics:
    """Counts of one table since the agent started. Written by the publisher's thread."""

    __slots__ = (
        "bytes_sent",
        "damaged_bytes",
        "delay_counts",
        "delay_sum_s",
        "events_acknowledged",
        "events_too_large",
        "messages_sent",
        "retries",
        "write_failures",
    )

    def __init__(self) -> None:
        self.events_acknowledged = 0
        self.messages_sent = 0
        self.bytes_sent = 0
        self.retries = 0
        self.events_too_large = 0
        self.write_failures = 0
        self.damaged_bytes = 0
        self.delay_counts: Final = [0] * (len(DELAY_BUCKETS_S) + 1)
        self.delay_sum_s = 0.0

    def observe_delay(self, seconds: float, events: int) -> None:
        """Count `events` that the broker has `seconds` after their write time, which the writer's clock gave."""
        # A client may set any write time, also a later one than now.
        seconds = max(0.0, seconds)
        self.delay_counts[bisect_left(DELAY_BUCKETS_S, seconds)] += events
        self.delay_sum_s += seconds * events


def _counter(text: str) -> int:
    return field(default=0, metadata={"help": text, "is_gauge": False})


def _gauge(text: str) -> int:
    return field(default=0, metadata={"help": text, "is_gauge": True})


@dataclass(slots=True, kw_only=True)
class AgentMetrics:
    """Counts since the agent started, and a few gauges.

    Threads read them without a lock, so a number may be a moment old. Each has its help text for `/metrics`.
    """

    segments_finished: int = _counter("Segments that were read to their end")
    segments_deleted: int = _counter("Finished segments that were deleted from cdc_raw")
    segments_not_deleted: int = _gauge("Finished segments that could not be deleted, and are tried again")
    segments_not_deleted_elsewhere: int = _gauge("Those of them that are in spillDir or reprocess/, not in cdc_raw")
    segments_archived: int = _counter("Finished segments that were archived")
    archive_failures: int = _counter("Times that a segment could not be archived; it is tried again")
    segments_unreadable: int = _counter("Segments that could not be read (further)")
    segments_set_aside: int = _counter("Unreadable segments that were moved to error/")
    segments_gone_unread: int = _counter("Segments that vanished before they were read: changes are lost")
    segments_spilled: int = _counter("Segments that were moved out of cdc_raw unread, to keep Cassandra writing")
    spill_failures: int = _counter(
        "Times that a segment could not be moved out of cdc_raw while it filled up; it stays, and is tried again"
    )
    bytes_read: int = _counter("Bytes of commit log that were read")
    unsynced_bytes_lost: int = _counter(
        "Bytes of commit log that were published before their sync and that the node lost when it was killed"
    )
    mutations_read: int = _counter("Mutations that were read")
    mutations_skipped: int = _counter("Mutations without an event: tables without cdc, or left out by patterns")
    mutations_parked: int = _counter("Mutations that could not be decoded and were parked")
    mutations_unparked: int = _counter("Parked mutations that were published after all")
    corrupt_entries: int = _counter("Commit log entries whose checksum is wrong")
    events_published: int = _counter("Events that were handed to the publisher")
    events_acknowledged: int = _counter("Events that the broker has")
    events_too_large: int = _counter("Events that were too large for the broker, kept on disk")
    messages_sent: int = _counter("Messages that were sent")
    bytes_sent: int = _counter("Bytes of the messages that the broker has")
    send_errors: int = _counter("Messages that were refused, and sent again")
    topics_held: int = _counter("Times that a topic could not be used and its events were held on disk")
    held_events_dropped: int = _counter(
        "Held events of dropped tables whose topics were deleted, which are not published"
    )
    topics_lost: int = _counter(
        "Times that an events topic or its subscription was missing; a gap record names the events that may be lost"
    )
    write_failures: int = _counter(
        "Times that something could not be written to the working directory; it is tried again"
    )
    last_write_failure_timestamp_seconds: float = field(
        default=0.0,
        metadata={
            "help": "Time of the last failed write to the working directory, seconds of the epoch; 0: none since the start",
            "is_gauge": True,
        },
    )
    schema_refreshes: int = _counter("Times that the schema was read from the node")
    parked: int = _gauge("Mutations that are parked now")
    parked_bytes: int = _gauge("Bytes of parked.sqlite")
    schema_bytes: int = _gauge("Bytes of schema.sqlite and its write-ahead log")
    inflight_events: int = _gauge("Events on their way, not acknowledged")
    inflight_bytes: int = _gauge("Bytes of these events, estimated")
    lag_bytes: int = _gauge("Bytes of commit log that Cassandra has synced and the broker has not acknowledged")
    lag_seconds: float = field(
        default=0.0, metadata={"help": "Age of the oldest change that is not acknowledged", "is_gauge": True}
    )
    stuck_seconds: float = field(
        default=0.0,
        metadata={"help": "How long the position has not moved although there is something to read", "is_gauge": True},
    )
    standby: int = _gauge("1 while another agent has this node, and this one waits for its end")
    cdc_raw_unlocked: int = _gauge(
        "1 where cdc_raw cannot be locked: a second agent for this node would not be kept out"
    )
    ignored_files: int = _gauge("Files in cdc_raw that are not segments, and are left alone")
    cdc_raw_bytes: int = _gauge("Bytes in cdc_raw, as Cassandra counts them")
    cdc_raw_limit_bytes: int = _gauge("Bytes that Cassandra allows in cdc_raw")
    cdc_raw_seconds_to_full: int = field(
        default=-1,
        metadata={
            "help": "Seconds until Cassandra would refuse writes, at the rate of the last minute; -1: not in sight",
            "is_gauge": True,
        },
    )
    started_on_full: int = _gauge(
        "1 when cdc_raw was full at the start and Cassandra may have removed segments that no agent saw"
    )
    held_full: int = _gauge("1 while held events fill maxHeldBytes: no more events are held, and reading will wait")
    spilled_bytes: int = _gauge("Bytes of segments that were moved out of cdc_raw and are not read yet")
    last_event_writetime_us: int = _gauge("Write time of the last event that was read, microseconds of the epoch")
    acknowledged_writetime_us: int = _gauge(
        "Write time of the last event that the broker has, microseconds of the epoch"
    )
    damage: dict[Damage, int] = field(default_factory=lambda: dict.fromkeys(Damage, 0))
    """Damaged places in segments, by kind. Written by the follower's thread."""
    tables: dict[str, TableMetrics] = field(default_factory=dict)
    """Counts by `keyspace.table`. Only the publisher's thread adds a table."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count_write_failure(self) -> None:
        """Count a failed write to the working directory.

        Any thread may call this; one thread writes each other counter.
        """
        with self._lock:
            self.write_failures += 1
            self.last_write_failure_timestamp_seconds = round(time.time(), 3)

    def note_damage(self, damage: Damage | None) -> None:
        """Count a damaged place of a segment. Do nothing for None: the error was not damage of the segment."""
        if damage is not None:
            self.damage[damage] += 1

    def table(self, name: str) -> TableMetrics:
        """The counts of a table. The first call creates them."""
        found = self.tables.get(name)
        if found is None:
            found = self.tables[name] = TableMetrics()
        return found

    def as_dict(self) -> dict[str, int | float]:
        """All numbers of the agent by name, without those of single tables."""
        return {each.name: getattr(self, each.name) for each in fields(self) if "help" in each.metadata}
