"""ProgressReporter: publishes the times up to which the events topics have every write of the node.

The records are those of schemas.progress_record.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol
from uuid import UUID

from change_agent.errors import PublishError
from change_agent.private_files import replace_private
from change_agent.publishing.event_producers import EventProducer, send_all
from change_agent.reporting.checkpoints import with_known_positions, with_newest
from change_agent.reporting.cluster_looks import ClusterLooks, ClusterView
from runtime.backoff import Backoff
from runtime.notices import Notices
from runtime.stage import Stage
from schemas.progress_record import (
    Checkpoint,
    MalformedProgressError,
    ProgressRecord,
    TableProgress,
    TopicPosition,
    decode_progress,
    encode_progress,
)
from schemas.table_metadata import TableMetadata

__all__ = ["ProgressReporter", "ProgressState", "newest_published_ms", "remove_progress", "stored_progress"]

_log: Final = logging.getLogger(__name__)
_NAME: Final = "progress.avro"
_ANSWER_TIMEOUT_S: Final = 30.0
_BACKOFF: Final = Backoff(0.5, 30)
# Progress that stands still is published again after this time, so that a reader sees that the agent runs.
_STILL_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressState:
    """The agent's knowledge of its node. `stops` has every published table, with None if its progress has no stop."""

    node_id: UUID
    tables: Sequence[TableMetadata]
    stops: Mapping[tuple[str, str], str | None]
    behind: str | None


class Checkpoints(Protocol):
    """Knows what the broker has acknowledged: a MutationPublisher."""

    def checkpoint(self, keyspace: str, table: str) -> Checkpoint | None:
        """The time up to which the broker has everything of a table; None while that is not known."""

    def first_positions(self, keyspace: str, table: str) -> tuple[TopicPosition, ...]:
        """By partition, what a checkpoint with an unknown position has in its place, if it was asked for before."""

    def stopped(self, keyspace: str, table: str) -> str | None:
        """The reason why the broker does not get a table's events; None if it gets them."""


