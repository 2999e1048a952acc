"""OffsetStore: stores positions on disk. One writer; two generations, each with a checksum.

    positions-a.json, positions-b.json => Checksum "\\n" Json
      Checksum => 8 hex digits, CRC32 of Json
      Json     => {"format": 1, "generation": n, "segments": {"<key>": Segment}, "until_ms": n, "finished": [Run, ...],
                   "lost": [Run, ...]}
      Segment  => {"position": n, "keep": bool, "fault": text | null}
      Run      => [first, last]

The copy of the positions has the same form, with more fields (CopiedState).

Keys are those of SegmentKey. `finished` and `lost` are runs of keys; only the end of a long run is stored. Files of the
first versions have no `format`; they have format 1. Files of earlier versions have no `lost`; nothing is lost then.
Unknown fields of format 1 are ignored.

`store` replaces the older of the two files: temporary file, fsync, rename, fsync of the folder. So after a crash at any
moment at least one generation is complete. If the newest is damaged, the one before it is used.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NotRequired, TypedDict

from change_agent.cdc_raw.folder import list_folder
from change_agent.cdc_raw.segment_key import SegmentKey, is_read_again
from change_agent.errors import StateFormatError
from change_agent.positions.segment_ids import SegmentIds
from change_agent.private_files import PRIVATE_FILE, make_private_folder, replace_private, sync_directory
from schemas.errors import CdcError, ConfigError

__all__ = [
    "DamagedPositionsError",
    "OffsetStore",
    "PositionsJson",
    "StoredPositions",
    "StoredSegment",
    "WorkingDirInUseError",
    "format_positions",
    "has_positions",
    "load_positions",
    "parse_positions",
    "positions_of",
    "reading_again",
]

_NAMES: Final = ("positions-a.json", "positions-b.json")
_FORMAT: Final = 1
_NONE: Final = SegmentIds()
_LAST_POSITION: Final = 2**31 - 1
_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})


class DamagedPositionsError(CdcError):
    """Positions were stored, but none of the files can be read. To continue would publish everything again."""


class WorkingDirInUseError(CdcError):
    """Another agent runs in this working directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSegment:
    """Everything before `position` is acknowledged. `keep`: done, but the file must stay. `fault`: see SegmentProgress."""

    position: int
    keep: bool = False
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPositions:
    """Segments that are not finished, and the keys of finished segments.

    `lost` are the finished segments that were not read in full, because their files went before that. If the file of
    such a segment comes back, the segment is read.
    `until_ms`: see InflightPositions.acknowledged_until_ms.
    """

    segments: Mapping[SegmentKey, StoredSegment] = field(default_factory=dict)
    finished: SegmentIds = _NONE
    lost: SegmentIds = _NONE
    until_ms: int = 0

    @property
    def read_in_full(self) -> SegmentIds:
        """Keys of the finished segments that are not lost."""
        return self.finished.removing(key for first, last in self.lost.runs for key in range(first, last + 1))

    @property
    def of_first_readings(self) -> StoredPositions:
        """The same without second readings, whose files are in folders of one machine."""
        return replace(
            self,
            segments={key: each for key, each in self.segments.items() if not is_read_again(key)},
            finished=self.finished.removing(self.finished.read_again()),
        )

    @property
    def last_place(self) -> tuple[int, int]:
        """Segment id and position after which nothing is done.

        In a finished segment it is the largest possible position.
        """
        ends = [(last, _LAST_POSITION) for _, last in self.finished.runs[-1:]]
        return max([*ends, *((key, each.position) for key, each in self.segments.items())], default=(0, 0))

    @property
    def last_read_place(self) -> tuple[int, int]:
        """The same without segments of which nothing is done: a copy may have them as not read (PositionsCopy)."""
        return replace(self, segments={key: each for key, each in self.segments.items() if each.position}).last_place


class _SegmentJson(TypedDict):
    position: int
    keep: bool
    fault: str | None


class PositionsJson(TypedDict):
    """Stored positions. `maker`, `stops` and `clearings` are fields of copies only (CopiedState)."""

    format: NotRequired[int]
    generation: int
    segments: dict[str, _SegmentJson]
    until_ms: int
    finished: list[tuple[int, int]]
    lost: NotRequired[list[tuple[int, int]]]
    maker: NotRequired[str]
    stops: NotRequired[Any]
    clearings: NotRequired[Any]


def has_positions(directory: Path) -> bool:
    """Return True if an agent has stored positions in this working directory."""
    return any((directory / name).exists() for name in _NAMES)


