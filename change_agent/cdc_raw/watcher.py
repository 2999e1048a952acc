"""CdcRawWatcher: which segments of `cdc_raw` can be read, how far, and which of them are final.

A segment with an index is read up to the index's offset, and to the end of its markers once it is final: COMPLETED, or
proven abandoned by a crash or stop of the node. A segment without an index holds no changes yet; it is not ours.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import inotify_simple

from change_agent.cdc_raw.cdc_index import parse_cdc_index, segment_name
from change_agent.commitlog.descriptor import file_id
from change_agent.errors import MalformedSegmentError

__all__ = ["CdcRawWatcher", "ReadableSegment"]

_log: Final = logging.getLogger(__name__)
_INDEX_SUFFIX: Final = "_cdc.idx"
# A segment that Cassandra has unlinked from its own commit log is not written any more; wait out what is on its way.
_UNLINKED_REST_MS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableSegment:
    """One segment that has an index. `limit` never goes back; `log_exists` is False when the file itself is gone."""

    segment_id: int
    path: Path
    limit: int
    final: bool
    log_exists: bool
    index_time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    segment_id: int
    path: Path
    offset: int
    completed: bool
    time_ms: int


class CdcRawWatcher:
    """Owns the inotify handle of one `cdc_raw` folder. `wait` is called by one thread, `wake` by any."""

    def __init__(self, directory: Path, poll_interval_s: float) -> None:
        self._directory: Final = directory
        self._poll_interval_s: Final = poll_interval_s
        self._offsets: dict[int, int] = {}
        self._complained: set[str] = set()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll: Final = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        self._inotify = self._watch()

    def close(self) -> None:
        """Release the handles."""
        os.close(self._wake_read)
        os.close(self._wake_write)
        if self._inotify is not None:
            self._inotify.close()

    def wake(self) -> None:
        """Let :meth:`wait` return now."""
        os.write(self._wake_write, b"w")

    def wait(self) -> None:
        """Return when an index was written, after `wake`, or after the poll interval."""
        ready = self._poll.poll(self._poll_interval_s * 1000)
        for descriptor, _ in ready:
            if descriptor == self._wake_read:
                os.read(self._wake_read, 4096)
            elif self._inotify is not None:
                self._inotify.read(timeout=0)

    def segments(self, now_ms: int) -> list[ReadableSegment]:
        """All segments with an index, by id. `now_ms` is the time since the epoch."""
        indexes = sorted(self._indexes(), key=lambda each: each.segment_id)
        self._offsets = {each.segment_id: each.offset for each in indexes}
        found = []
        for at, index in enumerate(indexes):
            log = index.path.with_name(segment_name(index.path.name))
            log_status = _status(log)
            final = index.completed or _is_abandoned(index, indexes[at + 1 :], log_status, now_ms)
            found.append(
                ReadableSegment(
                    segment_id=index.segment_id,
                    path=log,
                    limit=index.offset,
                    final=final,
                    log_exists=log_status is not None,
                    index_time_ms=index.time_ms,
                )
            )
        return found

    def _indexes(self) -> Iterator[_Index]:
        try:
            names = [path.name for path in self._directory.iterdir() if path.name.endswith(_INDEX_SUFFIX)]
        except OSError as error:
            self._complain("", f"{self._directory} cannot be listed ({error.strerror}); trying again")
            return
        self._complained.discard("")
        for name in names:
            named = file_id(name)
            index = None if named is None else self._read_index(named[1], self._directory / name)
            if index is not None:
                yield index

    def _read_index(self, segment_id: int, path: Path) -> _Index | None:
        try:
            time_ms = path.stat().st_mtime_ns // 1_000_000
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            parsed = parse_cdc_index(content)
        except MalformedSegmentError as error:
            self._complain(path.name, f"{path.name}: {error}; the segment waits until it is written again")
            return None
        last = self._offsets.get(segment_id)
        if parsed is None:
            # Caught while it is rewritten; what was known stays true.
            return (
                None
                if last is None
                else _Index(segment_id=segment_id, path=path, offset=last, completed=False, time_ms=time_ms)
            )
        offset = parsed.offset if last is None else max(last, parsed.offset)
        return _Index(segment_id=segment_id, path=path, offset=offset, completed=parsed.completed, time_ms=time_ms)

    def _complain(self, about: str, message: str) -> None:
        if about not in self._complained:
            self._complained.add(about)
            _log.warning("%s", message)

    def _watch(self) -> inotify_simple.INotify | None:
        try:
            inotify = inotify_simple.INotify()
            inotify.add_watch(str(self._directory), inotify_simple.flags.CLOSE_WRITE | inotify_simple.flags.MOVED_TO)
        except OSError as error:
            _log.warning("inotify is not available (%s); looking every %.1f s", error.strerror, self._poll_interval_s)
            return None
        self._poll.register(inotify.fileno(), select.POLLIN)
        return inotify


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _is_abandoned(index: _Index, newer: list[_Index], log_status: os.stat_result | None, now_ms: int) -> bool:
    """True when Cassandra can no longer write to a segment although it never completed it.

    Ids are the node's start time in milliseconds plus a counter that is far slower than the clock. So an index that was
    last written before the id of a newer segment belongs to an earlier start of the node. Where clocks say nothing, the
    second name in Cassandra's own commit log does: it is removed when the segment is replayed or discarded.
    """
    if not newer:
        return False
    if any(index.time_ms < each.segment_id for each in newer):
        return True
    rests = now_ms - index.time_ms > _UNLINKED_REST_MS
    return log_status is not None and log_status.st_nlink == 1 and rests
