"""ChangeAgent: builds the stages in order, starts and stops them. The only module that sees them all.

    CdcRawWatcher ─segment─> SegmentFollower ─entry─> MutationInterpreter ─event─> MutationPublisher ─message─> Pulsar
                                                                                        │ acknowledged
    SegmentArchiver <─finished─ PositionsWriter <─unbroken prefix─ InflightPositions <──┘

Who owns what:

    thread `schema`      TableMetadataProvider: the session with Cassandra, the schema's copy
    thread `reader`      SegmentFollower: inotify, the open segments, the decoder, the parked mutations
    thread `publisher`   MutationPublisher: topics, lanes; `open` threads make producers for it, and end
    thread `positions`   PositionsWriter: positions' files, the deletion of segments, the status file
    thread `guard`       CdcRawGuard: the folder of what is moved out of cdc_raw unread; a session of its own
    thread `rotation`    SegmentRotation, where it is wanted: a session of its own
    the caller           this object, the Pulsar client, the lock of the working directory

They stop in the order of the flow, so that what was read can still be acknowledged and stored: reader; then events on
their way are waited for; publisher; positions (a last store); schema; client; lock.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from change_agent.cassandra_yaml import settings_of
from change_agent.cdc_raw.archiver import SegmentArchiver
from change_agent.cdc_raw.watcher import CdcRawWatcher
from change_agent.cdc_raw_guard import CdcRawGuard, GuardLimits
from change_agent.config import AgentConfig
from change_agent.event_producers import EventProducers
from change_agent.events_topics import EventsTopics, PulsarAuth
from change_agent.finished_segments import FinishedSegmentFiles
from change_agent.inflight import InflightPositions
from change_agent.metrics import AgentMetrics
from change_agent.mutation_interpreter import MutationInterpreter
from change_agent.node_connection import NodeConnection
from change_agent.offsets import OffsetStore
from change_agent.parked import ParkedMutations
from change_agent.partition_counts import PartitionCounts
from change_agent.positions_writer import PositionsWriter
from change_agent.publisher import HoldLimits, MutationPublisher
from change_agent.schema_history import SchemaHistory
from change_agent.segment_follower import SegmentFollower
from change_agent.segment_rotation import SegmentRotation
from change_agent.table_metadata import TableMetadataProvider
from change_agent.topic_lane import Packing
from change_agent.unparking import Unparker
from schemas.errors import CdcError

__all__ = ["AgentFailedError", "ChangeAgent"]

_log: Final = logging.getLogger(__name__)
_LOOK_S: Final = 0.5
# A topic that cannot be used for so long, and has this share of all room, is held.
_HOLD_AFTER_S: Final = 10.0
_SHARE: Final = 4


class AgentFailedError(CdcError):
    """A thread of the agent ended by an error that nobody foresaw; its traceback is in the log."""


class ChangeAgent:
    """An agent for one node. `start`, `wait`, `stop`, each once, by one thread; `ask_to_stop` by any, or by a signal.

    The constructor touches nothing but the working directory; it raises ConfigError, WorkingDirInUseError and
    DamagedPositionsError, `start` DamagedSchemaCopyError.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config: Final = config
        self.metrics: Final = AgentMetrics()
        self._wanted_to_stop: Final = threading.Event()
        self._stopping: Final = threading.Event()
        self._store: Final = OffsetStore(config.cdc_working_dir)
        self._stored: Final = self._store.load()
        self._positions: Final = InflightPositions(
            max_events=config.max_inflight_events, max_bytes=config.max_inflight_bytes
        )
        self._provider: Final = self._make_provider()
        self._rotation: Final = self._make_rotation()
        self._producers: Final = self._make_producers()
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
        )
        self._parked: Final = ParkedMutations(config.cdc_working_dir)
        spill_directory = config.spill_dir or config.cdc_working_dir / "spill"
        self._watcher: Final = CdcRawWatcher(
            config.cdc_raw_directory, config.cdc_poll_interval_ms / 1000, [spill_directory]
        )
        self._guard: Final = self._make_guard(spill_directory)
        self._follower: Final = self._make_follower()
        self._reader: Final = threading.Thread(target=self._read, name="reader", daemon=True)
        self._reader_failure: BaseException | None = None
        self._writer: Final = PositionsWriter(
            self._store,
            self._stored,
            self._positions,
            FinishedSegmentFiles(
                self._follower, SegmentArchiver(config.cdc_working_dir / "error"), self._parked, self.metrics
            ),
            write_status=self._write_status,
            interval_s=config.positions_interval_ms / 1000,
        )

    def _make_rotation(self) -> SegmentRotation | None:
        interval_ms = self._config.segment_rotation_interval_ms
        return SegmentRotation(self._make_connection(), interval_ms / 1000) if interval_ms else None

    def _make_guard(self, spill_directory: Path) -> CdcRawGuard:
        config = self._config
        return CdcRawGuard(
            config.cdc_raw_directory,
            spill_directory,
            self._make_connection(),
            {} if config.cassandra_yaml is None else settings_of(config.cassandra_yaml),
            GuardLimits(
                total_bytes=config.cdc_total_space_bytes,
                soon_s=config.spill_when_full_within_ms / 1000,
                min_free_bytes=config.spill_min_free_bytes,
            ),
            self.metrics,
            self._watcher.wake,
        )

    def _make_connection(self) -> NodeConnection:
        config = self._config
        return NodeConnection(
            contact_points=config.contact_points,
            port=config.port,
            username=config.username,
            password=None if config.password is None else config.password.get_secret_value(),
        )

    def _make_provider(self) -> TableMetadataProvider:
        config = self._config
        history = SchemaHistory(config.cdc_working_dir)
        return TableMetadataProvider(self._make_connection(), history, config.schema_refresh_interval_ms / 1000)

    def _make_producers(self) -> EventProducers:
        config = self._config
        auth = None
        if config.pulsar_auth_plugin_class_name is not None:
            params = config.pulsar_auth_params
            auth = PulsarAuth(config.pulsar_auth_plugin_class_name, "" if params is None else params.get_secret_value())
        topics = EventsTopics(
            admin_url=config.pulsar_admin_url,
            auth=auth,
            trust_certificates=config.tls_trust_certs_file_path,
            verify_certificates=not config.ssl_allow_insecure_connection,
            subscription=config.events_subscription_name,
            partitions=config.events_topic_partitions,
            create=config.create_topics,
        )
        return EventProducers(
            topics,
            PartitionCounts(config.cdc_working_dir),
            service_url=config.pulsar_service_url,
            auth=auth,
            trust_certificates=config.tls_trust_certs_file_path,
            allow_insecure=config.ssl_allow_insecure_connection,
            verify_hostname=config.ssl_hostname_verification_enable,
        )

    def _make_follower(self) -> SegmentFollower:
        interpreter = MutationInterpreter(self._provider, self._parked, self.metrics, self._stopping)
        return SegmentFollower(
            self._watcher,
            interpreter,
            Unparker(self._parked, interpreter, self._positions, self._publisher, self.metrics, self._stopping),
            self._positions,
            self._publisher,
            self.metrics,
            self._stored,
            self._stopping,
            self._config.segment_options,
        )

    def start(self) -> None:
        """Start all stages; returns at once, whatever servers are up."""
        config = self._config
        for note in config.notes:
            _log.warning("%s", note)
        _log.info(
            "reading %s, publishing to %s, topics %s<keyspace>.<table>",
            config.cdc_raw_directory, config.pulsar_service_url, config.topic_prefix,
        )  # fmt: skip
        self._provider.start()
        self._publisher.start()
        self._writer.start()
        self._reader.start()
        self._guard.start()
        if self._rotation is not None:
            self._rotation.start()

    def ask_to_stop(self) -> None:
        """Let `wait` return."""
        self._wanted_to_stop.set()

    def wait(self, until: Callable[[], bool] = lambda: False) -> None:
        """Return when the agent was asked to stop, or `until` says so. Raises AgentFailedError when a stage failed."""
        stats_at = time.monotonic() + self._config.stats_interval_ms / 1000
        while not (self._wanted_to_stop.wait(_LOOK_S) or until()):
            for stage, failure in self._failures():
                raise AgentFailedError(f"the {stage} failed: {type(failure).__name__}: {failure}") from failure
            if time.monotonic() >= stats_at:
                stats_at += self._config.stats_interval_ms / 1000
                _log.info("%s", self._stats_line())

    def _failures(self) -> list[tuple[str, BaseException]]:
        stages = {
            "reader": self._reader_failure,
            "publisher": self._publisher.failure,
            "positions' writer": self._writer.failure,
            "schema thread": self._provider.failure,
            "guard": self._guard.failure,
            "rotation": None if self._rotation is None else self._rotation.failure,
        }
        return [(stage, failure) for stage, failure in stages.items() if failure is not None]

    def stop(self) -> None:
        """Stop all stages, in order; waits for what is on its way, up to the shutdown timeout."""
        self._stopping.set()
        if self._rotation is not None:
            self._rotation.stop()
        self._follower.stop()
        self._guard.stop()
        self._reader.join()
        self._watcher.close()
        if not self._positions.wait_until_empty(self._config.shutdown_timeout_ms / 1000):
            _log.warning("%d events are not acknowledged; the next start reads them again", self._positions.events)
        self._publisher.stop()
        self._writer.stop()
        self._provider.stop()
        self._parked.close()
        self._producers.close()
        self._store.close()
        _log.info("stopped: %s", self._stats_line())

    def _read(self) -> None:
        try:
            self._follower.run()
        except Exception as error:  # noqa: BLE001  # the top of a thread
            _log.exception("the reader failed")
            self._reader_failure = error

    def _lag_bytes(self) -> int:
        progress = self._positions.progress()
        listed = self._follower.listed.values()
        behind = (each.limit - progress[each.segment_id].position for each in listed if each.segment_id in progress)
        return sum(max(0, each) for each in behind)

    def _write_status(self) -> None:
        metrics = self.metrics
        metrics.inflight_events, metrics.inflight_bytes = self._positions.events, self._positions.bytes
        metrics.schema_refreshes = self._provider.refreshes
        metrics.lag_bytes = self._lag_bytes()
        known = self._provider.known
        status = {
            "pid": os.getpid(),
            "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "node_id": None if known is None else str(known.node_id),
            "segments": {str(each): progress.position for each, progress in self._positions.progress().items()},
            "metrics": metrics.as_dict(),
        }
        _replace(self._config.cdc_working_dir / "status.json", json.dumps(status, indent=1) + "\n")

    def _stats_line(self) -> str:
        counts = self.metrics.as_dict()
        return ", ".join(f"{name}={value}" for name, value in counts.items() if value)


def _replace(path: Path, content: str) -> None:
    """Replace a file that others read, whole at any moment; it need not survive a power loss."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(content, encoding="utf-8")
    temporary.replace(path)
