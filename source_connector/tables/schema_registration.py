"""The data topic's schema: registered by the host before the first record that needs it.

While the registry refuses the schema, the table is parked: no row is read, its events stay unacknowledged, and the
schema is tried again after growing pauses, because an operator may change the topic's compatibility strategy or its
schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from runtime.backoff import Backoff
from runtime.notices import Notices
from source_connector.host.host_protocol import SchemaRefused, SchemaTaken, encode_schema
from source_connector.host.record import DataSchema
from source_connector.tables.newest_schema import NewestSchemaAnswer, marked
from source_connector.timers import Timers

__all__ = ["SchemaRegistration"]

_BACKOFF: Final = Backoff(1, 30.0)
_MOST_MARKS: Final = 100
_ANSWER_S: Final = 90.0
"""Longer than the host and Pulsar's clients need for an answer or a failure."""

_OF_REGISTRY: Final = (
    "set the topic's or namespace's schema compatibility strategy to one that allows the change, or use another "
    "destination topic"
)
_OF_BROKER: Final = "check that the broker runs, that the topic exists, and that the source's role may produce to it"
# The class of the Java client's exception, or the broker's text.
_REGISTRYS_OWN: Final = re.compile(r"incompatible\s?schema", re.IGNORECASE)


class SchemaRegistration:
    """Announces each new schema to the host by `send`, and knows if records may be written with it.

    After the host has answered, `check` asks if it is the registry's newest schema. The answer comes by `on_answer`.
    """

    def __init__(
        self, send: Callable[[bytes], None], check: Callable[[DataSchema], None], timers: Timers, notices: Notices
    ) -> None:
        self._send = send
        self._check = check
        self._timers = timers
        self._notices = notices
        self._plain: DataSchema | None = None
        self._wanted: DataSchema | None = None
        self._mark = 0
        self._is_marking = True
        self._refusals = 0
        self._questions = 0
        self._checked: DataSchema | None = None
        self.is_taken = False
        """True when the registry has the latest schema."""

    @property
    def is_refused(self) -> bool:
        """True while the table is parked because of its schema."""
        return self._refusals > 0

    def announce(self, schema: DataSchema) -> None:
        """Announce the schema with which records are written from now on."""
        self._plain = self._wanted = schema
        self._checked = None
        self._mark, self._is_marking, self._refusals, self.is_taken = 0, True, 0, False
        self._ask(schema)

    def ask_again(self) -> None:
        """Announce the accepted schema once more. The answer shows if the data topic accepts anything now."""
        if self._wanted is not None and self.is_taken:
            self._send(encode_schema(self._wanted))

    def answered(self, answer: SchemaTaken | SchemaRefused, table: str) -> None:
        """Take the host's answer. An answer about an earlier schema is ignored."""
        schema = self._wanted
        if schema is None or answer.schema_id != schema.schema_id:
            return
        if isinstance(answer, SchemaTaken):
            self._refusals = 0
            self._notices.clear("registry", f"{table} goes on: the data topic takes the table's schema")
            if self._is_marking and not self.is_taken:
                # if the same question was asked twice, only the first answer is checked
                if self._checked is not schema:
                    self._checked = schema
                    self._check(schema)
                    self._expect_answer(schema)
            else:
                self.is_taken = True
            return
        self.is_taken = False
        is_registrys_own = _REGISTRYS_OWN.search(answer.reason) is not None
        if self._is_marking and self._mark and is_registrys_own:
            self._use_older_version(table, answer.reason)
            return
        self._refusals += 1
        question = self._next_question()
        pause_s = _BACKOFF.pause_s(self._refusals)
        self._notices.say(
            "registry",
            f"{table} is parked, its events wait: the data topic does not take the table's schema "
            f"({' '.join(answer.reason.split())}); {_OF_REGISTRY if is_registrys_own else _OF_BROKER}; next attempt in {pause_s:.1f} s",
        )
        self._timers.after(pause_s, partial(self._again, schema, question))

    def on_answer(self, found: NewestSchemaAnswer) -> None:
        """Take the registry's answer. An older version is registered with another mark, until it is the newest one."""
        if self._plain is None or found.schema_id != self._plain.schema_id or self.is_taken:
            return
        if self._checked is not self._wanted:  # the schema was announced again meanwhile, and gets its own answer
            return
        self._checked = None
        if found.is_newest:
            self.is_taken = True
            return
        self._mark += 1
        if self._mark > _MOST_MARKS:
            self._use_older_version(self._plain.name, f"{_MOST_MARKS} marks did not make it the newest")
            return
        self._wanted = replace(self._plain, value_schema=marked(self._plain.value_schema, self._mark))
        self._ask(self._wanted)

    def _use_older_version(self, table: str, reason: str) -> None:
        """Use the schema without a mark, although it is an older version. Its records can be read nevertheless."""
        assert self._plain is not None
        self._notices.say(
            "older", f"{table}: records are written by an older version of the data topic's schema ({reason})"
        )
        self._wanted, self._is_marking = self._plain, False
        self._ask(self._plain)

    def _ask(self, schema: DataSchema) -> None:
        self._send(encode_schema(schema))
        self._expect_answer(schema)

    def _expect_answer(self, schema: DataSchema) -> None:
        """Ask again if neither the host nor the registry answers in time."""
        self._timers.after(_ANSWER_S, partial(self._without_answer, schema, self._next_question()))

    def _next_question(self) -> int:
        """Count a question. Timers of earlier questions have no effect from now on."""
        self._questions += 1
        return self._questions

    def _again(self, schema: DataSchema, question: int) -> None:
        if question == self._questions and not self.is_taken:
            self._ask(schema)

    def _without_answer(self, schema: DataSchema, question: int) -> None:
        if question == self._questions and not self.is_taken:
            text = f"{schema.name}: no answer about the data topic's schema after {_ANSWER_S:.0f} s; it is asked again"
            self._notices.say("no answer", text)
            self._checked = None
            self._ask(schema)
