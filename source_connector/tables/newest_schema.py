"""Checks if a topic's newest schema is the one that was registered last.

Pulsar's registry keeps each schema text once. A table that returns to an earlier definition (a column dropped and added
again) gets its old version, and readers of the newest version miss the column. Such a schema is registered with a mark,
which is an attribute that Avro ignores. The mark changes the text, so it gets a new version.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from runtime.backoff import Backoff
from runtime.notices import Notices
from source_connector.events.pulsar_access import PulsarConnection, schema_bytes
from source_connector.host.record import DataSchema

__all__ = ["NewestSchemaAnswer", "NewestSchemas", "marked"]

_log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(1, 10.0)
_PATIENCE_S: Final = 45.0
"""After this time no more questions follow. It ends before the registration asks again by itself."""
_MARK: Final = "cql_registration"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestSchemaAnswer:
    """The registry's answer. `is_newest` is False if the newest schema of the topic is another one."""

    schema_id: int
    is_newest: bool


def marked(value_schema: str, number: int) -> str:
    """The same Avro schema with another text; unchanged for 0."""
    return f'{value_schema[:-1]},"{_MARK}":{number}}}' if number else value_schema


class NewestSchemas:
    """Asks the registry, with a thread for each question. `post` gets the answers."""

    def __init__(
        self, connection: PulsarConnection, output_topic: str, post: Callable[[NewestSchemaAnswer], None]
    ) -> None:
        self._connection = connection
        self._output_topic = output_topic
        self._post = post
        self._notices = Notices(_log)

    def check(self, schema: DataSchema) -> None:
        """Check a schema; `post` gets the answer. If the registry does not answer, the schema counts as the newest."""
        threading.Thread(target=self._check, args=(schema,), name="newest-schema", daemon=True).start()

    def _check(self, schema: DataSchema) -> None:
        self._post(NewestSchemaAnswer(schema_id=schema.schema_id, is_newest=self._is_newest(schema)))

    def _is_newest(self, schema: DataSchema) -> bool:
        import pulsar

        lasting = (pulsar.AuthorizationError, pulsar.AuthenticationError, pulsar.AlreadyClosed)
        topic = schema.topic or self._output_topic
        failures, ends_at = 0, time.monotonic() + _PATIENCE_S
        while True:
            try:
                return schema_bytes(self._connection.client(), topic) == _registered(schema)
            except pulsar.PulsarException as error:
                text = f"{topic}: its newest schema cannot be read: {error}"
                self._notices.say(topic, text, self._connection.hint)
                failures += 1
                pause_s = _BACKOFF.pause_s(failures)
                if isinstance(error, lasting) or time.monotonic() + pause_s > ends_at:
                    return True
            time.sleep(pause_s)


def _registered(schema: DataSchema) -> bytes:
    """The schema as Pulsar stores it: one text, or key and value, each after its length."""
    value = schema.value_schema.encode()
    if not schema.key_schema:
        return value
    key = schema.key_schema.encode()
    return struct.pack(">i", len(key)) + key + struct.pack(">i", len(value)) + value
