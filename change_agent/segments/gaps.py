"""GapReporter: publishes on the gaps topic which tables may have lost changes.

After that, the missing segments count as finished. The tables' progress stands still until the gaps are closed on that
topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Final
from uuid import UUID

from change_agent.errors import PublishError
from change_agent.positions.inflight import Place
from change_agent.positions.stops import EVERY_TABLE, Stops
from change_agent.publishing.event_producers import EventProducers, send_all
from change_agent.publishing.topic_checks import LostTopic
from change_agent.schema.table_metadata import KnownTables
from runtime.backoff import Backoff
from runtime.notices import Notices
from runtime.stage import Stage
from schemas.gap_record import GAP_SCHEMA_TEXT, GapRecord, MalformedGapError, decode_gap, encode_gap
from schemas.table_metadata import TableMetadata

__all__ = ["Gap", "GapReporter", "gap_message", "gap_records", "lost_topic_message", "lost_topic_record"]

_log: Final = logging.getLogger(__name__)
_BACKOFF: Final = Backoff(0.5, 30)
_ANSWER_TIMEOUT_S: Final = 30.0
_CHECK_S: Final = 10.0
# Writes shortly before a sync may be part of the next sync.
_SYNC_MARGIN_MS: Final = 60_000
_NO_TABLE: Final = UUID(int=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One record for each table that may have lost changes. `on_reported` is called when the broker has all of them."""

    records: Sequence[GapRecord]
    on_reported: Callable[[], None]


def gap_records(
    segment_ids: Sequence[int],
    *,
    first_position: int,
    from_ms: int | None,
    to_ms: int,
    detected_ms: int,
    node_id: UUID,
    tables: Iterable[TableMetadata],
) -> list[GapRecord]:
    """Return one record for each table name. A table that was dropped and created again has its new id in the record.

    For that, dropped tables must come first in `tables`.
    """
    by_name = {(table.keyspace, table.name): table for table in tables}
    return [
        GapRecord(
            node_id=node_id,
            keyspace=table.keyspace,
            table=table.name,
            table_id=table.table_id,
            first_segment_id=segment_ids[0],
            first_position=first_position,
            last_segment_id=segment_ids[-1],
            from_ms=from_ms,
            to_ms=to_ms,
            detected_ms=detected_ms,
            reason=f"{len(segment_ids)} commit log segments went from cdc_raw before they were read to their end",
        )
        for table in by_name.values()
    ]


def gap_message(segment_ids: Sequence[int], from_ms: int | None, to_ms: int) -> str:
    """The log message for segments that are gone."""
    return (
        f"{len(segment_ids)} segments ({segment_ids[0]} to {segment_ids[-1]}) went from cdc_raw before they were read to"
        f" their end: changes written from {_utc(from_ms)} to {_utc(to_ms)} are lost; is cdc_block_writes false, and Pulsar"
        " away? Or is the disk of spillDir not mounted?"
    )


def lost_topic_record(lost: LostTopic, prefix: str, known: KnownTables, read: Place, detected_ms: int) -> GapRecord:
    """Return the gap record of a table whose events topic, or its subscription, was gone.

    The table id is zero if the table is not known any more.
    """
    keyspace, _, table = lost.topic.removeprefix(prefix).partition(".")
    found = {(each.keyspace, each.name): each for each in known.tables.values()}.get((keyspace, table))
    since = lost.since
    return GapRecord(
        node_id=known.node_id,
        keyspace=keyspace,
        table=table,
        table_id=_NO_TABLE if found is None else found.table_id,
        first_segment_id=0 if since is None else since.segment_id,
        first_position=0 if since is None else since.position,
        last_segment_id=read.segment_id,
        last_position=read.position,
        from_ms=since.until_ms - _SYNC_MARGIN_MS if since is not None and since.until_ms else None,
        to_ms=detected_ms,
        detected_ms=detected_ms,
        reason=f"the events topic {lost.reason.partition(';')[0]}",
    )


