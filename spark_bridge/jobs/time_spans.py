"""Spans of write times: which ones a row was written in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["TimeSpan", "is_within", "merged"]

TimeSpan = tuple[int, int]
"""Write times from the first to the second, both included, in microseconds since the epoch."""


def merged(spans: Iterable[TimeSpan]) -> tuple[TimeSpan, ...]:
    """The same times in as few spans as there can be, in order."""
    found: list[TimeSpan] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return tuple(found)


def is_within(spans: Sequence[TimeSpan], writetime_us: int | None) -> bool:
    """Whether a write time lies in one of the spans; a row without one does not."""
    return writetime_us is not None and any(start <= writetime_us <= end for start, end in spans)
