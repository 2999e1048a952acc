"""Counts the changes in flight at a moment: those not yet on the events topic, and those there but not on the data
topic."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from tests.fault_kit.oracle.topics import DataRecord, Event

__all__ = ["InFlight"]

_MARK_US: Final = 1000
_SERVER_CLOCK_S: Final = 600


class InFlight:
    """Counts by three times of a change: its write timestamp, and the publish times of its event and of its record."""

    def __init__(self, given_time_mark_us: int) -> None:
        """Writes whose timestamp ends in the mark are left out, because their statement gave another time than the time
        of the write."""
        self._mark = given_time_mark_us
        self._to_events: tuple[list[float], list[float]] = ([], [])
        self._to_data: tuple[list[float], list[float]] = ([], [])

    def add(self, events: Iterable[Event], records: Iterable[DataRecord]) -> None:
        """Take the events and records of one table."""
        told: dict[bytes, list[int]] = defaultdict(list)
        for record in records:
            told[record.key_bytes].append(record.published_ms)
        for times in told.values():
            times.sort()
        seen: set[tuple[str, int, int, int]] = set()
        for event in events:
            if event.place in seen:
                continue
            seen.add(event.place)
            published_s = event.published_ms / 1000
            self._add_write(event, published_s)
            times = told.get(event.key, [])
            at = bisect_left(times, event.published_ms)
            if at < len(times):
                self._to_data[0].append(published_s)
                self._to_data[1].append(times[at] / 1000)

    def _add_write(self, event: Event, published_s: float) -> None:
        if event.writetime_us is None or event.writetime_us % _MARK_US == self._mark:
            return
        written_s = event.writetime_us / 1e6
        if written_s < published_s < written_s + _SERVER_CLOCK_S:
            self._to_events[0].append(written_s)
            self._to_events[1].append(published_s)

    def sort(self) -> None:
        """Call it after the last `add` and before `at`."""
        for times in (*self._to_events, *self._to_data):
            times.sort()

    def at(self, moment_s: float) -> tuple[int, int]:
        """The number of changes before the events topic, and before the data topic, at a moment in seconds since the
        epoch."""
        before_events, before_data = (
            bisect_right(starts, moment_s) - bisect_right(ends, moment_s)
            for starts, ends in (self._to_events, self._to_data)
        )
        return before_events, before_data
