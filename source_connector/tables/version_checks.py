"""VersionChecks: messages that wait until the cluster's schema is known to be as new as they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar
from uuid import UUID

from runtime.notices import Notices
from schemas.errors import CdcError
from source_connector.timers import Timers

__all__ = ["AskVersion", "VersionChecks"]

_M = TypeVar("_M")

AskVersion = Callable[[Callable[[UUID | CdcError], None]], None]
"""Asks for the version of the cluster's schema that a node has when it is asked, or later."""

_RETRY_S: Final = 1.0
# The least time between two questions, because each costs a query. Messages wait for up to this time.
_BETWEEN_S: Final = 0.05
# The same while the nodes disagree: then a read of the table follows each question.
_BETWEEN_IN_DISAGREEMENT_S: Final = 1.0


class VersionChecks(Generic[_M]):
    """Messages that wait for a schema version that is requested after they came. `then` gets both.

    There is one question at a time for all waiting messages, and a pause between two questions, because many messages
    may come. `is_agreed` returns False while the nodes disagree about the schema. `who` names the messages in the log
    when Cassandra does not answer, so that they must wait.
    """

    def __init__(
        self,
        ask_version: AskVersion,
        then: Callable[[UUID, list[_M]], None],
        timers: Timers,
        notices: Notices,
        *,
        is_agreed: Callable[[], bool],
        who: str,
    ) -> None:
        self._ask_version = ask_version
        self._then = then
        self._timers = timers
        self._notices = notices
        self._who = who
        self._is_agreed = is_agreed
        self._waiting: list[_M] = []
        self._is_asking = False
        self._asked_at = float("-inf")

    def add(self, message: _M) -> None:
        """Add a message that has just come."""
        self._waiting.append(message)

    def add_again(self, messages: Sequence[_M]) -> None:
        """Add messages that came before all waiting ones and need another check."""
        self._waiting[:0] = messages

    def work(self) -> None:
        """Ask, if messages wait and no question is asked or planned."""
        if not self._waiting or self._is_asking:
            return
        self._is_asking = True
        between_s = _BETWEEN_S if self._is_agreed() else _BETWEEN_IN_DISAGREEMENT_S
        pause_s = self._asked_at + between_s - time.monotonic()
        if pause_s > 0:
            self._timers.after(pause_s, self._ask)
        else:
            self._ask()

    def _ask(self) -> None:
        self._asked_at = time.monotonic()
        came = len(self._waiting)
        self._ask_version(lambda version: self._on_version(version, came))

    def _on_version(self, version: UUID | CdcError, came: int) -> None:
        if isinstance(version, CdcError):
            self._notices.say("schema", f"{self._who} wait until the schema can be read: {version}")
            self._timers.after(_RETRY_S, self._ask)
            return
        self._is_asking = False
        checked = self._waiting[:came]
        del self._waiting[:came]
        self._then(version, checked)
