"""SegmentListing: which segments can be read, how far, and which of them are final. It reads no segment.

    a segment with an index        up to the index's offset; to the end of its markers once it is final: COMPLETED, or
                                   proven abandoned by a crash or stop of the node
    ... of Cassandra 3.11          has no index ever: it is moved here when Cassandra is done with it, so it is final
    ... of 4.0 or later, no index  holds no synced change and is not ours, until it is proven abandoned: then it is read
                                   like any other, for Cassandra leaves such links behind and counts them
    a segment in another folder    final: who moved it there knew

Abandoned: ids are the node's start time in milliseconds plus a counter that is far slower than the clock. So a segment that
was last written before the id of a newer one with an index belongs to an earlier start of the node. Where clocks say
nothing, the second name in Cassandra's own commit log does: it is removed when the segment is replayed or discarded.
Cassandra completes segments in order, so one that is older than another's index gets no more changes anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from change_agent.cdc_raw.cdc_index import CdcIndex, parse_cdc_index, segment_name
from change_agent.cdc_raw.folder import FolderContent, SegmentFile, list_folder
from change_agent.errors import MalformedSegmentError

__all__ = ["ReadableSegment", "SegmentListing"]

_log: Final = logging.getLogger(__name__)
# A segment that Cassandra has unlinked from its own commit log is not written any more; wait out what is on its way.
_UNLINKED_REST_MS: Final = 10_000
# From this version of the commit log on (Cassandra 4.0) a segment has an index.
_FIRST_INDEXED_VERSION: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableSegment:
    """One segment to be read. The id of one that is to be read again is negative: it has an account of its own.

    `limit` never goes back. `log_exists` is False when there is an index and the segment itself is gone. `index_time_ms`
    (since the epoch) is when the index, or a segment without one, was last written. `has_index` says which.
    """

    segment_id: int
    path: Path
    limit: int
    final: bool
    log_exists: bool
    index_time_ms: int
    has_index: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    file: SegmentFile
    offset: int
    completed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settled:
    """A completed segment, and its files."""

    index: SegmentFile
    log: SegmentFile
    segment: ReadableSegment


class SegmentListing:
    """Looks at a `cdc_raw` folder; remembers what it saw, so that a limit never goes back. Used by one thread.

    `other_folders` hold segments that were moved out of `cdc_raw` and are not read yet; `again_folder` those that shall be
    read once more. They need not exist. One that is `quiet` does not say what it leaves alone.
    """

    def __init__(
        self,
        directory: Path,
        other_folders: Sequence[Path] = (),
        again_folder: Path | None = None,
        *,
        quiet: bool = False,
    ) -> None:
        self._directory: Final = directory
        self._other_folders: Final = tuple(other_folders)
        self._again_folder: Final = again_folder
        self._quiet: Final = quiet
        self._offsets: dict[int, int] = {}
        # Files that do not change any more, by name, of each folder: completed segments with their indexes, moved ones.
        self._settled: Final[dict[Path, dict[str, SegmentFile]]] = {}
        # What was said about completed segments: it stays true.
        self._known: dict[int, _Settled] = {}
        self._complained: dict[str, str] = {}

    @property
    def ignored_files(self) -> int:
        """Entries of the folder that are left alone, when :meth:`segments` looked last."""
        return len(self._complained)

    def segments(self, now_ms: int) -> list[ReadableSegment] | None:
        """All segments to be read, by id; None when the folder cannot be listed. `now_ms` is since the epoch."""
        # cdc_raw first: what is moved meanwhile is then seen in one place or in both, never in none.
        content = self._list(self._directory)
        if content is None:
            return None
        complaints = dict(content.strangers)
        found = self._in_cdc_raw(content, complaints, now_ms)
        for folder in self._other_folders:
            moved = self._list(folder) if folder.exists() else None
            if moved is not None:
                self._settled[folder] = {log.path.name: log for log in moved.logs.values()}
                found |= {log.segment_id: _readable(log) for log in moved.logs.values()}
        again = self._again_folder
        if again is not None and again.exists() and (wanted := self._list(again)) is not None:
            found |= {-log.segment_id: _readable(log, again=True) for log in wanted.logs.values()}
        self._complain(complaints)
        return [found[segment_id] for segment_id in sorted(found)]

    def _list(self, folder: Path) -> FolderContent | None:
        try:
            content = list_folder(folder, self._settled.get(folder, {}))
        except OSError as error:
            self._tell(str(folder), f"cannot be listed ({error.strerror}); trying again")
            return None
        self._complained.pop(str(folder), None)
        return content

    def _in_cdc_raw(
        self, content: FolderContent, complaints: dict[str, str], now_ms: int
    ) -> dict[int, ReadableSegment]:
        """Completed segments as they were found before; the others are looked at."""
        known: dict[int, _Settled] = {}
        changing: list[SegmentFile] = []
        for segment_id, file in content.indexes.items():
            before = self._known.get(segment_id)
            if before is not None and before.index is file and before.log is content.logs.get(segment_id):
                known[segment_id] = before
            else:
                changing.append(file)
        read = (self._read_index(file, complaints, has_log=file.segment_id in content.logs) for file in changing)
        indexes = sorted((each for each in read if each is not None), key=lambda each: each.file.segment_id)
        newest_id = max(indexes[-1].file.segment_id if indexes else -1, max(known, default=-1))
        self._offsets = {each.file.segment_id: each.offset for each in indexes}
        found = {each.segment_id: each for each in self._indexed(content, indexes, newest_id, now_ms)}
        self._settle(content, indexes, found, known)
        found |= {each.segment_id: each for each in _unindexed(content, newest_id, complaints, now_ms)}
        found |= {segment_id: each.segment for segment_id, each in known.items()}
        return found

    def _settle(
        self,
        content: FolderContent,
        indexes: Sequence[_Index],
        found: Mapping[int, ReadableSegment],
        known: dict[int, _Settled],
    ) -> None:
        newly = [each.file for each in indexes if each.completed]
        if not newly and len(known) == len(self._known):
            return
        self._known = dict(known)
        for file in newly:
            segment = found.get(file.segment_id)
            if segment is not None and segment.log_exists:
                log = content.logs[file.segment_id]
                self._known[file.segment_id] = _Settled(index=file, log=log, segment=segment)
        files = (file for each in self._known.values() for file in (each.index, each.log))
        self._settled[self._directory] = {file.path.name: file for file in files}

    def _indexed(
        self, content: FolderContent, indexes: Sequence[_Index], newest_id: int, now_ms: int
    ) -> list[ReadableSegment]:
        found = []
        for index in indexes:
            log = content.logs.get(index.file.segment_id)
            if segment_name(index.file.path.name) in content.strangers:
                continue
            abandoned = index.file.segment_id < newest_id and (
                index.file.time_ms < newest_id or (log is not None and _is_unlinked(log, index.file.time_ms, now_ms))
            )
            found.append(
                ReadableSegment(
                    segment_id=index.file.segment_id,
                    path=index.file.path.with_name(segment_name(index.file.path.name)),
                    limit=index.offset,
                    final=index.completed or abandoned,
                    log_exists=log is not None,
                    index_time_ms=index.file.time_ms,
                    has_index=True,
                )
            )
        return found

    def _read_index(self, file: SegmentFile, complaints: dict[str, str], *, has_log: bool) -> _Index | None:
        parsed = self._parsed(file, complaints)
        last = self._offsets.get(file.segment_id)
        if parsed is None:
            # Caught while it is rewritten, left so by kill -9, or unreadable now; what was known stays true. A new agent
            # knows nothing yet, but the segment is there: left out it would be taken for gone, and newer ones read first.
            if last is None and not has_log:
                return None
            return _Index(file=file, offset=last or 0, completed=False)
        offset = parsed.offset if last is None else max(last, parsed.offset)
        return _Index(file=file, offset=offset, completed=parsed.completed)

    def _parsed(self, file: SegmentFile, complaints: dict[str, str]) -> CdcIndex | None:
        name = file.path.name
        try:
            return parse_cdc_index(file.path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            complaints[name] = f"it cannot be read ({error.strerror}); its segment waits"
            return None
        except MalformedSegmentError as error:
            complaints[name] = f"{error}; its segment waits until it is written again"
            return None

    def _complain(self, complaints: dict[str, str]) -> None:
        """Say once what is left alone, and again only when it went and came back."""
        for name, why in complaints.items():
            self._tell(name, f"is left alone: {why}")
        self._complained = {name: self._complained[name] for name in complaints}

    def _tell(self, name: str, message: str) -> None:
        if self._complained.setdefault(name, message) is message and not self._quiet:
            _log.warning("%s in %s %s", name, self._directory, message)


def _unindexed(
    content: FolderContent, newest_id: int, complaints: dict[str, str], now_ms: int
) -> list[ReadableSegment]:
    """Segments without an index that can be read nevertheless."""
    found = []
    for segment_id, log in content.logs.items():
        if segment_id in content.indexes:
            continue
        if log.size == 0:
            # Cassandra gives a segment its size when it makes it.
            if now_ms - log.time_ms > _UNLINKED_REST_MS:
                complaints[log.path.name] = "it is empty"
            continue
        earlier_start = segment_id < newest_id and log.time_ms < newest_id
        if log.version < _FIRST_INDEXED_VERSION or earlier_start or _is_unlinked(log, log.time_ms, now_ms):
            found.append(_readable(log))
    return found


def _readable(log: SegmentFile, *, again: bool = False) -> ReadableSegment:
    return ReadableSegment(
        segment_id=-log.segment_id if again else log.segment_id,
        path=log.path,
        limit=log.size,
        final=True,
        log_exists=True,
        index_time_ms=log.time_ms,
        has_index=False,
    )


def _is_unlinked(log: SegmentFile, written_ms: int, now_ms: int) -> bool:
    """True when Cassandra's own commit log folder has no name for the segment any more, for a while."""
    return log.links == 1 and now_ms - written_ms > _UNLINKED_REST_MS
