"""An agent without servers, for tests of its stages: real files and threads, the schema and the broker in memory."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from uuid import UUID

from change_agent.archive.archiving import Archiving
from change_agent.cdc_raw.archiver import SegmentArchiver
from change_agent.cdc_raw.segment_key import SegmentKey
from change_agent.cdc_raw.watcher import CdcRawWatcher
from change_agent.commitlog.section_decoder import SegmentOptions
from change_agent.events.events_writer import write_head
from change_agent.events.mutation_interpreter import MutationInterpreter
from change_agent.metrics import AgentMetrics
from change_agent.native_core import native_core
from change_agent.parking.parked import ParkedMutations
from change_agent.positions.accounts import TrackedEntry
from change_agent.positions.inflight import InflightPositions
from change_agent.positions.offsets import OffsetStore, StoredPositions, reading_again
from change_agent.positions.positions_writer import PositionsWriter
from change_agent.positions.segment_ids import SegmentIds
from change_agent.positions.stops import Stops
from change_agent.publishing.awaited_clearings import AwaitedClearings
from change_agent.publishing.event_producers import EventProducers
from change_agent.publishing.outgoing import Outgoing, OutgoingEvent, OutgoingRun, event_size
from change_agent.schema.schema_mutations import SchemaChange
from change_agent.schema.schema_store import LogPlace
from change_agent.schema.table_metadata import KnownTables
from change_agent.segments.clearings import Clearings
from change_agent.segments.finished_segments import FinishedSegmentFiles
from change_agent.segments.gaps import Gap
from change_agent.segments.known_segments import KnownSegments
from change_agent.segments.moments import Moments
from change_agent.segments.reader_parts import ReaderParts
from change_agent.segments.segment_follower import SegmentFollower
from change_agent.segments.unsynced import UnsyncedReading
from schemas.mutation_event import decode_events
from schemas.table_metadata import TableMetadata
from schemas.truncation import Truncation
from tests.golden.segments import GOLDEN_SEGMENTS

__all__ = ["ENTRIES", "GOLDEN", "MemoryTables", "StagedAgent", "payloads", "single_events", "tracked_entries"]

GOLDEN = GOLDEN_SEGMENTS[-1]
ENTRIES = [entry for entry in GOLDEN.entries() if UUID(bytes=entry.payload[1:17]) in GOLDEN.tables()]
_numbers = itertools.count(1)


def payloads(count: int) -> list[bytes]:
    """Payloads of the first mutations of the golden segment."""
    return [entry.payload for entry in ENTRIES[:count]]


def tracked_entries(events: Sequence[OutgoingEvent]) -> list[TrackedEntry]:
    """The log entries of these events."""
    return [each.entry for each in events if each.entry is not None]


def single_events(handed_over: Sequence[Outgoing]) -> list[OutgoingEvent]:
    """The single events that were handed over; events that the native core has encoded are decoded from a message."""
    events: list[OutgoingEvent] = []
    for each in handed_over:
        if isinstance(each, OutgoingRun):
            core = native_core()
            assert core is not None
            message = decode_events(core.pack(write_head(*each.header), [each.run]))
            assert (message.node_id, message.table_id) == (each.header.node_id, each.header.table_id)
            events += [OutgoingEvent(each.header, event, each.entry, event_size(event)) for event in message.events]
        else:
            assert isinstance(each, OutgoingEvent)
            events.append(each)
    return events


class MemoryTables:
    """The node's schema in memory; `asked` counts the full reads of it."""

    def __init__(self, tables: Mapping[UUID, TableMetadata]) -> None:
        self.tables = tables
        self.asked = 0
        self.answers = True
        self.at_second_look: Mapping[UUID, TableMetadata] | None = None
        self.known: KnownTables | None = None
        self.truncations: Mapping[UUID, Truncation] = {}
        self.present: frozenset[UUID] | None = frozenset(tables)

    def note(self, change: SchemaChange, segment_id: int, position: int) -> KnownTables | None:
        return None

    def settle(self, places: Sequence[LogPlace]) -> None:
        """Do nothing: no position is ever known here."""

    def forget_places_before(self, segment_id: int, position: int) -> KnownTables | None:
        return None

    def as_of(self, time_ms: int, timeout_s: float, *, reread: bool = False) -> KnownTables | None:
        self.asked += reread
        if not self.answers:
            time.sleep(0.01)
            return None
        if self.asked == 2 and self.at_second_look is not None:
            self.tables = self.at_second_look
        return KnownTables(version=next(_numbers), node_id=UUID(int=1), tables=self.tables)