class OffsetStore:
    """Owns the positions' files of a working directory, and the lock that keeps a second agent out.

    The constructor creates the directory. It raises WorkingDirInUseError, or ConfigError if the directory cannot be
    used.
    """

    def __init__(self, directory: Path) -> None:
        self._directory: Final = directory
        try:
            make_private_folder(directory)
            self._lock: Final = os.open(directory / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        except OSError as error:
            reason = f"{directory} cannot be used ({error.strerror}); set it to a folder that this user may write"
            raise ConfigError.of("cdcWorkingDir", reason) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise WorkingDirInUseError(
                f"{directory} is used by another agent; give each its own cdcWorkingDir"
            ) from None
        self._generation = 0
        self._next_name = _NAMES[0]
        self._newest = self.older = StoredPositions()
        """The generation that a start uses when the newest one is damaged; empty if it does not exist or is damaged."""

    def close(self) -> None:
        """Let another agent use the directory."""
        os.close(self._lock)

    def load(self) -> StoredPositions:
        """Return the newest generation, or the one before it if the newest is damaged; empty at the first start.

        Raises DamagedPositionsError when there are files but none is complete, StateFormatError for a newer version.
        """
        found = []
        present = [name for name in _NAMES if (self._directory / name).exists()]
        for name in present:
            loaded = parse_positions((self._directory / name).read_bytes(), str(self._directory / name))
            if loaded is not None:
                found.append((*loaded, name))
        if not found:
            if present:
                raise DamagedPositionsError(
                    f"{self._directory}: {' and '.join(present)} are damaged; delete them to read every segment again"
                )
            return StoredPositions()
        *others, (self._generation, self._newest, name) = sorted(found, key=lambda each: each[0])
        self.older = others[0][1] if others else StoredPositions()
        self._next_name = _NAMES[1 - _NAMES.index(name)]
        return self._newest

    def store(self, positions: StoredPositions) -> None:
        """Make the positions durable; when this returns they survive a power loss."""
        generation = self._generation + 1
        target = self._directory / self._next_name
        replace_private(target, format_positions(generation, positions), is_durable=True)
        sync_directory(self._directory)
        self._generation = generation
        self._newest, self.older = positions, self._newest
        self._next_name = _NAMES[1 - _NAMES.index(self._next_name)]


def format_positions(generation: int, positions: StoredPositions, more: Mapping[str, object] = _NOTHING) -> bytes:
    """A checksum, followed by JSON. `more`: further fields of the JSON."""
    begin = json.dumps(
        {
            "format": _FORMAT,
            "generation": generation,
            "segments": {
                str(key): {"position": segment.position, "keep": segment.keep, "fault": segment.fault}
                for key, segment in sorted(positions.segments.items())
            },
            "until_ms": positions.until_ms,
            **more,
        }
    )
    ids = f'"finished": {positions.finished.as_json()}, "lost": {positions.lost.as_json()}'
    body = f"{begin[:-1]}, {ids}}}".encode()
    return b"%08x\n%s" % (zlib.crc32(body), body)


def parse_positions(content: bytes, where: str) -> tuple[int, StoredPositions] | None:
    """Return generation and positions; None when the content is damaged. Raises StateFormatError, with `where`."""
    stored = load_positions(content, where)
    return None if stored is None else (stored["generation"], positions_of(stored))


def load_positions(content: bytes, where: str) -> PositionsJson | None:
    """Return the JSON; None when the content is damaged. Raises StateFormatError, with `where`."""
    checksum, _, body = content.partition(b"\n")
    if checksum != b"%08x" % zlib.crc32(body):
        return None
    stored: PositionsJson = json.loads(body)
    if stored.get("format", _FORMAT) != _FORMAT:
        raise StateFormatError(where, stored["format"], _FORMAT)
    return stored


def positions_of(stored: PositionsJson) -> StoredPositions:
    """Return the positions of loaded JSON."""
    return StoredPositions(
        until_ms=stored["until_ms"],
        segments={
            SegmentKey(int(key)): StoredSegment(
                position=segment["position"], keep=segment["keep"], fault=segment["fault"]
            )
            for key, segment in stored["segments"].items()
        },
        finished=SegmentIds(stored["finished"]),
        lost=SegmentIds(stored.get("lost", [])),
    )


def reading_again(stored: StoredPositions, folders: Iterable[Path]) -> StoredPositions:
    """Return the positions as if no segment that is still in one of these folders had been read.

    A folder that cannot be listed counts as having all segments. Segments that are gone stay finished.
    """
    finished = stored.finished
    for folder in folders:
        try:
            finished = finished.removing(list_folder(folder).logs)
        except FileNotFoundError:
            continue
        except OSError:
            finished = SegmentIds()
    segments = {key: replace(each, position=0) for key, each in stored.segments.items()}
    return replace(stored, segments=segments, finished=finished)
