"""CdcRawWatcher: waits for changes in `cdc_raw`, and lists the segments that can be read."""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import inotify_simple

from change_agent.cdc_raw.listing import ReadableSegment, SegmentListing

__all__ = ["CdcRawWatcher"]

_log: Final = logging.getLogger(__name__)


class CdcRawWatcher:
    """Owns the inotify handle of one `cdc_raw` folder. `wait` is called by one thread, `wake` by any.

    For the other folders see SegmentListing.
    """

    def __init__(
        self,
        directory: Path,
        poll_interval_s: float,
        other_folders: Sequence[Path] = (),
        again_folder: Path | None = None,
        *,
        unsynced: bool = False,
    ) -> None:
        self._directory: Final = directory
        self.poll_interval_s: Final = poll_interval_s
        self._listing: Final = SegmentListing(directory, other_folders, again_folder, unsynced=unsynced)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll: Final = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        flags = inotify_simple.flags
        # A segment that is not synced yet has no index, so the creation of files is watched, too.
        self._inotify = self._watch(flags.CLOSE_WRITE | flags.MOVED_TO | (flags.CREATE if unsynced else 0))

    def close(self) -> None:
        """Release the handles."""
        os.close(self._wake_read)
        os.close(self._wake_write)
        if self._inotify is not None:
            self._inotify.close()

    def wake(self) -> None:
        """Let :meth:`wait` return now."""
        os.write(self._wake_write, b"w")

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until a file in the folder was written or moved there, or until `wake`. False after `timeout_s`.

        The default of `timeout_s` is the poll interval.
        """
        ready = self._poll.poll((self.poll_interval_s if timeout_s is None else timeout_s) * 1000)
        for descriptor, _ in ready:
            if descriptor == self._wake_read:
                os.read(self._wake_read, 4096)
            elif self._inotify is not None:
                self._inotify.read(timeout=0)
        return bool(ready)

    @property
    def ignored_files(self) -> int:
        """How many entries of the folder are ignored, as of the last call of :meth:`segments`."""
        return self._listing.ignored_files

    @property
    def unlisted(self) -> Sequence[ReadableSegment]:
        """See SegmentListing."""
        return self._listing.unlisted

    def segments(self, now_ms: int) -> list[ReadableSegment] | None:
        """See SegmentListing."""
        return self._listing.segments(now_ms)

    def _watch(self, events: int) -> inotify_simple.INotify | None:
        try:
            inotify = inotify_simple.INotify()
            inotify.add_watch(str(self._directory), events)
        except OSError as error:
            _log.warning("inotify is not available (%s); checking every %.1f s", error.strerror, self.poll_interval_s)
            return None
        self._poll.register(inotify.fileno(), select.POLLIN)
        return inotify
