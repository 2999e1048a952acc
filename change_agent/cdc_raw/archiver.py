"""SegmentArchiver: removes finished segments from `cdc_raw`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from change_agent.cdc_raw.cdc_index import index_name

__all__ = ["SegmentArchiver"]

_log: Final = logging.getLogger(__name__)


class SegmentArchiver:
    """Deletes a segment and its index. Called only for segments whose end is acknowledged and stored as finished."""

    def __init__(self, directory: Path) -> None:
        self._directory: Final = directory

    def delete(self, log_name: str) -> bool:
        """Delete `CommitLog-7-1.log` and its index; True when the log was there and is gone now.

        The log goes first: an index alone is never mistaken for unread data by anybody.
        """
        log, index = self._directory / log_name, self._directory / index_name(log_name)
        try:
            existed = log.exists()
            log.unlink(missing_ok=True)
            index.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s cannot be deleted (%s); it is finished, trying again", log_name, error.strerror)
            return False
        return existed
