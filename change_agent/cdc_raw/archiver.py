"""SegmentArchiver: deletes finished segments, and moves segments that could not be read to a folder for errors."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from change_agent.cdc_raw.cdc_index import index_name
from change_agent.cdc_raw.segment_key import SegmentKey, segment_id_of
from change_agent.private_files import make_private_folder, narrow, open_private, sync_directory, write_private_text

__all__ = ["REASON_SUFFIX", "SegmentArchiver", "move_file"]

_log: Final = logging.getLogger(__name__)
REASON_SUFFIX: Final = ".reason.json"


class SegmentArchiver:
    """Called by one thread, only for segments whose end is acknowledged and stored. Never raises OSError.

    A file that cannot be deleted or moved now stays where it is. This is reported once, and the next call tries again.
    """

    def __init__(self, error_directory: Path) -> None:
        self._error_directory: Final = error_directory
        self._reported: Final[set[str]] = set()

    def delete(self, log: Path) -> bool:
        """Delete a segment and its index; True when the segment was there and is gone now.

        The segment is deleted first, because an index alone is never mistaken for unread data.
        """
        try:
            existed = log.exists()
            log.unlink(missing_ok=True)
        except OSError as error:
            self._report(log, f"cannot be deleted ({error.strerror}); it is finished, trying again")
            return False
        return self.delete_index(log) and existed

    def delete_index(self, log: Path) -> bool:
        """Delete the index of a segment; True when it is gone."""
        try:
            log.with_name(index_name(log.name)).unlink(missing_ok=True)
        except OSError as error:
            self._report(log, f"cannot be deleted ({error.strerror}); it is finished, trying again")
            return False
        self._reported.discard(log.name)
        return True

    def set_aside(self, log: Path, reason: str) -> bool:
        """Move a segment that could not be read in full to the folder for errors; True when it is there."""
        target = self._error_directory / log.name
        try:
            make_private_folder(self._error_directory)
            if log.exists():
                _write_reason(target.with_name(log.name + REASON_SUFFIX), log.name, reason)
                move_file(log, target)
            log.with_name(index_name(log.name)).unlink(missing_ok=True)
            moved = target.exists()
        except OSError as error:
            self._report(log, f"cannot be moved to {self._error_directory} ({error.strerror}); it stays, trying again")
            return False
        if moved:
            self._reported.discard(log.name)
            _log.error("%s is in %s: %s", log.name, self._error_directory, reason)
        return moved

    def is_set_aside(self, key: SegmentKey) -> bool:
        """True when the folder for errors has this segment, after a first or a second reading."""
        return any(self._error_directory.glob(f"CommitLog-*-{segment_id_of(key)}.log"))

    def _report(self, log: Path, message: str) -> None:
        if log.name not in self._reported:
            self._reported.add(log.name)
            _log.warning("%s %s", log.name, message)


def move_file(source: Path, target: Path) -> None:
    """Move a file, also to another disk. It is complete under its new name before the old one is removed.

    Raises OSError.
    """
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy_durably(source, target)
        source.unlink()
    else:
        with suppress(FileNotFoundError):
            if source.samefile(target):
                # Both were names of the same file. Then rename succeeds and does nothing.
                source.unlink()
        narrow(target)
        sync_directory(target.parent)


def _copy_durably(source: Path, target: Path) -> None:
    temporary = target.with_name(target.name + ".tmp")
    # Remove the rest of an earlier try, or a link that somebody else has created and that leads out of the folder.
    temporary.unlink(missing_ok=True)
    try:
        with source.open("rb") as reading, open_private(temporary, "xb") as writing:
            shutil.copyfileobj(reading, writing, 1024 * 1024)
            writing.flush()
            os.fsync(writing.fileno())
        found = source.stat()
        os.utime(temporary, ns=(found.st_atime_ns, found.st_mtime_ns))
        temporary.replace(target)
    except OSError:
        # The disk may be full, and the incomplete copy only takes room.
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)


def _write_reason(path: Path, segment: str, reason: str) -> None:
    content: Mapping[str, str] = {
        "segment": segment,
        "reason": reason,
        "time": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "what_now": f"inspect it with `cdc decode`; publish what can be read with `cdc agent reprocess {segment}`",
    }
    write_private_text(path, json.dumps(content, indent=1) + "\n")
