"""ChangeAgent: builds, starts and stops the stages. No other module knows all of them.

    CdcRawWatcher ─segment─> SegmentFollower ─entry─> MutationInterpreter ─event─> MutationPublisher ─message─> Pulsar
                                                                                        │ acknowledged
    SegmentArchiver <─finished─ PositionsWriter <─unbroken prefix─ InflightPositions <──┘

Each stage is one thread. They start in this order and stop in the reverse order, so that events that were read can
still be acknowledged, and their positions stored:

    HttpEndpoint            metrics, health and readiness, on separate threads
    TableMetadataProvider   the session with Cassandra; the schema history, with the reader
    PositionsCopy           if configured: claims the node, restores positions
    PositionsWriter         the positions' files, the deletion of segments, the status file
    GapReporter             idle until changes may be lost
    ProgressReporter        the record of the progress topic
    MutationPublisher       topics, lanes; short-lived threads make producers for it
    (at the stop: wait until everything that was read is acknowledged)
    SegmentFollower         inotify, the open segments, the decoder, the parked mutations
    CdcRawGuard             moves unread segments out of a full cdc_raw; has its own session with Cassandra
    SegmentRotation         if configured; has its own session with Cassandra

ChangeAgent owns the Pulsar client and the lock of the working directory. Archiving, if configured, has a thread that
the PositionsWriter uses. This module is long because the wiring of every stage is here and nowhere else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from uuid import UUID

from change_agent.archive.archiving import Archiving
from change_agent.archive.segment_archive import LastArchive, SegmentArchive
from change_agent.cdc_raw.archiver import SegmentArchiver
from change_agent.cdc_raw.watcher import CdcRawWatcher
from change_agent.clients import cdc_raw_guard, event_producers, segment_rotation
from change_agent.configuration.config import RELOADABLE, AgentConfig, to_option
from change_agent.configuration.table_filter import TableFilter
from change_agent.errors import PublishError
from change_agent.events.mutation_interpreter import MutationInterpreter
from change_agent.metrics import AgentMetrics
from change_agent.parking.parked import ParkedMutations
from change_agent.positions.copied_state import maker_of
from change_agent.positions.inflight import InflightPositions
from change_agent.positions.offsets import OffsetStore, StoredPositions, reading_again
from change_agent.positions.positions_copy import PositionsCopy
from change_agent.positions.positions_writer import PositionsWriter
from change_agent.positions.published_clearings import PublishedClearings
from change_agent.positions.stops import EVERY_TABLE, Stops
from change_agent.publishing.awaited_clearings import AwaitedClearings
from change_agent.publishing.dropped_tables import DroppedTables, have_gone
from change_agent.publishing.held_events import holds_events
from change_agent.publishing.hold_limits import HoldLimits
from change_agent.publishing.messages import Packing
from change_agent.publishing.node_owner import NodeOwner
from change_agent.publishing.publisher import MutationPublisher
from change_agent.publishing.topic_checks import LostTopic
from change_agent.reporting.cluster_looks import ClusterView
from change_agent.reporting.http_endpoint import HttpEndpoint
from change_agent.reporting.logs import set_up_log
from change_agent.reporting.progress_reporter import (
    ProgressReporter,
    ProgressState,
    newest_published_ms,
    stored_progress,
)
from change_agent.reporting.prometheus import CONTENT_TYPE, MetricsPage
from change_agent.reporting.status_report import StatusReport
from change_agent.reporting.topic_prefix import take_prefix
from change_agent.schema.node_connection import NodeConnection
from change_agent.schema.present_tables import PresentTables
from change_agent.schema.schema_history import SchemaHistory
from change_agent.schema.table_metadata import TableMetadataProvider
from change_agent.segments.clearings import Clearings
from change_agent.segments.finished_segments import FinishedSegmentFiles
from change_agent.segments.gaps import Gap, GapReporter, lost_topic_message, lost_topic_record
from change_agent.segments.known_segments import KnownSegments
from change_agent.segments.moments import Moments
from change_agent.segments.reader_parts import ReaderParts
from change_agent.segments.segment_follower import SegmentFollower
from change_agent.segments.table_stops import note_disabled, note_left_out, note_unlogged, table_stops
from change_agent.segments.unsynced import UnsyncedReading
from change_agent.signal_request import SignalRequest
from change_agent.sqlite_file import UnwritableFileError
from runtime.stage import Stage
from schemas.errors import CdcError, ConfigError
from schemas.gap_record import gaps_topic
from schemas.progress_record import Peer, progress_topic
from schemas.topics import full_topic_name

__all__ = ["AgentFailedError", "ChangeAgent"]

_log: Final = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_LOOK_S: Final = 0.5
_READY_S: Final = 0.05
# Topics that cannot be used for _HOLD_AFTER_S are held once their events take more than 1/_SHARE of the limits in
# flight.
_HOLD_AFTER_S: Final = 10.0
# The longest wait for the node's answer about the cluster. The reporter of the progress does nothing else meanwhile.
_CLUSTER_ANSWER_S: Final = 1.0
_SHARE: Final = 4


class AgentFailedError(CdcError):
    """An unexpected error ended a thread of the agent; its traceback is in the log."""


class ChangeAgent:
    """An agent for one node.

    One thread calls `start`, `wait` and `stop`, each once. Any thread or signal handler may call `ask_to_stop`.

    The constructor changes only the working directory. It raises ConfigError, WorkingDirInUseError and
    DamagedPositionsError. It waits while the disk is full.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self.metrics: Final = AgentMetrics()
        self._stop_request: Final = SignalRequest()
        self._stopping: Final = threading.Event()
        self._store: Final = OffsetStore(config.cdc_working_dir)
        self._stages: Final[list[Stage]] = []
        # The steps of `stop`, in reverse order.
        self._ending: Final = ExitStack()
        self._ending.callback(self._store.close)
        self._stored = self._store.load()
        spill_directory = config.spill_dir or config.cdc_working_dir / "spill"
        folders = [config.cdc_raw_directory, spill_directory]
        self._parked: Final = self._until_writable(
            lambda: ParkedMutations(config.cdc_working_dir, lambda: self._read_again(folders))
        )
        self._positions: Final = InflightPositions(
            max_events=config.max_inflight_events, max_bytes=config.max_inflight_bytes
        )
        self._positions.go_on_from(self._stored.last_place)
        self._provider: Final = self._make_provider()
        self._tables: Final = PresentTables(
            lambda: self._interpreter.published_tables,
            lambda: self._interpreter.left_out_tables,
            lambda: self._provider.present,
        )
        self._rotation: Final = segment_rotation(config)
        self._producers: Final = event_producers(config, self._note_lost)
        self._stops: Final = Stops(config.cdc_working_dir)
        self._awaited: Final = AwaitedClearings(
            config.cdc_working_dir,
            self._producers.open_clearings,
            self._stopping,
            is_dropped=self._is_dropped,
            has_topic=self._producers.has_topic,
        )
        self._publisher: Final = MutationPublisher(
            self._producers,
            self._positions,
            self.metrics,
            topic_prefix=config.topic_prefix,
            packing=Packing(max_events=config.max_events_per_message, max_bytes=config.max_message_bytes),
            held_directory=config.cdc_working_dir / "held",
            hold_limits=HoldLimits(
                events=config.max_inflight_events // _SHARE,
                bytes=config.max_inflight_bytes // _SHARE,
                seconds=_HOLD_AFTER_S,
                max_held_bytes=config.max_held_bytes,
            ),
            check_s=config.events_topics_check_interval_ms / 1000,
            tables=self._tables.names,
            on_damage=self._stops.note,
            awaited=self._awaited,
            dropped=DroppedTables(self._producers.has_topic, partial(have_gone, self._provider)),
        )
        self._watcher: Final = CdcRawWatcher(
            config.cdc_raw_directory,
            config.cdc_poll_interval_ms / 1000,
            [spill_directory],
            config.cdc_working_dir / "reprocess",
            unsynced=config.read_unsynced,
        )
        self._guard: Final = cdc_raw_guard(config, spill_directory, self.metrics, self._watcher.wake)
        self._gaps: Final = GapReporter(self._producers, gaps_topic(config.topic_prefix), self._stops)
        self._interpreter: Final = MutationInterpreter(
            self._provider, self._parked, self.metrics, self._stopping, finished=self._stored.read_in_full
        )
        self._moments: Final = self._make_moments()
        self._segments: Final = KnownSegments(self._positions, self._stored, config.segment_options)
        self._archiver: Final = SegmentArchiver(config.cdc_working_dir / "error")
        self._follower: Final = self._make_follower()
        self._until_writable(self._take_prefix)
        self._progress: Final = self._make_progress()
        self._report: Final = self._make_report()
        self._http: Final = self._make_http()
        self._archiving: Final = self._make_archiving()
        self._copy: Final = self._make_copy()
        self._reader: Final = _Reader(self._follower, self._may_read, self._stopping)
        self._owner: Final = NodeOwner(
            lambda node_id: self._producers.claim(full_topic_name(f"{config.topic_prefix}agent-{node_id}")),
            self._node_id,
            self.metrics,
            self._stopping,
        )
        self._writer: Final = PositionsWriter(
            self._store,
            self._stored,
            self._positions,
            FinishedSegmentFiles(
                self._segments,
                self._archiver,
                self._parked,
                self.metrics,
                self._archiving,
            ),
            self.metrics,
            write_status=self._write_status,
            interval_s=config.positions_interval_ms / 1000,
            deletable=None if self._copy is None else self._copy.deletable,
        )

    def _until_writable(self, action: Callable[[], _Result]) -> _Result:
        """Repeat `action` until the disk has room for it.

        Raises UnwritableFileError when the agent is asked to stop.
        """
        while True:
            try:
                return action()
            except UnwritableFileError as error:
                _log.log(logging.DEBUG if self.metrics.write_failures else logging.ERROR, "%s", error)
                self.metrics.count_write_failure()
                if self._stop_request.wait(_LOOK_S):
                    raise

    def _take_prefix(self) -> None:
        try:
            take_prefix(
                self._config.cdc_working_dir,
                full_topic_name(self._config.topic_prefix),
                self._stops,
                has_read=self._stored.last_place != (0, 0),
            )
        except OSError as error:
            raise UnwritableFileError(f"the topics' prefix cannot be stored ({error}); trying again") from error

    def _read_again(self, folders: list[Path]) -> None:
        self._stored = reading_again(self._stored, folders)
        try:
            self._store.store(self._stored)
        except OSError as error:
            raise UnwritableFileError(f"positions cannot be stored ({error}); trying again") from error

    def _make_archiving(self) -> Archiving | None:
        url, compression = self._config.archive_url, self._config.archive_compression
        last = LastArchive(self._config.cdc_working_dir, url)
        if url is None:
            self._until_writable(lambda: _note(last))
            return None
        # The archive has every segment that finishes from now on.
        began_ms = time.time_ns() // 1_000_000
        return Archiving(
            SegmentArchive(url, compression, last), self._node_id, lambda: self._provider.archived_schema(began_ms)
        )

    def _make_copy(self) -> PositionsCopy | None:
        prefix = self._config.positions_topic_prefix
        if prefix is None:
            return None
        return PositionsCopy(
            lambda node_id: self._producers.copy_topic(full_topic_name(f"{prefix}{node_id}")),
            self._node_id,
            lambda: self._writer.stored,
            lambda: self._parked.count == 0 and not holds_events(self._config.cdc_working_dir / "held"),
            self._adopt,
            own=self._stored,
            stops=self._stops,
            clearings=PublishedClearings(self._config.cdc_working_dir),
            maker=self._until_writable(self._maker),
        )

    def _maker(self) -> str:
        try:
            return maker_of(self._config.cdc_working_dir)
        except OSError as error:
            raise UnwritableFileError(
                f"the name for copies of positions cannot be stored ({error}); trying again"
            ) from error

    def _adopt(self, restored: StoredPositions) -> None:
        """Continue from another machine's positions. The reader waits until this returns."""
        while not self._writer.adopt(restored):
            if self._stopping.wait(_LOOK_S):
                return
        self._follower.adopt(restored)
        self._positions.go_on_from(restored.last_place)

    def _may_read(self) -> bool:
        """Wait until this agent alone has the node. Return False if the agent stops before that."""
        if self._copy is not None:
            while not (self._copy.is_ready.wait(_READY_S) or self._stopping.is_set()):
                pass
        elif self._config.create_topics:
            self._owner.wait()
        return not self._stopping.is_set()

    def _node_id(self) -> str | None:
        known = self._provider.known
        return None if known is None else str(known.node_id)

    def _make_provider(self) -> TableMetadataProvider:
        config = self._config
        history = SchemaHistory(config.cdc_working_dir)
        return TableMetadataProvider(NodeConnection.of(config), history, config.schema_refresh_interval_ms / 1000)

    def _make_report(self) -> StatusReport:
        return StatusReport(
            self.metrics,
            self._positions,
            self._provider,
            limits=self._segments.limits,
            topics=lambda: self._publisher.statuses,
            progress=self._progress.as_status,
            path=self._config.cdc_working_dir / "status.json",
            service_url=self._config.pulsar_service_url,
            contact_points=self._config.contact_points,
            requires_safe_policies=self._config.ready_requires_safe_policies,
        )

    def _make_http(self) -> HttpEndpoint | None:
        config = self._config
        if config.http_port is None:
            return None
        page = MetricsPage(self.metrics, lambda: self._publisher.statuses, self._progress.ages_s)
        return HttpEndpoint(
            config.http_address,
            config.http_port,
            {
                "/metrics": lambda: (True, page.render(), CONTENT_TYPE),
                "/status": self._report.last,
                "/healthz": self._report.health,
                "/readyz": self._report.readiness,
            },
        )

    def _note_lost(self, lost: LostTopic) -> None:
        """Report which events may be lost with a topic. A thread that opens the topic again calls this.

        Raises PublishError if it cannot report yet; the caller then retries.
        """
        known = self._provider.known
        if known is None:
            raise PublishError(lost.topic, "its table is not known before Cassandra answers")
        table = lost.topic.removeprefix(full_topic_name(self._config.topic_prefix))
        record = lost_topic_record(
            lost, full_topic_name(self._config.topic_prefix), known, self._positions.read_place, int(time.time() * 1000)
        )
        reason = (
            f"the events topic {lost.reason.partition(';')[0]}: run cdc spark resync; or run cdc spark verify --repair on the table,"
            " then cdc agent resume-progress"
        )
        self._stops.note(table, reason, [record])
        # Before the report: after it, a restarted agent no longer finds the loss and would keep the old checkpoints.
        self._progress.forget(*table.split(".", 1))
        self.metrics.topics_lost += 1
        _log.error("%s", lost_topic_message(lost.topic, record))
        self._gaps.report(Gap(records=[record], on_reported=lost.on_reported))

    def _make_moments(self) -> Moments | None:
        interval_ms = self._config.progress_interval_ms
        if not interval_ms:
            return None
        return Moments(
            interval_ms / 1000,
            self._note_moment,
            floor_ms=newest_published_ms(stored_progress(self._config.cdc_working_dir)),
        )

    def _note_moment(self, time_ms: int) -> None:
        """Note that the publisher has every write that the node answered before `time_ms`.

        Called by the reader's thread.
        """
        stops = self._table_stops()
        self._publisher.note_moment(
            time_ms, frozenset(name for name, reason in stops.items() if reason is None), self._tables.names()
        )

    def _is_dropped(self, table_id: UUID) -> bool | None:
        """True if the node does not have the table now; None before the node's first answer."""
        present = self._provider.present
        return None if present is None else table_id not in present

    def _table_stops(self) -> dict[tuple[str, str], str | None]:
        known = self._provider.known
        tables = {} if known is None else known.tables
        published = self._interpreter.published_tables
        unknown_stops = None if self._copy is None else self._copy.unknown_stops
        note_unlogged(published, self._provider.unlogged_keyspaces, self._stops)
        note_left_out(self._tables.left_out(), self._progress.reported, self._stops)
        if self._guard.ran_without_cdc and (disabled := self._tables.captured()):
            # Each observation makes one stop: an operator may end that stop soon after the node's restart.
            self._guard.ran_without_cdc = False
            note_disabled(disabled, self._stops)
        stops = self._stops.reasons()
        if unknown_stops is not None:
            stops = {EVERY_TABLE: unknown_stops, **stops}
        return table_stops(published, tables, self._parked.table_ids, stops)

    def _make_progress(self) -> ProgressReporter:
        """The reporter. Without progress it is not started, but it knows what an earlier run of the agent reported."""
        topic = progress_topic(self._config.topic_prefix)
        reporter = ProgressReporter(
            self._config.cdc_working_dir,
            lambda: self._producers.open_progress(topic),
            self._progress_state,
            self._ask_cluster,
            self._publisher,
            self._config.progress_interval_ms / 1000,
        )
        if self._moments is not None:
            self._publisher.on_moment(reporter.note)
        return reporter

    def _write_status(self) -> None:
        if self._moments is None:
            # A later run may publish the progress again, and must know which changes this run leaves out.
            self._table_stops()
        self._report.refresh()

    def _progress_state(self) -> ProgressState | None:
        known, moments = self._provider.known, self._moments
        if known is None or moments is None or not moments.has_checked:
            return None
        if not self._interpreter.schema_version:  # it publishes no table before it has a schema
            return None
        left_out = {each.full_name for each in self._tables.left_out()}
        return ProgressState(
            node_id=known.node_id,
            tables=[each for each in self._interpreter.published_tables if each.full_name not in left_out],
            stops=self._table_stops(),
            behind=moments.behind,
        )

    def _ask_cluster(self) -> ClusterView | None:
        """The cluster by the node's newest answer; None before the first one. Waits a second for a new answer."""
        provider, asked_at = self._provider, time.monotonic()
        is_answered = provider.as_of(time.time_ns() // 1_000_000, _CLUSTER_ANSWER_S) is not None
        if not provider.nodes:
            return None
        return ClusterView(
            # Read before the nodes: the provider's thread replaces the nodes, and then this time.
            is_new=is_answered or provider.nodes_asked_at >= asked_at,
            peers=[Peer(each.host_id, each.address, each.data_center) for each in provider.nodes],
            replication=provider.replication,
        )

    def _make_follower(self) -> SegmentFollower:
        interpreter = self._interpreter
        config, unsynced = self._config, None
        if config.read_unsynced:
            unsynced = UnsyncedReading(
                config.read_unsynced_min_interval_ms / 1000,
                config.read_unsynced_max_interval_ms / 1000,
                self._guard.commitlog_disk_access_mode,
            )
        parts = ReaderParts(
            segments=self._segments,
            interpreter=interpreter,
            positions=self._positions,
            publisher=self._publisher,
            metrics=self.metrics,
            stops=self._stops,
            stopping=self._stopping,
        )
        return SegmentFollower(
            parts,
            self._watcher,
            self._parked,
            self._gaps,
            self._archiver.is_set_aside,
            unsynced=unsynced,
            moments=self._moments,
            clearings=Clearings(
                config.cdc_working_dir,
                self._provider,
                interpreter,
                self._positions,
                self._producers,
                config.topic_prefix,
                self._stopping,
                self._awaited,
            ),
        )

    def start(self) -> None:
        """Start all stages. Does not wait for Cassandra or Pulsar, only for room on the disk."""
        config = self._config
        for note in config.notes:
            _log.warning("%s", note)
        _log.info(
            "reading %s, publishing to %s, topics %s<keyspace>.<table>",
            config.cdc_raw_directory,
            config.pulsar_service_url,
            config.topic_prefix,
        )
        self._apply(config)
        if self._http is not None:
            self._report.http_address = self._http.address
        ending = self._ending
        self._begin(self._http)
        ending.callback(self._producers.close)
        ending.callback(self._parked.close)
        self._begin(self._provider)
        if self._archiving is not None:
            ending.callback(self._archiving.close)
        progress = None if self._moments is None else self._progress
        self._awaited.start()
        self._begin(self._copy, self._writer, self._gaps, progress, self._publisher)
        ending.callback(self._drain)
        ending.callback(self._watcher.close)
        self._begin(self._reader, self._guard, self._rotation)

    def _begin(self, *stages: Stage | None) -> None:
        for stage in stages:
            if stage is not None:
                self._stages.append(stage)
                self._ending.callback(stage.stop)
                self._until_writable(stage.start)

    def _apply(self, config: AgentConfig) -> None:
        """Apply the options that may change while the agent runs."""
        set_up_log(config.log_level, config.log_format)
        self._report.unhealthy_after_s = config.unhealthy_after_ms / 1000
        self._report.table_patterns = config.include_tables, config.exclude_tables
        self._interpreter.use_filter(TableFilter(config.include_tables, config.exclude_tables))

    def reload(self, config: AgentConfig) -> None:
        """Apply the options that may change while the agent runs, and log the options that need a restart."""
        changed = self._config.differences(config)
        waiting = sorted(changed - RELOADABLE)
        self._config = self._config.model_copy(update={each: getattr(config, each) for each in changed & RELOADABLE})
        self._apply(self._config)
        _log.info("configuration read again: %s", ", ".join(to_option(each) for each in sorted(changed)) or "no change")
        if waiting:
            _log.warning("restart the agent for: %s", ", ".join(map(to_option, waiting)))

    def ask_to_stop(self) -> None:
        """Let `wait` return."""
        self._stop_request.send()

    def wait(self, until: Callable[[], bool] = lambda: False) -> None:
        """Return when the agent was asked to stop, or when `until` returns True; it is called every half second.

        Raises AgentFailedError when a stage failed, or ConfigError if the configuration has become wrong.
        """
        stats_at = time.monotonic() + self._config.stats_interval_ms / 1000
        while not (self._stop_request.wait(_LOOK_S) or until()):
            for stage in self._stages:
                if isinstance(failure := stage.failure, ConfigError):
                    raise failure
                if failure is not None:
                    raise AgentFailedError(f"the {stage.name} failed: {type(failure).__name__}: {failure}") from failure
            if time.monotonic() >= stats_at:
                stats_at += self._config.stats_interval_ms / 1000
                _log.info("%s", self._stats_line())

    def stop(self) -> None:
        """Stop all stages in reverse order. If a step fails, the others are still done."""
        self._stopping.set()
        self._ending.close()
        _log.info("stopped: %s", self._stats_line())

    def _drain(self) -> None:
        """Wait for the events in flight, up to the shutdown timeout."""
        if not self._positions.wait_until_empty(self._config.shutdown_timeout_ms / 1000):
            _log.warning("%d events are not acknowledged; the next start reads them again", self._positions.events)

    def _stats_line(self) -> str:
        counts = self.metrics.as_dict()
        return ", ".join(f"{name}={value}" for name, value in counts.items() if value)


def _note(last: LastArchive) -> None:
    try:
        last.note()
    except OSError as error:
        raise UnwritableFileError(f"the last archive cannot be noted ({error}); trying again") from error


class _Reader(Stage):
    """Reads the log once this agent has the node."""

    def __init__(self, follower: SegmentFollower, may_read: Callable[[], bool], stopping: threading.Event) -> None:
        super().__init__("reader of the log", stopping)
        self._follower: Final = follower
        self._may_read: Final = may_read

    def run(self) -> None:
        """Read the log, and wait for more of it, until the agent stops."""
        if self._may_read():
            self._follower.run()

    def wake(self) -> None:
        """End the wait for new segments."""
        self._follower.wake()
