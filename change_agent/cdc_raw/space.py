"""The limit of `cdc_raw` by Cassandra's settings, and how long it takes until it is full.

Cassandra refuses a write to a table with CDC when its files in `cdc_raw` *and one new segment* exceed `cdc_total_space`:
it counts a segment when it creates it (o.a.c.db.commitlog.CommitLogSegmentManagerCDC.CDCSizeTracker). Pure.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["TOTAL_SPACE_SETTINGS", "CdcSpace", "SpaceForecast", "cdc_space_of"]

_MIB: Final = 1024 * 1024
_UNITS: Final = {"B": 1, "KiB": 1024, "MiB": _MIB, "GiB": 1024 * _MIB}
_SIZE: Final = re.compile(r"(\d+)(B|KiB|MiB|GiB)")
_DEFAULT_SEGMENT_BYTES: Final = 32 * _MIB
# o.a.c.config.DatabaseDescriptor.applySimpleConfig: 4 GiB, or an eighth of the disk if that is less.
_DEFAULT_TOTAL_BYTES: Final = 4096 * _MIB
_DEFAULT_SHARE_OF_DISK: Final = 8
_WINDOW_S: Final = 60.0
_SHORTEST_WINDOW_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CdcSpace:
    """The limit of `cdc_raw`, in bytes. `blocks_writes` is None if the settings do not have it."""

    total_bytes: int
    segment_bytes: int
    blocks_writes: bool | None


TOTAL_SPACE_SETTINGS: Final = ("cdc_total_space", "cdc_total_space_in_mb")
"""The names of the limit of `cdc_raw` in `cassandra.yaml`, new and old."""


def cdc_space_of(settings: Mapping[str, object], disk_bytes: int) -> CdcSpace:
    """Return the limits from settings with the names of `cassandra.yaml`, old or new. Defaults are Cassandra's."""
    total = _size(settings, "cdc_total_space")
    blocks = settings.get("cdc_block_writes")
    return CdcSpace(
        # 0 means the default, too
        total_bytes=total or min(_DEFAULT_TOTAL_BYTES, disk_bytes // _DEFAULT_SHARE_OF_DISK),
        segment_bytes=_size(settings, "commitlog_segment_size") or _DEFAULT_SEGMENT_BYTES,
        blocks_writes=None if blocks is None else str(blocks).lower() == "true",
    )


def _size(settings: Mapping[str, object], name: str) -> int | None:
    """The bytes of `name: 64MiB`, or of the older `name_in_mb: 64`."""
    old = str(settings.get(f"{name}_in_mb"))
    if old.isdecimal():
        return int(old) * _MIB
    match = _SIZE.fullmatch(str(settings.get(name)).replace(" ", ""))
    return int(match[1]) * _UNITS[match[2]] if match else None


class SpaceForecast:
    """Forecasts when the bytes that wait reach a limit. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._samples: Final[deque[tuple[float, int]]] = deque()

    def add(self, now_s: float, waiting_bytes: int) -> None:
        """Add a sample. `waiting_bytes` must include bytes that were moved to another folder."""
        self._samples.append((now_s, waiting_bytes))
        while self._samples[0][0] < now_s - _WINDOW_S:
            self._samples.popleft()

    def seconds_until(self, room_bytes: int) -> float | None:
        """The seconds until this room is used up, at the rate of the last minute; None while it does not shrink."""
        if room_bytes <= 0:
            return 0.0
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        if last_s - first_s < _SHORTEST_WINDOW_S or last <= first:
            return None
        return room_bytes * (last_s - first_s) / (last - first)
