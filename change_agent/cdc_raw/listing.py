"""SegmentListing: lists the segments that can be read, how far, and which of them are final. It reads no segment.

    a segment with an index        can be read up to the index's offset. Once it is final (COMPLETED, or proven
                                   abandoned by a crash or stop of the node), it can be read to the end of its markers
    ... of Cassandra 3.11          never has an index. Cassandra moves it here when it is done with it, so it is final
    ... of 4.0 or later, no index  has no synced change and is not listed, until it is proven abandoned. Then it is read
                                   like any other segment, because Cassandra leaves such links behind and counts them.
                                   With `unsynced` it is listed earlier, with a limit of 0, if it is newer than all
                                   segments with an index
    a segment in another folder    is final: only final segments are moved there

Abandoned: ids are the node's start time in milliseconds plus a counter that is far slower than the clock. So a segment
that was last written before the id of a newer segment with an index belongs to an earlier start of the node. If the
clocks do not prove that, the second name in Cassandra's own commit log does: Cassandra removes it when it has replayed
or discarded the segment. With `unsynced`, a newer segment without an index counts, too, if both proofs are there; so
its first sync need not be awaited. Cassandra completes segments in order, so a segment that is older than one with an
index gets no more changes in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from change_agent.cdc_raw.cdc_index import CdcIndex, parse_cdc_index, segment_name
from change_agent.cdc_raw.folder import FolderContent, SegmentFile, list_folder
from change_agent.cdc_raw.segment_key import SegmentKey, is_read_again, key_of_reading_again, segment_id_of
from change_agent.errors import MalformedSegmentError

__all__ = ["ReadableSegment", "SegmentListing"]

_log: Final = logging.getLogger(__name__)
# How long to wait for writes in flight after Cassandra has unlinked a segment from its own commit log.
_UNLINKED_REST_MS: Final = 10_000
# From this version of the commit log on (Cassandra 4.0) a segment has an index.
_FIRST_INDEXED_VERSION: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableSegment:
    """One segment to be read.

    `limit` never goes back. `log_exists` is False when there is an index but the segment itself is gone.
    `index_time_ms` (since the epoch) is when the index was last written, or the segment itself if it has no index.
    `is_spilled`: it was moved out of `cdc_raw` before it was read. `queued_file` (inode, time of the last change) is
    the file of a segment that an operator has queued: another file may be queued under the same name.
    """

    key: SegmentKey
    path: Path
    limit: int
    final: bool
    log_exists: bool
    index_time_ms: int
    has_index: bool
    is_spilled: bool = False
    queued_file: tuple[int, int] | None = None

    @property
    def segment_id(self) -> int:
        """The segment's own id, also for a second reading."""
        return segment_id_of(self.key)

    @property
    def is_read_again(self) -> bool:
        """True for a second reading of the segment."""
        return is_read_again(self.key)


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


@dataclass(frozen=True, slots=True)
class _Age:
    """Proves that the node does not write a segment any more.

    `newest_id`: the id of the newest segment with an index. `unsynced_id`: the id of the newest segment without an
    index, or -1 if these do not count.
    """

    newest_id: int
    unsynced_id: int
    now_ms: int

    def is_earlier_start(self, written: SegmentFile, log: SegmentFile | None) -> bool:
        """True when a segment was last written before the node start of the newest segment.

        `written` is the segment's index, or the segment itself without one. A newer index proves that the segment gets
        no more changes. A newer segment without an index may have been created in advance, and its id is only a time of
        the node's clock. Then Cassandra must also have removed its own name for this segment.
        """
        if written.segment_id < self.newest_id and written.time_ms < self.newest_id:
            return True
        return log is not None and log.links == 1 and max(written.segment_id, written.time_ms) < self.unsynced_id

    def is_unlinked(self, log: SegmentFile, written_ms: int) -> bool:
        """True when Cassandra's own commit log has no name for the segment, and it has not been written for a while."""
        return log.links == 1 and self.now_ms - written_ms > _UNLINKED_REST_MS


