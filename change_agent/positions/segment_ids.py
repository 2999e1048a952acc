"""SegmentIds: keys of finished segments (see SegmentKey), as runs of consecutive numbers.

Cassandra numbers segments upwards, so there are few runs. To look up an id costs the logarithm of the number of runs,
and to add an id a copy of their bounds, independent of the number of ids. The number of runs is limited: above
_MAX_RUNS the lowest are removed. Their segments have long been deleted; if one came back, it would be read again. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from typing import Final, Self

from change_agent.cdc_raw.segment_key import SegmentKey

__all__ = ["SegmentIds"]

# Cassandra links a finished segment again when it replays. Its commit log has far fewer segments than this.
_MAX_RUNS: Final = 20_000
# How many runs are removed at once, so that this is rarely necessary.
_FORGOTTEN: Final = _MAX_RUNS // 8
# How many ids of each run are stored, the last ones: earlier versions of the agent make a set of them.
_STORED: Final = 20_000


class SegmentIds:
    """Immutable, so that threads may share it."""

    __slots__ = ("_firsts", "_lasts", "_text")

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        """`runs`: first and last id of each run, in ascending order. Runs must not be adjacent."""
        bounds = list(runs)
        self._firsts: Final = tuple(first for first, _ in bounds)
        self._lasts: Final = tuple(last for _, last in bounds)
        self._text: str | None = None

    @classmethod
    def of(cls, ids: Iterable[int]) -> Self:
        """Create it from single ids."""
        firsts: list[int] = []
        lasts: list[int] = []
        for each in sorted(set(ids)):
            _add(firsts, lasts, each)
        return cls(zip(firsts, lasts, strict=True))

    @property
    def runs(self) -> list[tuple[int, int]]:
        """First and last id of each run, in ascending order."""
        return list(zip(self._firsts, self._lasts, strict=True))

    def __contains__(self, segment_id: object) -> bool:
        return isinstance(segment_id, int) and self.first_of_run(segment_id) is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SegmentIds):
            return NotImplemented
        return self is other or (self._firsts == other._firsts and self._lasts == other._lasts)

    def __hash__(self) -> int:
        return hash((self._firsts, self._lasts))

    def __repr__(self) -> str:
        return f"SegmentIds({self.runs})"

    def first_of_run(self, segment_id: int) -> int | None:
        """The first id of the run that has this id; None when no run has it."""
        index = bisect_right(self._firsts, segment_id) - 1
        return self._firsts[index] if index >= 0 and segment_id <= self._lasts[index] else None

    def read_again(self) -> Iterator[SegmentKey]:
        """Keys of segments that were read a second time."""
        for first, last in zip(self._firsts, self._lasts, strict=True):
            if first >= 0:
                return
            yield from map(SegmentKey, range(first, min(last, -1) + 1))

    def adding(self, ids: Collection[int], present: Collection[int] = ()) -> SegmentIds:
        """Return a copy with these ids. If it has too many runs, the lowest without an id of `present` are removed."""
        new = [each for each in ids if each not in self]
        if not new:
            return self
        firsts, lasts = list(self._firsts), list(self._lasts)
        for each in new:
            _add(firsts, lasts, each)
        bounds = list(zip(firsts, lasts, strict=True))
        return SegmentIds(_fewer(bounds, present) if len(bounds) > _MAX_RUNS else bounds)

    def removing(self, ids: Iterable[int]) -> SegmentIds:
        """Return a copy without these ids."""
        gone = sorted(each for each in set(ids) if each in self)
        if not gone:
            return self
        runs = []
        for first, last in zip(self._firsts, self._lasts, strict=True):
            start = first
            for each in gone[bisect_left(gone, first) : bisect_right(gone, last)]:
                if start < each:
                    runs.append((start, each - 1))
                start = each + 1
            if start <= last:
                runs.append((start, last))
        return SegmentIds(runs)

    def as_json(self) -> str:
        """The runs as they are stored. The text is kept, because positions are stored several times a second."""
        if self._text is None:
            pairs = zip(self._firsts, self._lasts, strict=True)
            self._text = f"[{', '.join(f'[{max(first, last - _STORED + 1)}, {last}]' for first, last in pairs)}]"
        return self._text


def _add(firsts: list[int], lasts: list[int], each: int) -> None:
    """Add an id that is in no run to runs in ascending order."""
    index = bisect_right(firsts, each)
    joins_before = index > 0 and lasts[index - 1] == each - 1
    joins_behind = index < len(firsts) and firsts[index] == each + 1
    if joins_before and joins_behind:
        lasts[index - 1] = lasts[index]
        del firsts[index], lasts[index]
    elif joins_before:
        lasts[index - 1] = each
    elif joins_behind:
        firsts[index] = each
    else:
        firsts.insert(index, each)
        lasts.insert(index, each)


def _fewer(runs: list[tuple[int, int]], present: Collection[int]) -> list[tuple[int, int]]:
    """Remove the lowest runs. Runs with an id of `present`, and runs of second readings, are kept."""
    there = sorted(present)
    excess = len(runs) - _MAX_RUNS + _FORGOTTEN
    kept = []
    for first, last in runs:
        index = bisect_left(there, first)
        is_there = index < len(there) and there[index] <= last
        if excess and first >= 0 and not is_there:
            excess -= 1
        else:
            kept.append((first, last))
    return kept
