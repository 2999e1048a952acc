"""PositionsWriter: the one thread that stores positions, and then lets finished segments go."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from change_agent.inflight import InflightPositions, SegmentProgress
from change_agent.offsets import OffsetStore, StoredPositions, StoredSegment

__all__ = ["PositionsWriter"]

_log: Final = logging.getLogger(__name__)
_STATUS_INTERVAL_S: Final = 1.0


class PositionsWriter:
    """Stores the acknowledged prefix at an interval and once more at the end. A position is stored before a file goes."""

    def __init__(
        self,
        store: OffsetStore,
        stored: StoredPositions,
        positions: InflightPositions,
        delete_finished: Callable[[frozenset[int]], None],
        write_status: Callable[[], None],
        interval_s: float,
    ) -> None:
        self._store: Final = store
        self._stored = stored
        self._positions: Final = positions
        self._delete_finished: Final = delete_finished
        self._write_status: Final = write_status
        self._interval_s: Final = interval_s
        self._stopping: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, name="positions", daemon=True)
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Begin to store."""
        self._thread.start()

    def stop(self) -> None:
        """Store what is acknowledged by now, and end."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        status_at = 0.0
        try:
            while True:
                stopping = self._stopping.wait(self._interval_s)
                self._store_progress()
                self._delete_finished(self._stored.finished)
                if stopping or time.monotonic() >= status_at:
                    self._write_status()
                    status_at = time.monotonic() + _STATUS_INTERVAL_S
                if stopping:
                    return
        except Exception as error:  # noqa: BLE001  # the top of a thread
            _log.exception("storing positions failed")
            self.failure = error

    def _store_progress(self) -> None:
        progress = self._positions.progress()
        ended = {segment_id for segment_id, each in progress.items() if each.done and not each.keep}
        segments = dict(self._stored.segments)
        segments |= {segment_id: _stored(each) for segment_id, each in progress.items()}
        for segment_id in ended:
            del segments[segment_id]
        positions = StoredPositions(segments=segments, finished=self._stored.finished | ended)
        if positions != self._stored:
            self._store.store(positions)
            self._stored = positions
        for segment_id in ended:
            self._positions.forget(segment_id)


def _stored(progress: SegmentProgress) -> StoredSegment:
    return StoredSegment(position=progress.position, keep=progress.keep)
