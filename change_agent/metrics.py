"""Counters of a running agent. Each is written by one stage and read by those that report."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, fields
from typing import Final, final

__all__ = ["DELAY_BUCKETS_S", "AgentMetrics", "TableMetrics"]

DELAY_BUCKETS_S: Final = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
"""Upper bounds of the write-to-publish histogram; one more bucket holds what is above."""


@final
class TableMetrics:
    """Counts of one table since the agent started. Written by the publisher's thread."""

    __slots__ = (
        "bytes_sent",
        "delay_counts",
        "delay_sum_s",
        "events_acknowledged",
        "events_too_large",
        "messages_sent",
        "retries",
    )

    def __init__(self) -> None:
        self.events_acknowledged = 0
        self.messages_sent = 0
        self.bytes_sent = 0
        self.retries = 0
        self.events_too_large = 0
        self.delay_counts: Final = [0] * (len(DELAY_BUCKETS_S) + 1)
        self.delay_sum_s = 0.0

    def observe_delay(self, seconds: float, events: int) -> None:
        """So many events reached the broker so long after they were written (by the writer's clock)."""
        # A writer may give any time it likes.
        seconds = max(0.0, seconds)
        self.delay_counts[bisect_left(DELAY_BUCKETS_S, seconds)] += events
        self.delay_sum_s += seconds * events


@dataclass(slots=True, kw_only=True)
class AgentMetrics:
    """Counts since the agent started, and a few gauges. Plain numbers: a reader may see one of them a moment late."""

    segments_finished: int = 0
    segments_deleted: int = 0
    segments_unreadable: int = 0
    segments_set_aside: int = 0
    segments_gone_unread: int = 0
    segments_spilled: int = 0
    bytes_read: int = 0
    mutations_read: int = 0
    mutations_skipped: int = 0
    mutations_parked: int = 0
    mutations_unparked: int = 0
    corrupt_entries: int = 0
    events_published: int = 0
    events_acknowledged: int = 0
    events_too_large: int = 0
    messages_sent: int = 0
    bytes_sent: int = 0
    send_errors: int = 0
    topics_held: int = 0
    schema_refreshes: int = 0
    # Gauges
    parked: int = 0
    inflight_events: int = 0
    inflight_bytes: int = 0
    lag_bytes: int = 0
    ignored_files: int = 0
    cdc_raw_bytes: int = 0
    cdc_raw_limit_bytes: int = 0
    cdc_raw_seconds_to_full: int = -1
    """Until Cassandra would refuse writes, at the rate of the last minute; -1 while that is not in sight."""
    spilled_bytes: int = 0
    last_event_writetime_us: int = 0
    tables: dict[str, TableMetrics] = field(default_factory=dict)
    """By `keyspace.table`. Only the publisher's thread adds one."""

    def table(self, name: str) -> TableMetrics:
        """The counts of a table; made at the first call."""
        found = self.tables.get(name)
        if found is None:
            found = self.tables[name] = TableMetrics()
        return found

    def as_dict(self) -> dict[str, int]:
        """All numbers of the agent as a whole, by name."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "tables"}