def lost_topic_message(topic: str, record: GapRecord) -> str:
    """The log message for a lost topic or subscription."""
    return (
        f"{topic}: {record.reason}; events that were published from {_utc(record.from_ms)} to {_utc(record.to_ms)} and not"
        f" consumed may be lost: run cdc spark resync on {record.table_name}, and find out who removed it. Topic and subscription"
        " exist again, and events continue"
    )


def _utc(time_ms: int | None) -> str:
    if time_ms is None:
        return "an unknown time"
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


class GapReporter(Stage):
    """Publishes gaps on a separate thread. `report` may be called by any thread.

    A gap that was not published is found again by the next start. While a stop waits until gaps are closed, the thread
    reads the gaps topic every `check_s` seconds for closing records. If the topic lacks a gap of a stop, the gap is
    published again. Otherwise nobody could close it: the topic may have been deleted, or the agent may have ended before
    it published the gap, and then have found it with another beginning.
    """

    def __init__(self, producers: EventProducers, topic: str, stops: Stops, *, check_s: float = _CHECK_S) -> None:
        super().__init__("reporter of gaps")
        self._producers: Final = producers
        self._topic: Final = topic
        self._stops: Final = stops
        self._check_s: Final = check_s
        self._inbox: Final[SimpleQueue[Gap | None]] = SimpleQueue()
        self._notices: Final = Notices(_log)

    def wake(self) -> None:
        """End the wait for a gap."""
        self._inbox.put(None)

    def report(self, gap: Gap) -> None:
        """Publish this gap, now or when the broker answers."""
        self._inbox.put(gap)

    def run(self) -> None:
        """Publish each gap, and retry until the broker has it.

        Let the progress of tables continue when gaps are closed.
        """
        while True:
            try:
                # Also without a stop: stops may come from the copy of the positions.
                gap = self._inbox.get(timeout=self._check_s)
            except Empty:
                if self._stops.awaits_closing():
                    self._apply_closings()
                continue
            if gap is None:
                return
            failures = 0
            while not self._is_reported(gap):
                failures += 1
                if self.stopping.wait(_BACKOFF.pause_s(failures)):
                    return
            gap.on_reported()

    def _apply_closings(self) -> None:
        try:
            records = list(_records(self._producers.read_all(self._topic)))
            tables = self._stops.close(records)
            self._send_missing(records)
        except (PublishError, OSError) as error:
            reason = f"closed gaps cannot be applied: {error}; retrying; cdc agent resume-progress lets their tables continue"
            self._notices.say("closings", reason)
            return
        self._notices.clear("closings")
        if tables:
            names = ", ".join("all tables" if each == EVERY_TABLE else each for each in tables)
            _log.info("%s: the gaps of %s are closed: their progress continues", self._topic, names)

    def _send_missing(self, records: Sequence[GapRecord]) -> None:
        known = set(records)
        missing = [each for each in self._stops.gaps() if each not in known]
        if missing:
            _log.warning(
                "%s lacks %d gaps whose tables stand still: they are reported again; was the topic deleted?",
                self._topic,
                len(missing),
            )
            self._send(missing)

    def _is_reported(self, gap: Gap) -> bool:
        try:
            self._send(gap.records)
        except PublishError as error:
            self._notices.say("broker", f"a gap cannot be reported yet: {error}")
            return False
        self._notices.clear("broker")
        return True

    def _send(self, records: Sequence[GapRecord]) -> None:
        with closing(self._producers.open_for(self._topic, "Gap", GAP_SCHEMA_TEXT)) as producer:
            send_all([(producer, encode_gap(each)) for each in records], self._topic, _ANSWER_TIMEOUT_S)
        _log.info("%s: a gap was reported for %d tables", self._topic, len(records))


def _records(payloads: Iterable[bytes]) -> Iterator[GapRecord]:
    for payload in payloads:
        with suppress(MalformedGapError):
            yield decode_gap(payload)
