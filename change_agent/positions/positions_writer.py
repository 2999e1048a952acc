"""PositionsWriter: the only thread that stores positions. After that it lets the files of finished segments go."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Container, Mapping
from typing import Final, Protocol

from change_agent.cdc_raw.segment_key import SegmentKey
from change_agent.metrics import AgentMetrics
from change_agent.positions.inflight import InflightPositions, SegmentProgress
from change_agent.positions.offsets import OffsetStore, StoredPositions, StoredSegment
from change_agent.positions.segment_ids import SegmentIds
from runtime.stage import Stage

__all__ = ["FinishedSegments", "PositionsWriter"]

_log: Final = logging.getLogger(__name__)
_STATUS_INTERVAL_S: Final = 1.0


class FinishedSegments(Protocol):
    """Handles the files of finished segments; implemented by FinishedSegmentFiles."""

    def let_go(
        self, finished: Container[SegmentKey], lost: Container[SegmentKey], faulty: Mapping[SegmentKey, str]
    ) -> frozenset[SegmentKey]:
        """Archive and delete the existing files of `finished`, and set `faulty` segments (with the reason) aside.

        Segments of `lost` are not deleted, because they are not read. Return the faulty segments that are set aside.
        """

    def present(self) -> Collection[SegmentKey] | None:
        """Keys of the segments whose files exist; None while they are not known."""


class PositionsWriter(Stage):
    """Stores the acknowledged positions at an interval and once more at the end.

    A segment is deleted only when both generations have it as finished. Otherwise a start with a damaged newer
    generation would take the deleted segment for lost. `deletable` returns which of the stored finished segments may be
    deleted now: with a copy of the positions, those that the copy has as finished.

    While positions cannot be stored (a full disk), no file is deleted, and storing is retried. After a crash, events are
    then published again.
    """

    def __init__(
        self,
        store: OffsetStore,
        stored: StoredPositions,
        positions: InflightPositions,
        finished_segments: FinishedSegments,
        metrics: AgentMetrics,
        write_status: Callable[[], None],
        interval_s: float,
        deletable: Callable[[SegmentIds], Container[SegmentKey]] | None = None,
    ) -> None:
        super().__init__("writer of positions")
        self._store: Final = store
        self._stored = stored
        self._positions: Final = positions
        self._finished_segments: Final = finished_segments
        self._metrics: Final = metrics
        self._write_status: Final = write_status
        self._interval_s: Final = interval_s
        self._deletable: Final = deletable
        self._lock: Final = threading.Lock()
        self._set_aside: frozenset[SegmentKey] = frozenset()
        # How often in a row storing has failed.
        self.store_failures = 0

    @property
    def stored(self) -> StoredPositions:
        """The positions that were stored last."""
        return self._stored

    def adopt(self, positions: StoredPositions) -> bool:
        """Store positions of another machine, and continue from them. False when they cannot be stored now."""
        with self._lock:
            try:
                self._store.store(positions)
            except OSError as error:
                self._metrics.count_write_failure()
                _log.warning("positions cannot be stored (%s); reading waits, trying again", error)
                return False
            self._stored = positions
            return True

    def run(self) -> None:
        """Store the positions at the interval, and once more at the end."""
        status_at = 0.0
        while True:
            stopping = self.stopping.wait(self._interval_s)
            with self._lock:
                self._store_and_let_go()
            if stopping or time.monotonic() >= status_at:
                self._try_to_write_status()
                status_at = time.monotonic() + _STATUS_INTERVAL_S
            if stopping:
                return

    def _try_to_write_status(self) -> None:
        try:
            self._write_status()
        except OSError as error:
            # If positions cannot be stored either (a full disk), only that error is reported.
            _log.log(logging.DEBUG if self.store_failures else logging.WARNING, "no status file (%s)", error)

    def _store_and_let_go(self) -> None:
        progress = self._positions.progress()
        try:
            self._store_progress(progress)
        except OSError as error:
            self.store_failures += 1
            self._metrics.count_write_failure()
            if self.store_failures == 1:
                _log.error("positions cannot be stored (%s); no segment is deleted until they can, trying again", error)
            return
        if self.store_failures:
            _log.info("positions are stored again")
            self.store_failures = 0
        # Without the segments that are stored as finished now: they are set aside already.
        unfinished = {each: progress[each] for each in progress.keys() & self._stored.segments.keys()}
        faulty = {each: done.fault for each, done in unfinished.items() if done.done and done.fault is not None}
        finished = self._stored.finished if self._deletable is None else self._deletable(self._stored.finished)
        self._set_aside |= self._finished_segments.let_go(finished, self._stored.lost, faulty)

    def _store_progress(self, progress: Mapping[SegmentKey, SegmentProgress]) -> None:
        ended = {
            key
            for key, each in progress.items()
            if (each.done and not each.keep and each.fault is None) or key in self._set_aside
        }
        segments = dict(self._stored.segments)
        segments |= {key: _stored(each) for key, each in progress.items()}
        for key in ended:
            del segments[key]
        until_ms = max(self._stored.until_ms, self._positions.acknowledged_until_ms)
        present = self._finished_segments.present()
        # The key of a second reading whose file is gone is removed: if the file comes back, it is read again.
        gone = [] if present is None else [each for each in self._stored.finished.read_again() if each not in present]
        lost = {each for each in ended if progress[each].is_lost}
        # The files of these segments came back, and are read.
        returned = {
            each for each in progress.keys() - ended if each in self._stored.lost or each in self._stored.finished
        }
        finished = self._stored.finished.adding(ended, present or ()).removing({*gone, *returned})
        positions = StoredPositions(
            segments=segments,
            finished=finished,
            lost=self._stored.lost.adding(lost, present or ()).removing((ended - lost) | returned),
            until_ms=until_ms,
        )
        if positions != self._stored:
            self._store.store(positions)
            self._stored = positions
        if self._store.older.finished != finished:
            self._store.store(positions)
        for key in ended:
            self._positions.forget(key)
        self._set_aside -= ended


def _stored(progress: SegmentProgress) -> StoredSegment:
    return StoredSegment(position=progress.position, keep=progress.keep, fault=progress.fault)
