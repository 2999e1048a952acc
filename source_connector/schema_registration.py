"""The data topic's schema: registered by the host before the first record that needs it.

While the registry does not take it the table is parked: nothing is read, its events stay unacknowledged, and it is tried
again with growing pauses, for an operator may change the topic's compatibility strategy or its schema.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from source_connector.host_protocol import SchemaRefused, SchemaTaken, encode_schema
from source_connector.notices import Notices
from source_connector.record import DataSchema
from source_connector.timers import Timers, backoff_s

__all__ = ["SchemaRegistration"]

_LONGEST_PAUSE_S: Final = 30.0


class SchemaRegistration:
    """Announces each new schema to the host by `send`, and knows whether records may be written by it."""

    def __init__(self, send: Callable[[bytes], None], timers: Timers, notices: Notices) -> None:
        self._send = send
        self._timers = timers
        self._notices = notices
        self._wanted: DataSchema | None = None
        self._refusals = 0
        self.is_taken = False
        """True when the registry has the latest schema."""

    @property
    def is_refused(self) -> bool:
        """True while the table is parked for its schema."""
        return self._refusals > 0

    def announce(self, schema: DataSchema) -> None:
        """From here on records are written by this schema."""
        self._wanted, self._refusals, self.is_taken = schema, 0, False
        self._send(encode_schema(schema))

    def answered(self, answer: SchemaTaken | SchemaRefused, table: str) -> None:
        """The host's answer; one about an earlier schema means nothing any more."""
        schema = self._wanted
        if schema is None or answer.schema_id != schema.schema_id:
            return
        if isinstance(answer, SchemaTaken):
            self._refusals, self.is_taken = 0, True
            return
        pause_s = backoff_s(self._refusals, 1.0, _LONGEST_PAUSE_S)
        self._refusals += 1
        self._notices.say(
            "registry",
            f"{table} is parked, its events wait: the data topic does not take the table's schema "
            f"({' '.join(answer.reason.split())}); set the topic's or namespace's schema compatibility strategy to "
            f"one that allows the change, or use another destination topic; next attempt in {pause_s:.1f} s",
        )
        self._timers.after(pause_s, lambda: self._again(schema))

    def _again(self, schema: DataSchema) -> None:
        if schema is self._wanted and not self.is_taken:
            self._send(encode_schema(schema))
