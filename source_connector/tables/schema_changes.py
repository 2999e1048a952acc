"""The topic of schema changes: each change of the table's definition is a JSON record there, keyed `<keyspace>.<table>`.

At its start, the connector reads the last record of the topic. So it also publishes a change that happened while
nothing ran, and does not repeat a change that another instance has published (two instances may publish it at the
same moment).
"""

from __future__ import annotations

import json
import logging
import queue
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypedDict, cast

from runtime.backoff import Backoff
from runtime.notices import Notices
from runtime.stage import Stage
from schemas.row_record import AvroSchema, schema_text
from source_connector.events.pulsar_access import PulsarConnection, schema_of_bytes
from source_connector.tables.table_definition import DEFINITION_SCHEMA, TableDefinition, changes_between

if TYPE_CHECKING:
    import pulsar

__all__ = ["SCHEMA_CHANGE_SCHEMA", "SchemaChange", "SchemaChangeTopic"]

_log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(0.5, 30.0)


_Told = tuple[str, str, TableDefinition | None]


class SchemaChange(TypedDict):
    """One record: what changed, both definitions (null where there is none), and when it was noticed."""

    keyspace: str
    table: str
    time_ms: int
    changes: list[str]
    old: TableDefinition | None
    new: TableDefinition | None


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
    ],
}


class SchemaChangeTopic(Stage):
    """Owns the thread, the reader and the producer. An outage of the broker delays a record, it holds nothing up.

    With an empty topic nothing is told.
    """

    def __init__(self, connection: PulsarConnection, topic: str, on_failure: Callable[[Exception], None]) -> None:
        super().__init__("writer of schema changes", on_failure=on_failure)
        self._connection = connection
        self._topic = topic
        self._definitions: queue.SimpleQueue[_Told] = queue.SimpleQueue()
        self._last: dict[str, TableDefinition | None] = {}
        self._producer: pulsar.Producer | None = None
        self._notices = Notices(_log)

    def start(self) -> None:
        """Begin to tell."""
        if self._topic:
            super().start()

    def tell(self, keyspace: str, table: str, definition: TableDefinition | None) -> None:
        """A table as it is now; None when it is gone. What is no change is not told."""
        if self._topic:
            self._definitions.put((keyspace, table, definition))

    def run(self) -> None:
        """Tell each change. What was not told at the stop is found out at the next start."""
        import pulsar

        failures = 0
        told = self._definitions.get()
        while not self.stopping.is_set():
            try:
                if self._producer is None:
                    self._open(self._connection.client())
                self._publish(*told)
            except pulsar.PulsarException as error:
                text = f"{self._topic}: a schema change of {told[0]}.{told[1]} waits: {error}"
                self._notices.say("topic", text, self._connection.hint)
                failures += 1
                self.stopping.wait(_BACKOFF.pause_s(failures))
            else:
                failures = 0
                told = self._definitions.get()

    def _open(self, client: pulsar.Client) -> None:
        import pulsar

        reader = client.create_reader(self._topic, pulsar.MessageId.earliest)
        while reader.has_message_available():
            message = reader.read_next(timeout_millis=10_000)
            self._last[message.partition_key()] = _told(message.data())
        reader.close()
        schema = schema_of_bytes("JSON", "SchemaChange", schema_text(SCHEMA_CHANGE_SCHEMA))
        self._producer = client.create_producer(self._topic, schema=schema)

    def _publish(self, keyspace: str, table: str, definition: TableDefinition | None) -> None:
        name = f"{keyspace}.{table}"
        old = self._last.get(name)
        changes = changes_between(old, definition)
        if not changes:
            return
        assert self._producer is not None
        now_ms = time.time_ns() // 1_000_000
        change: SchemaChange = {
            "keyspace": keyspace, "table": table, "time_ms": now_ms, "changes": changes, "old": old, "new": definition,
        }  # fmt: skip
        text = json.dumps(change, ensure_ascii=False, separators=(",", ":"))
        self._producer.send(text.encode(), partition_key=name, event_timestamp=now_ms)
        self._last[name] = definition
        _log.info("%s: %s", name, "; ".join(changes))


def _told(data: bytes) -> TableDefinition | None:
    """The newer definition of a record; of one that cannot be read, none."""
    try:
        return cast("SchemaChange", json.loads(data))["new"]
    except (ValueError, KeyError, TypeError):
        _log.warning("a record of the topic of schema changes is none: %d bytes", len(data))
        return None