class StagedAgent:
    """All stages of an agent except the one for Pulsar: events are acknowledged at once, or when a test asks for it."""

    def __init__(
        self,
        folder: Path,
        tables: MemoryTables,
        options: SegmentOptions | None = None,
        *,
        max_events: int = 10_000,
        archiving: Archiving | None = None,
        unsynced: UnsyncedReading | None = None,
        clock: Callable[[], float] = time.time,
        clearings: EventProducers | None = None,
        deletable: Callable[[SegmentIds], Container[SegmentKey]] | None = None,
    ) -> None:
        self.cdc_raw, self.work = folder / "cdc_raw", folder / "work"
        self.cdc_raw.mkdir(exist_ok=True)
        self.metrics = AgentMetrics()
        self.published: list[OutgoingEvent] = []
        # Times that the progress passed, with the number of events that were published by then.
        self.passed: list[tuple[int, int]] = []
        self.moments = Moments(0.01, lambda time_ms: self.passed.append((time_ms, len(self.published))), clock=clock)
        self.acknowledges = True
        self.gaps: list[Gap] = []
        self._tables = tables
        self._store = OffsetStore(self.work)
        self.stored = self._store.load()
        self.stops = Stops(self.work)
        self.spill = folder / "spill"
        self.spill.mkdir(exist_ok=True)
        self._parked = ParkedMutations(self.work, self._read_again)
        self.positions = InflightPositions(max_events=max_events, max_bytes=10_000_000)
        self._stopping = threading.Event()
        self._watcher = CdcRawWatcher(
            self.cdc_raw, 0.02, [self.spill], self.work / "reprocess", unsynced=unsynced is not None
        )
        interpreter = MutationInterpreter(tables, self._parked, self.metrics, self._stopping, reread_pause_s=0.01)
        self.segments = KnownSegments(self.positions, self.stored, options or SegmentOptions())
        archiver = SegmentArchiver(self.work / "error")
        parts = ReaderParts(
            segments=self.segments,
            interpreter=interpreter,
            positions=self.positions,
            publisher=self,
            metrics=self.metrics,
            stops=self.stops,
            stopping=self._stopping,
        )
        self.follower = SegmentFollower(
            parts,
            self._watcher,
            self._parked,
            self,
            archiver.is_set_aside,
            unsynced=unsynced,
            moments=self.moments,
            clearings=None if clearings is None else self._clearings(clearings, interpreter),
        )
        self._writer = PositionsWriter(
            self._store,
            self.stored,
            self.positions,
            FinishedSegmentFiles(self.segments, archiver, self._parked, self.metrics, archiving),
            self.metrics,
            lambda: None,
            0.01,
            deletable,
        )
        self._reader = threading.Thread(target=self.follower.run, daemon=True)

    def _clearings(self, producers: EventProducers, interpreter: MutationInterpreter) -> Clearings:
        prefix = "persistent://public/default/events-"
        self.awaited = AwaitedClearings(
            self.work,
            producers.open_clearings,
            self._stopping,
            is_dropped=self._is_dropped,
            has_topic=producers.has_topic,
        )
        return Clearings(
            self.work, self._tables, interpreter, self.positions, producers, prefix, self._stopping, self.awaited
        )

    def _is_dropped(self, table_id: UUID) -> bool | None:
        present = self._tables.present
        return None if present is None else table_id not in present

    def _read_again(self) -> None:
        self.stored = reading_again(self.stored, [self.cdc_raw, self.spill])
        self._store.store(self.stored)

    def stored_now(self) -> StoredPositions:
        """The positions that were stored last."""
        return self._writer.stored

    def publish(self, handed_over: Sequence[Outgoing]) -> None:
        events = single_events(handed_over)
        self.published += events
        if self.acknowledges:
            self.positions.acknowledge(tracked_entries(events), len(events), sum(each.size for each in events))

    def report(self, gap: Gap) -> None:
        self.gaps.append(gap)

    def adopt(self, restored: StoredPositions) -> None:
        """Continue from another machine's positions, as the agent does."""
        assert self._writer.adopt(restored)
        self.follower.adopt(restored)

    def start(self) -> None:
        self._writer.start()
        self._reader.start()

    def stop(self) -> None:
        self._stopping.set()
        self.follower.wake()
        self._reader.join()
        self._watcher.close()
        self._writer.stop()
        self._parked.close()
        self._store.close()
        assert self._writer.failure is None

    def files(self) -> list[str]:
        return sorted(path.name for path in self.cdc_raw.iterdir())

    def places(self) -> list[tuple[int, int]]:
        return [(each.header.segment_id, each.event.position) for each in self.published]

    def segment(self, segment_id: int, content: bytes, index: str | None, *, version: int = 7) -> Path:
        """Write a segment as Cassandra does: the file in its own folder, a second name in cdc_raw, then the index
        (None: no index yet)."""
        log = self.cdc_raw.parent / f"CommitLog-{version}-{segment_id}.log"
        log.write_bytes(content)
        os.link(log, self.cdc_raw / log.name)
        if index is not None:
            self.index(segment_id, index)
        return self.cdc_raw / log.name

    def index(self, segment_id: int, index: str) -> None:
        """Write the index of a segment."""
        (self.cdc_raw / f"CommitLog-7-{segment_id}_cdc.idx").write_text(index)
