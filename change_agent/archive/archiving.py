"""Archiving: stores finished segments in the archive, one after the other, on a separate thread. Failures back off."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from change_agent.archive.segment_archive import SegmentArchive
from change_agent.commitlog.descriptor import file_id
from runtime.backoff import Backoff
from runtime.notices import Notices
from schemas.archived_schema import ArchivedSchema

__all__ = ["Archiving"]

_log: Final = logging.getLogger(__name__)
_BACKOFF: Final = Backoff(1, 60)
# The largest number of segments that wait for the archive's thread. The caller soon asks for the others again.
_WAITING: Final = 4


class Archiving:
    """Used by the positions' thread. A segment is reported as archived only when it is in the archive.

    `schema` returns the schema history of the node: the same object as long as it did not change.
    """

    def __init__(
        self, archive: SegmentArchive, node_id: Callable[[], str | None], schema: Callable[[], ArchivedSchema | None]
    ) -> None:
        self._archive: Final = archive
        self._node_id: Final = node_id
        self._schema: Final = schema
        self._stored_schema: ArchivedSchema | None = None
        self._first_segment: int | None = None
        self._pool: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="archive")
        # By file name: the path, and the task that stores the segment.
        self._futures: Final[dict[str, tuple[Path, Future[None]]]] = {}
        self._failures = 0
        self._notices: Final = Notices(_log, again_after_s=None)
        self._retry_at = 0.0
        self.failures = 0

    def close(self) -> None:
        """Give up the segments that wait; the next start archives them."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def is_archived(self, log: Path) -> bool:
        """True when the segment is in the archive; this is returned only once.

        False while it waits or is being stored, and after a failure. Then ask again.
        """
        if log.name not in self._futures:
            self._begin(log)
            return False
        _, future = self._futures[log.name]
        if not future.done():
            return False
        del self._futures[log.name]
        error = future.exception()
        if error is not None:
            self._note_failure(log, error)
            return False
        self._notices.clear("archive", "segments are archived again")
        self._failures = 0
        return True

    def _begin(self, log: Path) -> None:
        node_id = self._node_id()
        self._forget_deleted()
        has_room = len(self._futures) < _WAITING and time.monotonic() >= self._retry_at
        # After a restart the node may not be known yet.
        if node_id is not None and has_room and log.exists():
            self._futures[log.name] = log, self._pool.submit(self._store, log, node_id)

    def _forget_deleted(self) -> None:
        """Give the places of deleted segments to others: nobody asks for them again.

        With `cdc_block_writes: false` Cassandra deletes segments if `cdc_raw` is full.
        """
        for name, (log, future) in list(self._futures.items()):
            if future.done() and not log.exists():
                del self._futures[name]
                if future.exception() is not None:
                    _log.error("the archive has no %s: it was deleted or moved before it was stored", log)

    def _store(self, log: Path, node_id: str) -> None:
        """Runs on the archive's thread.

        The segment is finished, so the schema history has all that is needed to read it.
        """
        found = file_id(log.name)
        assert found is not None, log.name
        schema, (_, segment_id) = self._schema(), found
        first = segment_id if self._first_segment is None else min(segment_id, self._first_segment)
        if schema is not None and (schema is not self._stored_schema or first != self._first_segment):
            self._archive.store_schema(replace(schema, first_segment=first))
            self._stored_schema, self._first_segment = schema, first
        self._archive.store(log, node_id)

    def _note_failure(self, log: Path, error: BaseException) -> None:
        if not log.exists():
            # The segment was moved meanwhile: the caller asks for it again under its new path.
            return
        self._failures += 1
        self.failures += 1
        self._retry_at = time.monotonic() + _BACKOFF.pause_s(self._failures)
        reason = f"{type(error).__name__}: {error}"
        self._notices.say(
            "archive", f"{log.name} cannot be archived ({reason}); it is not deleted, trying again", level=logging.ERROR
        )
