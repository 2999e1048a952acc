"""GapReporter: reports on the gaps topic which tables may have lost changes; their segments count as finished after
that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Final, Protocol
from uuid import UUID

from change_agent.errors import PublishError
from change_agent.positions.inflight import Place
from change_agent.publishing.event_producers import EventProducer
from change_agent.publishing.topic_looks import LostTopic
from change_agent.schema.table_metadata import KnownTables
from runtime.backoff import Backoff
from runtime.notices import Notices
from runtime.stage import Stage
from schemas.gap_record import GAP_SCHEMA_TEXT, GapRecord, encode_gap
from schemas.table_metadata import TableMetadata

__all__ = ["Gap", "GapReporter", "Gaps", "gap_message", "gap_records", "lost_topic_message", "lost_topic_record"]

_log: Final = logging.getLogger(__name__)
_BACKOFF: Final = Backoff(0.5, 30)
_ANSWER_TIMEOUT_S: Final = 30.0
# What was written in the last moments before a sync is in the next one.
_SYNC_MARGIN_MS: Final = 60_000
_NO_TABLE: Final = UUID(int=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One record for each table that may be concerned, and what is to be done when all of them are with the broker."""

    records: Sequence[GapRecord]
    on_told: Callable[[], None]


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
    """A record for each table; a table that was made anew under its old name has one."""
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
    """The line of the log."""
    return (
        f"{len(segment_ids)} segments ({segment_ids[0]} to {segment_ids[-1]}) went from cdc_raw before they were read to"
        f" their end: changes written from {_utc(from_ms)} to {_utc(to_ms)} are lost; is cdc_block_writes false, and Pulsar"
        " away?"
    )


def lost_topic_record(lost: LostTopic, prefix: str, known: KnownTables, read: Place, detected_ms: int) -> GapRecord:
    """Of the table whose events topic, or its subscription, was gone; a table that is dropped by now has no id."""
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
    """The line of the log."""
    return (
        f"{topic}: {record.reason}; events that were published from {_utc(record.from_ms)} to {_utc(record.to_ms)} and not"
        f" consumed may be lost: verify {record.keyspace}.{record.table}, and find out who removed it. Topic and subscription"
        " are there again, and events go on"
    )


def _utc(time_ms: int | None) -> str:
    if time_ms is None:
        return "an unknown time"
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


class Gaps(Protocol):
    """Tells the world what is lost: a GapReporter."""

    def report(self, gap: Gap) -> None:
        """Tell this gap, now or later."""


class Producers(Protocol):
    """Opens a producer; blocks until the topic can be used, or raises PublishError."""

    def open_for(self, topic: str, record_name: str, schema_text: str) -> EventProducer:
        """A producer of records of this Avro schema, in order."""


class GapReporter(Stage):
    """Idle until there is a gap. `report` may be called by any thread. A gap that was not reported is found again by the next start."""

    def __init__(self, producers: Producers, topic: str) -> None:
        super().__init__("reporter of gaps")
        self._producers: Final = producers
        self._topic: Final = topic
        self._inbox: Final[SimpleQueue[Gap | None]] = SimpleQueue()
        self._notices: Final = Notices(_log)

    def wake(self) -> None:
        """End the wait for a gap."""
        self._inbox.put(None)

    def report(self, gap: Gap) -> None:
        """Tell this gap, now or when the broker is there."""
        self._inbox.put(gap)

    def run(self) -> None:
        """Report each gap, and try again until the broker has it."""
        while (gap := self._inbox.get()) is not None:
            failures = 0
            while not self._is_reported(gap):
                failures += 1
                if self.stopping.wait(_BACKOFF.pause_s(failures)):
                    return
            gap.on_told()

    def _is_reported(self, gap: Gap) -> bool:
        try:
            self._send(gap)
        except PublishError as error:
            self._notices.say("broker", f"a gap cannot be reported yet: {error}")
            return False
        self._notices.clear("broker")
        return True

    def _send(self, gap: Gap) -> None:
        producer = self._producers.open_for(self._topic, "Gap", GAP_SCHEMA_TEXT)
        results: SimpleQueue[str | None] = SimpleQueue()
        try:
            for record in gap.records:
                producer.send(encode_gap(record), None, results.put)
            for _ in gap.records:
                error = _answer(results)
                if error is not None:
                    raise PublishError(self._topic, error)
        finally:
            producer.close()
        _log.info("%s: a gap was reported for %d tables", self._topic, len(gap.records))


def _answer(results: SimpleQueue[str | None]) -> str | None:
    try:
        return results.get(timeout=_ANSWER_TIMEOUT_S)
    except Empty:
        return "the broker does not answer"