class ProgressReporter(Stage):
    """Publishes a record when a moment was passed, at most one in each interval. Any thread may call `note`.

    `state` returns None before anything was read. `ask_cluster` is the question of ClusterLooks. `record` is the record
    that was published last, or that is being published; any thread may read it.
    """

    def __init__(
        self,
        directory: Path,
        open_producer: Callable[[], EventProducer],
        state: Callable[[], ProgressState | None],
        ask_cluster: Callable[[], ClusterView | None],
        checkpoints: Checkpoints,
        interval_s: float,
    ) -> None:
        super().__init__("reporter of the progress")
        self._path: Final = directory / _NAME
        self._open_producer: Final = open_producer
        self._state: Final = state
        self._checkpoints: Final = checkpoints
        self._interval_s: Final = interval_s
        self._noted: Final = threading.Event()
        self._notices: Final = Notices(_log, again_after_s=None)
        self._producer: EventProducer | None = None
        stored = stored_progress(directory)
        known = ClusterView() if stored is None else ClusterView(peers=stored.peers, replication=stored.replication)
        self._looks: Final = ClusterLooks(ask_cluster, known)
        self._history: Final[dict[tuple[str, str], tuple[Checkpoint, ...]]] = {
            (each.keyspace, each.table): tuple(each.checkpoints) for each in (stored.tables if stored else ())
        }
        # By table: checkpoints up to this time no longer count. Any thread sets entries.
        self._forgotten: Final[dict[tuple[str, str], int]] = {}
        # Guards the file, and `_stored`, the record that it has.
        self._file_lock: Final = threading.Lock()
        self._stored: ProgressRecord | None = stored
        self.record: ProgressRecord | None = None

    def forget(self, keyspace: str, table: str) -> None:
        """Drop the table's checkpoints: they have positions of an events topic that is lost. Any thread may call this.

        Positions of the new topic are higher. So its subscription would seem to have passed the old positions, even if
        their events were not read. When this returns, a restarted agent does not have these checkpoints either. Raises
        PublishError.
        """
        with self._file_lock:
            newest = self._checkpoints.checkpoint(keyspace, table)
            known = [*self._history.get((keyspace, table), ()), *([newest] if newest is not None else [])]
            # The clock may have been set back: then known checkpoints are later than now.
            now_ms = time.time_ns() // 1_000_000
            self._forgotten[keyspace, table] = max([now_ms, *(each.resolved_ms for each in known)])
            if self._stored is None:
                return
            try:
                self._write(self._stored)
            except PublishError:
                # The disk may be full of events that are held for this topic, which is opened only after this returns.
                # So the file must not need room.
                self._remove_file()

    @property
    def reported(self) -> frozenset[tuple[str, str]]:
        """Keyspaces and tables that had a checkpoint, also before a restart. Any thread may call this."""
        return frozenset(tuple(self._history))

    def ages_s(self) -> dict[str, float]:
        """By table: age in seconds of the time up to which the events topic has everything.

        Any thread may call this.
        """
        record, now_ms = self.record, time.time() * 1000
        tables = () if record is None else record.tables
        return {each.name: (now_ms - each.checkpoints[0].resolved_ms) / 1000 for each in tables if each.checkpoints}

    def as_status(self) -> dict[str, object]:
        """By table: that time in milliseconds since the epoch, and the reason if it stands still.

        Any thread may call this.
        """
        record = self.record
        return {
            each.name: {
                "time_ms": each.checkpoints[0].resolved_ms if each.checkpoints else None,
                "stopped": each.stopped or (None if record is None else record.behind),
            }
            for each in (() if record is None else record.tables)
        }

    def note(self) -> None:
        """Note that a moment was passed."""
        self._noted.set()

    def wake(self) -> None:
        """End the wait for a moment."""
        self._noted.set()

    def run(self) -> None:
        """Publish records until the stop. After a failure, try again with the newest record."""
        failures, sent_at = 0, 0.0
        while not self.stopping.is_set():
            self._noted.wait(self._interval_s)
            self._noted.clear()
            record = self._next()
            if record is None or (_same(record, self.record) and time.monotonic() < sent_at + _STILL_S):
                continue
            self.record = record
            try:
                self._publish(record)
            except PublishError as error:
                if self.stopping.is_set():
                    break  # the next start publishes what comes after the last record
                failures += 1
                self._notices.say("broker", f"the progress cannot be published: {error}; trying again")
                self._close()
                self.stopping.wait(_BACKOFF.pause_s(failures))
            else:
                failures, sent_at = 0, time.monotonic()
                self._notices.clear("broker", "the progress is published again")
                self.stopping.wait(self._interval_s)
        self._close()

    def _next(self) -> ProgressRecord | None:
        state = self._state()
        if state is None:
            return None
        tables = {(each.keyspace, each.name): each for each in state.tables}
        newest = {name: self._checkpoints.checkpoint(*name) for name in tables}
        # After the checkpoints: a node that answered a write before their times is known then.
        if not self._looks.look():
            newest.clear()
        view = self._looks.view
        progress = tuple(
            self._progress(each, newest.get(name), state.stops.get(name)) for name, each in sorted(tables.items())
        )
        keyspaces = {each.keyspace for each in state.tables}
        return ProgressRecord(
            node_id=state.node_id,
            published_ms=int(time.time() * 1000),
            tables=progress,
            peers=tuple(view.peers),
            replication={name: options for name, options in view.replication.items() if name in keyspaces},
            behind=state.behind,
        )

    def _progress(self, table: TableMetadata, newest: Checkpoint | None, stop: str | None) -> TableProgress:
        name = (table.keyspace, table.name)
        forgotten_ms = self._forgotten.get(name, -1)
        if newest is not None and newest.resolved_ms <= forgotten_ms:
            newest = None
        checkpoints = tuple(each for each in self._history.get(name, ()) if each.resolved_ms > forgotten_ms)
        if newest is not None and (not checkpoints or newest.resolved_ms > checkpoints[0].resolved_ms):
            # The first events after a restart show where the partitions ended before.
            known = with_known_positions(checkpoints, self._checkpoints.first_positions(*name))
            checkpoints = self._history[name] = with_newest(known, newest)
        return TableProgress(
            keyspace=table.keyspace,
            table=table.name,
            table_id=table.table_id,
            checkpoints=checkpoints,
            stopped=stop or self._checkpoints.stopped(*name),
        )

    def _publish(self, record: ProgressRecord) -> None:
        if self._producer is None:
            self._producer = self._open_producer()
        with self._file_lock:
            payload = self._write(record)
        send_all(
            [(self._producer, payload)],
            "the progress topic",
            _ANSWER_TIMEOUT_S,
            key=str(record.node_id),
            stopping=self.stopping,
        )

    def _write(self, record: ProgressRecord) -> bytes:
        """Write a record to the file before it is published, so that a restarted agent publishes nothing older.

        The file need not survive a power loss. Return the bytes that were written: a table may have been forgotten
        since the record was made.
        """
        kept = replace(record, tables=tuple(map(self._without_forgotten, record.tables)))
        payload = encode_progress(kept)
        try:
            replace_private(self._path, payload)
        except OSError as error:
            raise PublishError("the progress topic", f"{self._path} cannot be written ({error.strerror})") from error
        self._stored = kept
        return payload

    def _remove_file(self) -> None:
        """Remove the file: a restarted agent then begins with the times of its own records."""
        try:
            remove_progress(self._path.parent)
        except OSError as error:
            raise PublishError("the progress topic", f"{self._path} cannot be removed ({error.strerror})") from error
        self._stored = None

    def _without_forgotten(self, table: TableProgress) -> TableProgress:
        forgotten_ms = self._forgotten.get((table.keyspace, table.table), -1)
        return replace(table, checkpoints=tuple(each for each in table.checkpoints if each.resolved_ms > forgotten_ms))

    def _close(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None


def stored_progress(directory: Path) -> ProgressRecord | None:
    """The record that an agent of this working directory published last; None without a readable one."""
    try:
        return decode_progress((directory / _NAME).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, MalformedProgressError) as error:
        _log.warning("%s cannot be read (%s): older times are forgotten", directory / _NAME, error)
        return None


def remove_progress(directory: Path) -> None:
    """Remove the stored record. Raises OSError."""
    (directory / _NAME).unlink(missing_ok=True)


def newest_published_ms(record: ProgressRecord | None) -> int:
    """The newest time of a record, since the epoch; 0 without one."""
    if record is None:
        return 0
    return max((each.resolved_ms for table in record.tables for each in table.checkpoints), default=0)


def _same(record: ProgressRecord, other: ProgressRecord | None) -> bool:
    return other is not None and replace(record, published_ms=0) == replace(other, published_ms=0)
