"""ResolvedTimestamps: until when tables are complete (schemas.resolved). It asks Pulsar only, not Spark or Cassandra.

It reads the progress topic, the cursors of the connector's subscription, and the dead letters. An event that became a
dead letter is acknowledged, but it is missing from the data topic.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Self
from uuid import UUID

import pulsar

from schemas.progress_record import (
    UNKNOWN_POSITION,
    Checkpoint,
    MalformedProgressError,
    ProgressRecord,
    TopicPosition,
    decode_progress,
    progress_topic,
)
from schemas.resolved import PartitionCursor, TableResolved, pinned, resolved_of, utc_text
from schemas.topics import events_topic
from spark_bridge.errors import PulsarUnreachableError, TopicError, UnresolvedError
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.client import open_client
from spark_bridge.topics.options import BridgeOptions

__all__ = ["ResolvedTimestamps", "table_of", "utc_text", "wait_until_resolved"]

_LOOK_S: Final = 0.2
# Limit of pinned checkpoints of a table and a node.
_MOST_PINNED: Final = 64
_MOST_LETTERS: Final = 100
_NOTHING: Final = TopicPosition(-2, -1)


class ResolvedTimestamps:
    """Follows the progress topic. Each read asks Pulsar for cursors and dead letters, too.

    It owns its connections, and is for one thread.

    The constructor and all methods raise ConfigError, PulsarUnreachableError and TopicError.
    """

    def __init__(self, options: BridgeOptions) -> None:
        self._options: Final = options
        self._admin: Final = PulsarAdmin(options)
        self._records: Final[dict[UUID, ProgressRecord]] = {}
        self._pinned: Final[defaultdict[tuple[str, UUID], list[Checkpoint]]] = defaultdict(list)
        self.dead_letters: Sequence[str] = options.dead_letters
        # Number of messages on the progress topic that are not progress records.
        self.foreign_messages = 0
        self._client: Final = open_client(options)
        self._topic: Final = progress_topic(options.events_topic_prefix)
        self._reader: pulsar.Reader | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._client.close()
        self._admin.__exit__()

    def tables(self) -> list[str]:
        """Names of all tables that agents publish, as `keyspace.table`."""
        self._read()
        return sorted({table.name for record in self._records.values() for table in record.tables})

    def read(self, table: str) -> TableResolved:
        """The current resolved timestamp of a table (`keyspace.table`)."""
        return self.read_all([table])[table]

    def read_all(self, tables: Sequence[str]) -> dict[str, TableResolved]:
        """The current resolved timestamps of several tables. Pulsar is asked for its dead letters once."""
        # The progress is read first, so that the cursors can only be newer than the progress.
        self._read()
        found = {table: self._cursors(table) for table in tables}
        # Read after the cursors: a dead letter is published before its event is acknowledged.
        held = self._dead_letters({name for cursors in found.values() for name in cursors})
        return {table: self._resolved(table, _with_letters(cursors, held)) for table, cursors in found.items()}

    def _resolved(self, table: str, partitions: Sequence[PartitionCursor]) -> TableResolved:
        now_ms = int(time.time() * 1000)
        earlier = {
            node_id: kept
            for (name, node_id), kept in self._pinned.items()
            if name == table and node_id in self._records
        }
        found = resolved_of(table, self._records, earlier, partitions, now_ms)
        self._pin(table, partitions, {each.node_id: each.resolved_ms or 0 for each in found.nodes})
        return found

    def _pin(self, table: str, partitions: Sequence[PartitionCursor], resolved: Mapping[UUID, int]) -> None:
        for node_id, record in self._records.items():
            progress = next((each for each in record.tables if each.name == table), None)
            if progress is None:
                continue
            kept = self._pinned[table, node_id]
            newest_ms = kept[-1].resolved_ms if kept else 0
            kept += [pinned(each, partitions) for each in progress.checkpoints[:1] if each.resolved_ms > newest_ms]
            # The newest checkpoint that is passed stays: the progress may stand still, and the topic may be made again.
            passed_ms = resolved.get(node_id, 0)
            kept[:] = [each for each in kept if each.resolved_ms >= passed_ms]
            while len(kept) > _MOST_PINNED:
                del kept[1::2]

    def _read(self) -> None:
        """Take the records that were published since the last call. A progress topic that does not exist has none."""
        try:
            if self._reader is None:
                # Raises TopicError for a missing topic, which the reader's look-up would create.
                self._admin.of_topic(self._topic)
                self._reader = self._client.create_reader(
                    self._topic,
                    pulsar.MessageId.earliest,
                    is_read_compacted=True,
                    reader_name="resolved-timestamps",
                )
            while self._reader.has_message_available():
                self._take(self._reader.read_next(timeout_millis=self._options.operation_timeout_seconds * 1000))
        except TopicError:
            return
        except pulsar.PulsarException as error:
            self._reader = None
            raise PulsarUnreachableError(
                self._options.service_url, f"the progress topic {self._topic} cannot be read ({error})"
            ) from None

    def _take(self, message: pulsar.Message) -> None:
        data = bytes(message.data())
        key = message.partition_key()
        try:
            if not data:
                self._records.pop(UUID(key), None)
                return
            record = decode_progress(data)
        except (MalformedProgressError, ValueError):
            self.foreign_messages += 1
            return
        if str(record.node_id) != key:
            self.foreign_messages += 1
            return
        self._records[record.node_id] = record

    def cursors(self, table: str) -> list[PartitionCursor]:
        """The partitions of a table's events topic, in order; empty if the topic does not exist.

        No event after a dead letter counts as consumed.
        """
        found = self._cursors(table)
        return _with_letters(found, self._dead_letters(set(found)))

    def _cursors(self, table: str) -> dict[str, PartitionCursor]:
        """Cursors by topic partition, in order, without regard to dead letters. Empty if the topic does not exist."""
        keyspace, _, name = table.partition(".")
        topic = events_topic(keyspace, name, self._options.events_topic_prefix)
        try:
            names = self._admin.partitions_of(topic)
        except TopicError:
            return {}
        subscription = self._options.events_subscription_name
        found = {}
        for each in names:
            ledgers, cursors = self._admin.storage(each)
            consumed = cursors.get(subscription)
            at = _NOTHING if consumed is None else TopicPosition(consumed.ledger, consumed.entry)
            ends = [TopicPosition(ledger.ledger, ledger.entries - 1) for ledger in ledgers if ledger.entries]
            found[each] = PartitionCursor(consumed=at, end=ends[-1] if ends else UNKNOWN_POSITION)
        return found

    def _dead_letters(self, names: set[str]) -> dict[str, TopicPosition]:
        """By topic partition: the position before its first dead letter. Partitions without dead letters are left out.

        If not all dead letters are known, all of `names` have a position before all events.
        """
        found: dict[str, TopicPosition] = {}
        for topic in self.dead_letters:
            for place in self._admin.waiting_dead_letters(topic, _MOST_LETTERS):
                if place is None:
                    return dict.fromkeys(names, _NOTHING)
                name, position = place
                before = TopicPosition(position.ledger, position.entry - 1)
                found[name] = min(found.get(name, before), before)
        return found


def _with_letters(cursors: Mapping[str, PartitionCursor], held: Mapping[str, TopicPosition]) -> list[PartitionCursor]:
    """The cursors, none of them after a dead letter."""
    return [
        replace(cursor, consumed=held[name], is_held=True)
        if held.get(name, cursor.consumed) < cursor.consumed
        else cursor
        for name, cursor in cursors.items()
    ]


def table_of(options: BridgeOptions) -> str:
    """`keyspace.table`, by the option `table`, or else by the connector's default name of the data topic.

    Raises ConfigError, UnresolvedError.
    """
    if options.table is not None:
        return options.table
    name = options.only_topic.rpartition("/")[2]
    table = name.removeprefix("data-")
    if table == name or "." not in table:
        raise UnresolvedError.unnamed(options.only_topic)
    return table


def wait_until_resolved(
    options: BridgeOptions,
    table: str,
    until_ms: int,
    timeout_s: float,
    on_look: Callable[[int | None], None] = lambda resolved_ms: None,
) -> TableResolved:
    """Wait until the table holds all writes that were acknowledged up to this time.

    `on_look` is called with the resolved timestamp after each look that found it too early, or not known.
    If Pulsar does not answer later, when it has answered once, that is retried until `timeout_s` is over. Raises UnresolvedError
    after `timeout_s`, and what `ResolvedTimestamps` raises.
    """
    deadline = time.monotonic() + timeout_s
    with ResolvedTimestamps(options) as timestamps:
        found = timestamps.read(table)
        while found.resolved_ms is None or found.resolved_ms <= until_ms:
            if time.monotonic() >= deadline:
                raise UnresolvedError.late(found, until_ms, timeout_s)
            on_look(found.resolved_ms)
            time.sleep(_LOOK_S)
            try:
                found = timestamps.read(table)
            except PulsarUnreachableError:
                if time.monotonic() >= deadline:
                    raise
        return found
