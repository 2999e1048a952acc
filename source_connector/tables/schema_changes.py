"""The topic of schema changes: each change of a table's definition, and each truncation, is a JSON record there, keyed
`<keyspace>.<table>`.

At its start, the connector reads the topic. So it also publishes a change that happened while no instance ran, and does
not repeat a change that another instance has published (unless both publish it at the same moment).
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypedDict
from uuid import UUID

from runtime.backoff import Backoff
from runtime.notices import Notices
from runtime.stage import Stage
from schemas.mutation_event import Clearing, ClearingKind
from schemas.row_record import AvroSchema, schema_text
from source_connector.events.pulsar_access import PulsarConnection, schema_of_bytes
from source_connector.tables.clearing_record import (
    CLEARING_RECORD_SCHEMA,
    ClearingRecord,
    DataPosition,
    NodeClearing,
    covers,
    is_about,
    kind_text,
    without_earlier,
)
from source_connector.tables.schema_queries import SchemaAnswer
from source_connector.tables.table_definition import DEFINITION_SCHEMA, TableDefinition, changes_between

if TYPE_CHECKING:
    import pulsar

__all__ = ["SCHEMA_CHANGE_SCHEMA", "ClearingToPublish", "SchemaChange", "SchemaChangeTopic", "last_positions"]

_log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(0.5, 30.0)


_Change = tuple[str, str, TableDefinition | None]
_OPEN_TIMEOUT_MS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearingToPublish:
    """A truncation or drop that a node reports, with the notes of all nodes. `definition` is the table's after it.

    `then` is called in the source's thread with the topic's record of it. `then` gets None, and nothing is published,
    while the note of a node is that of an earlier record: that node has not done this truncation yet. With `is_final`
    such nodes are left out instead.
    """

    keyspace: str
    table: str
    definition: TableDefinition | None
    table_id: UUID
    generation: int | None
    clearing: Clearing
    node_id: UUID
    segment_id: int
    nodes: list[NodeClearing]
    data_topic: str
    is_final: bool
    then: Callable[[ClearingRecord | None], None]


class SchemaChange(TypedDict):
    """One record: the changes, both definitions (null if there is none), and when the change was noticed.

    In the record of a truncation both definitions are the same.
    """

    keyspace: str
    table: str
    time_ms: int
    changes: list[str]
    old: TableDefinition | None
    new: TableDefinition | None
    clearing: ClearingRecord | None


SCHEMA_CHANGE_SCHEMA: Final[AvroSchema] = {
    "type": "record",
    "name": "SchemaChange",
    "namespace": "cassandra_cdc",
    "fields": [
        {"name": "keyspace", "type": "string"},
        {"name": "table", "type": "string"},
        {"name": "time_ms", "type": "long"},
        {"name": "changes", "type": {"type": "array", "items": "string"}},
        {"name": "old", "type": ["null", DEFINITION_SCHEMA], "default": None},
        {"name": "new", "type": ["null", "TableDefinition"], "default": None},
        {"name": "clearing", "type": ["null", CLEARING_RECORD_SCHEMA], "default": None},
    ],
}


class SchemaChangeTopic(Stage):
    """Owns the thread, the reader and the producer. An outage of the broker delays only the records of this topic.

    If the topic's name is empty, nothing is published.
    """

    def __init__(
        self, connection: PulsarConnection, topic: str, post: Callable[[SchemaAnswer | Exception], None]
    ) -> None:
        super().__init__("writer of schema changes", on_failure=post)
        self._connection = connection
        self._topic = topic
        self._post = post
        self._waiting: queue.SimpleQueue[_Change | ClearingToPublish | None] = queue.SimpleQueue()
        # Changes that were taken and are not published, by table, in order.
        self._by_table: dict[str, deque[_Change | ClearingToPublish]] = {}
        self._last: dict[str, TableDefinition | None] = {}
        self._clearings: defaultdict[str, list[ClearingRecord]] = defaultdict(list)
        self._reader: pulsar.Reader | None = None
        self._producer: pulsar.Producer | None = None
        self._notices = Notices(_log)

    @property
    def is_on(self) -> bool:
        """False if nothing is published."""
        return bool(self._topic)

    def start(self) -> None:
        """Begin to publish."""
        if self._topic:
            super().start()

    def publish(self, keyspace: str, table: str, definition: TableDefinition | None) -> None:
        """Publish a table's definition if it has changed; None if the table does not exist."""
        if self._topic:
            self._waiting.put((keyspace, table, definition))

    def publish_clearing(self, change: ClearingToPublish) -> None:
        """Publish a truncation or drop, unless the topic has a record of it, maybe by another instance."""
        self._waiting.put(change)

    def run(self) -> None:
        """Publish each change. Changes that were not published at the stop are found at the next start."""
        failures, retry_at = 0, 0.0
        while not self.stopping.is_set():
            new = self._take(max(0.0, retry_at - time.monotonic()) if self._by_table else None)
            is_due = time.monotonic() >= retry_at
            # A change that has failed waits for the end of the pause. Changes of other tables do not.
            for name in [each for each in self._by_table if is_due or each in new]:
                if not self.stopping.is_set():
                    self._publish_all(name)
            if not self._by_table:
                failures, retry_at = 0, 0.0
            elif is_due:
                failures += 1
                retry_at = time.monotonic() + _BACKOFF.pause_s(failures)

    def wake(self) -> None:
        """End the wait for a change."""
        self._waiting.put(None)

    def _take(self, timeout_s: float | None) -> set[str]:
        """Wait for a change, and sort all changes that are there by table. Return the tables that had none before."""
        new: set[str] = set()
        with contextlib.suppress(queue.Empty):
            change = self._waiting.get(timeout=timeout_s)
            while True:
                if change is not None:
                    name = ".".join(change[:2] if isinstance(change, tuple) else (change.keyspace, change.table))
                    if name not in self._by_table:
                        new.add(name)
                    self._by_table.setdefault(name, deque()).append(change)
                change = self._waiting.get_nowait()
        return new

    def _publish_all(self, name: str) -> None:
        """Publish the waiting changes of a table, in order. The first one that fails, and those after it, still wait.

        The failure may be the table's own: the data topic of a truncated table may not exist any more.
        """
        import pulsar

        changes = self._by_table[name]
        try:
            while changes:
                self._publish_one(changes[0])
                changes.popleft()
        except pulsar.PulsarException as error:
            text = f"{self._topic}: a schema change of {name} waits: {error}"
            self._notices.say(f"topic {name}", text, self._connection.hint)
            self._close_lost()
        else:
            del self._by_table[name]

    def _close_lost(self) -> None:
        """Close a producer and a reader without a connection. The next attempt opens new ones.

        The client connects them again after an outage, but not after the topic was deleted.
        """
        import pulsar

        if self._producer is None or self._reader is None:
            return
        if self._producer.is_connected() and self._reader.is_connected():
            return
        for each in (self._producer, self._reader):
            with contextlib.suppress(pulsar.PulsarException):
                each.close()
        self._producer = self._reader = None

    def _publish_one(self, change: _Change | ClearingToPublish) -> None:
        if self._producer is None:
            self._open(self._connection.client())
        self._read_new()
        if isinstance(change, tuple):
            self._publish(*change)
        else:
            self._publish_clearing(change)

    def _open(self, client: pulsar.Client) -> None:
        import pulsar

        if self._reader is None:  # not at each attempt, because a client keeps every reader that it has created
            self._reader = client.create_reader(self._topic, pulsar.MessageId.earliest)
        schema = schema_of_bytes("JSON", "SchemaChange", schema_text(SCHEMA_CHANGE_SCHEMA))
        self._producer = client.create_producer(self._topic, schema=schema)

    def _read_new(self) -> None:
        """Read the records that this and other instances have published since the last call."""
        assert self._reader is not None
        while self._reader.has_message_available():
            message = self._reader.read_next(timeout_millis=_OPEN_TIMEOUT_MS)
            change = _change(self._topic, message.data())
            name = message.partition_key()
            self._last[name] = None if change is None else change["new"]
            clearing = None if change is None else change.get("clearing")
            # A new reader reads the records again.
            if clearing is not None and clearing not in self._clearings[name]:
                self._clearings[name].append(clearing)

    def _publish(self, keyspace: str, table: str, definition: TableDefinition | None) -> None:
        changes = changes_between(self._last.get(f"{keyspace}.{table}"), definition)
        if changes:
            self._send(keyspace, table, changes, definition, None)

    def _publish_clearing(self, change: ClearingToPublish) -> None:
        name = f"{change.keyspace}.{change.table}"
        known = [each for each in self._clearings[name] if is_about(each, change.table_id, change.clearing)]
        message = (change.table_id, change.clearing, change.node_id, change.segment_id)
        found = next((each for each in known if covers(each, *message)), None)
        nodes = without_earlier(change.nodes, known)
        if found is None and (change.is_final or len(nodes) == len(change.nodes)):
            found = ClearingRecord(
                kind=kind_text(change.clearing.kind),
                table_id=str(change.table_id),
                table_generation=change.generation,
                time_ms=max(each["time_ms"] for each in nodes),
                nodes=nodes,
                data_topic=change.data_topic,
                positions=last_positions(self._connection.client(), change.data_topic),
            )
            what = "table truncated" if change.clearing.kind is ClearingKind.TRUNCATION else "table dropped"
            self._send(change.keyspace, change.table, [what], change.definition, found)
            self._clearings[name].append(found)
        self._post(SchemaAnswer(deliver=partial(change.then, found)))

    def _send(
        self,
        keyspace: str,
        table: str,
        changes: list[str],
        definition: TableDefinition | None,
        clearing: ClearingRecord | None,
    ) -> None:
        assert self._producer is not None
        name = f"{keyspace}.{table}"
        now_ms = time.time_ns() // 1_000_000
        old = self._last.get(name) if clearing is None or definition is None else definition
        change: SchemaChange = {
            "keyspace": keyspace,
            "table": table,
            "time_ms": now_ms,
            "changes": changes,
            "old": old,
            "new": definition,
            "clearing": clearing,
        }
        text = json.dumps(change, ensure_ascii=False, separators=(",", ":"))
        self._producer.send(text.encode(), partition_key=name, event_timestamp=now_ms)
        self._last[name] = definition
        _log.info("%s: %s", name, "; ".join(changes))


def last_positions(client: pulsar.Client, topic: str) -> list[DataPosition | None]:
    """The last message of each partition of a topic; None for an empty one. Raises pulsar.PulsarException."""
    import pulsar

    found: list[DataPosition | None] = []
    for name in client.get_topic_partitions(topic):
        with closing(client.create_reader(name, pulsar.MessageId.latest, start_message_id_inclusive=True)) as reader:
            if not reader.has_message_available():
                found.append(None)
                continue
            last = reader.read_next(timeout_millis=_OPEN_TIMEOUT_MS).message_id()
            found.append(DataPosition(ledger=last.ledger_id(), entry=last.entry_id()))
    return found


def _change(topic: str, data: bytes) -> SchemaChange | None:
    """The record in a message; None if it cannot be read."""
    try:
        change: SchemaChange = json.loads(data)
        change["new"]
    except (ValueError, KeyError, TypeError):
        _log.warning(
            "%s: a message of %d bytes is not a record of a schema change, and is left out; find out who else writes to this topic",
            topic,
            len(data),
        )
        return None
    return change
