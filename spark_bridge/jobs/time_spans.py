"""Spans of write times, and whether a row was written in one of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["TimeSpan", "is_within", "merged"]

TimeSpan = tuple[int, int]
"""Write times from the first to the second, both included, in microseconds since the epoch."""


def merged(spans: Iterable[TimeSpan]) -> tuple[TimeSpan, ...]:
    """The same times in as few spans as possible, in order."""
    found: list[TimeSpan] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return tuple(found)


def is_within(spans: Sequence[TimeSpan], writetime_us: int | None) -> bool:
    """Return True if the write time is in one of the spans; False for None."""
    return writetime_us is not None and any(start <= writetime_us <= end for start, end in spans)
