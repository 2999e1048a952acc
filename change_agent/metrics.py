"""Counters of a running agent. Each is written by one stage and read by the one that reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass

__all__ = ["AgentMetrics"]


@dataclass(slots=True, kw_only=True)
class AgentMetrics:
    """Counts since the agent started, and a few gauges. Plain numbers: a reader may see one of them a moment late."""

    segments_finished: int = 0
    segments_deleted: int = 0
    segments_unreadable: int = 0
    segments_set_aside: int = 0
    segments_gone_unread: int = 0
    bytes_read: int = 0
    mutations_read: int = 0
    mutations_parked: int = 0
    corrupt_entries: int = 0
    events_published: int = 0
    events_acknowledged: int = 0
    messages_sent: int = 0
    bytes_sent: int = 0
    send_errors: int = 0
    topics_held: int = 0
    schema_refreshes: int = 0
    # Gauges
    inflight_events: int = 0
    inflight_bytes: int = 0
    lag_bytes: int = 0
    ignored_files: int = 0
    last_event_writetime_us: int = 0

    def as_dict(self) -> dict[str, int]:
        """All numbers by name."""
        return asdict(self)