class SegmentListing:
    """Lists a `cdc_raw` folder; remembers what it saw, so that a limit never goes back. Used by one thread.

    `other_folders` have segments that were moved out of `cdc_raw` before they were read; `again_folder` has segments
    that an operator has queued for a second reading. The folders need not exist. With `quiet`, nothing is logged. With
    `unsynced`, segments that Cassandra has not synced yet are listed, too.
    """

    def __init__(
        self,
        directory: Path,
        other_folders: Sequence[Path] = (),
        again_folder: Path | None = None,
        *,
        quiet: bool = False,
        unsynced: bool = False,
    ) -> None:
        self._unsynced: Final = unsynced
        self._directory: Final = directory
        self._other_folders: Final = tuple(other_folders)
        self._again_folder: Final = again_folder
        self._quiet: Final = quiet
        self._offsets: dict[int, int] = {}
        # Files that do not change any more, by folder and name: completed segments with their indexes, moved segments.
        self._settled: Final[dict[Path, dict[str, SegmentFile]]] = {}
        # Completed segments, which do not change any more.
        self._known: dict[int, _Settled] = {}
        self._complained: dict[str, str] = {}
        self.unlisted: Sequence[ReadableSegment] = ()
        """Segments without an index that are newer than all with one, as of the last listing. Empty with `unsynced`."""

    @property
    def ignored_files(self) -> int:
        """How many entries of the folder are ignored, as of the last call of :meth:`segments`."""
        return len(self._complained)

    def segments(self, now_ms: int) -> list[ReadableSegment] | None:
        """Return all segments to be read, in the order of their keys; None when a folder cannot be listed.

        `now_ms` is since the epoch.
        """
        # cdc_raw is listed first: a segment that is moved meanwhile is seen in one place or in both, never in none.
        content = self._list(self._directory)
        if content is None:
            return None
        complaints = dict(content.strangers)
        found = self._in_cdc_raw(content, complaints, now_ms)
        for folder in self._other_folders:
            if not folder.exists():
                continue
            if (moved := self._list(folder)) is None:
                return None  # its segments would count as gone
            self._settled[folder] = {log.path.name: log for log in moved.logs.values()}
            spilled = (replace(_readable(log), is_spilled=True) for log in moved.logs.values())
            found |= {segment.key: segment for segment in spilled}
        again = self._again_folder
        if again is not None and again.exists() and (wanted := self._list(again)) is not None:
            readings = (
                replace(
                    _readable(log),
                    key=key_of_reading_again(log.segment_id),
                    queued_file=(log.inode, log.time_ns),
                )
                for log in wanted.logs.values()
            )
            found |= {each.key: each for each in readings}
        self._complain(complaints)
        return [found[key] for key in sorted(found)]

    def _list(self, folder: Path) -> FolderContent | None:
        try:
            content = list_folder(folder, self._settled.get(folder, {}))
        except OSError as error:
            self._report(str(folder), f"cannot be listed ({error.strerror}); trying again")
            return None
        self._complained.pop(str(folder), None)
        return content

    def _in_cdc_raw(
        self, content: FolderContent, complaints: dict[str, str], now_ms: int
    ) -> dict[SegmentKey, ReadableSegment]:
        """List the segments of `cdc_raw`.

        Completed ones are known from before; the indexes of others are read again.
        """
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
        age = _Age(newest_id, _newest_unsynced_id(content) if self._unsynced else -1, now_ms)
        found = {each.key: each for each in self._indexed(content, indexes, age)}
        self._settle(content, indexes, found, known)
        unlisted = []
        for each in _unindexed(content, age, complaints):
            # Segments get changes in the order of their ids: if a newer segment has an index, this one has no change of
            # a table with CDC.
            if each.final or (self._unsynced and each.segment_id > newest_id):
                found[each.key] = each
            elif each.segment_id > newest_id:
                unlisted.append(each)
        self.unlisted = sorted(unlisted, key=lambda each: each.key)
        found |= {each.segment.key: each.segment for each in known.values()}
        return found

    def _settle(
        self,
        content: FolderContent,
        indexes: Sequence[_Index],
        found: Mapping[SegmentKey, ReadableSegment],
        known: dict[int, _Settled],
    ) -> None:
        newly = [each.file for each in indexes if each.completed]
        if not newly and len(known) == len(self._known):
            return
        self._known = dict(known)
        for file in newly:
            segment = found.get(SegmentKey(file.segment_id))
            if segment is not None and segment.log_exists:
                log = content.logs[file.segment_id]
                self._known[file.segment_id] = _Settled(index=file, log=log, segment=segment)
        files = (file for each in self._known.values() for file in (each.index, each.log))
        self._settled[self._directory] = {file.path.name: file for file in files}

    def _indexed(self, content: FolderContent, indexes: Sequence[_Index], age: _Age) -> list[ReadableSegment]:
        found = []
        for index in indexes:
            log = content.logs.get(index.file.segment_id)
            if segment_name(index.file.path.name) in content.strangers:
                continue
            abandoned = age.is_earlier_start(index.file, log) or (
                log is not None and index.file.segment_id < age.newest_id and age.is_unlinked(log, index.file.time_ms)
            )
            found.append(
                ReadableSegment(
                    key=SegmentKey(index.file.segment_id),
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
            # The index is being rewritten, was left incomplete by kill -9, or cannot be read now. A known offset stays
            # true. A new agent knows none, but must list an existing segment: otherwise the segment would be taken for
            # gone, and newer ones would be read first.
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
        """Report each ignored entry once, and again only if it was gone in between."""
        for name, why in complaints.items():
            self._report(name, f"is left alone: {why}")
        self._complained = {name: self._complained[name] for name in complaints}

    def _report(self, name: str, message: str) -> None:
        if self._complained.setdefault(name, message) is message and not self._quiet:
            _log.warning("%s in %s %s", name, self._directory, message)


def _newest_unsynced_id(content: FolderContent) -> int:
    return max((each for each, log in content.logs.items() if each not in content.indexes and log.size), default=-1)


def _unindexed(content: FolderContent, age: _Age, complaints: dict[str, str]) -> list[ReadableSegment]:
    """Segments without an index. Those that can be read are final."""
    found = []
    for segment_id, log in content.logs.items():
        if segment_id in content.indexes:
            continue
        if log.size == 0:
            # Cassandra gives a segment its size when it creates it, so a file that stays empty is reported.
            if age.now_ms - log.time_ms > _UNLINKED_REST_MS:
                complaints[log.path.name] = "it is empty"
            continue
        abandoned = age.is_earlier_start(log, log) or age.is_unlinked(log, log.time_ms)
        final = log.version < _FIRST_INDEXED_VERSION or abandoned
        found.append(_readable(log, final=final))
    return found


def _readable(log: SegmentFile, *, final: bool = True) -> ReadableSegment:
    return ReadableSegment(
        key=SegmentKey(log.segment_id),
        path=log.path,
        limit=log.size if final else 0,
        final=final,
        log_exists=True,
        index_time_ms=log.time_ms,
        has_index=False,
    )
