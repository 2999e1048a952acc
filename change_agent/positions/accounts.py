"""Accounts of the log's entries that wait for the acknowledgement of their events.

Every event passes through here, so it is compiled. Pure: it uses no threads, files or clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import final

from change_agent.cdc_raw.segment_key import SegmentKey

__all__ = ["SegmentAccount", "TrackedEntry", "settle"]


@final
class TrackedEntry:
    """A commit log entry with events in flight. `outstanding` counts those that are not acknowledged.

    `segment` is None if no segment's position waits for the entry, because it was parked or is published again.
    """

    __slots__ = ("outstanding", "position", "segment")

    def __init__(self, segment: SegmentKey | None, position: int, outstanding: int) -> None:
        self.segment = segment
        self.position = position
        self.outstanding = outstanding


@final
class SegmentAccount:
    """How far a segment was read, and how far it is acknowledged without a gap."""

    __slots__ = ("acknowledged", "entries", "fault", "is_lost", "keep", "read_position", "read_to_end")

    def __init__(self, position: int) -> None:
        self.entries: deque[TrackedEntry] = deque()
        self.acknowledged = position
        self.read_position = position
        self.read_to_end = False
        self.is_lost = False
        self.keep = False
        self.fault: str | None = None

    def track(self, entry: TrackedEntry) -> None:
        """Add the newest entry, whose events are about to be published."""
        self.entries.append(entry)
        self.read_position = entry.position

    def move(self) -> None:
        """Move the acknowledged position over entries without outstanding events."""
        entries = self.entries
        while entries and entries[0].outstanding == 0:
            self.acknowledged = entries.popleft().position
        if not entries:
            self.acknowledged = self.read_position


def settle(entries: Iterable[TrackedEntry]) -> set[SegmentKey]:
    """Note one acknowledged event for each of `entries`, which has an entry once per event.

    Return the segments whose positions wait for these entries.
    """
    segments: set[SegmentKey] = set()
    for entry in entries:
        entry.outstanding -= 1
        if entry.segment is not None:
            segments.add(entry.segment)
    return segments
