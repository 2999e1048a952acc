"""Checks of Cassandra's schema, in a separate thread, because a node that hangs takes seconds to fail.

FollowedTable, GuessedEvents, source -- ask --> SchemaQueries -- SchemaAnswer, by the inbox --> whoever asked
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from runtime.stage import Stage
from schemas.errors import CdcError
from source_connector.errors import FetchError

__all__ = ["SchemaAnswer", "SchemaQueries"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaAnswer:
    """An answer. The thread that asked gets it from its inbox and calls `deliver`."""

    deliver: Callable[[], None]


class SchemaQueries(Stage):
    """Asks Cassandra in a thread that starts with the first question. `post` takes the answers, or an unexpected error.

    When Cassandra does not answer a question, all waiting questions get the same error. So many tables cost one
    timeout, not one each. A caller should pause before it asks again.
    """

    def __init__(self, post: Callable[[SchemaAnswer | Exception], None]) -> None:
        super().__init__("reader of Cassandra's schema", on_failure=post)
        self._post = post
        self._waiting: queue.SimpleQueue[tuple[Callable[[], object], Callable[[object], None]]] = queue.SimpleQueue()

    def ask(self, question: Callable[[], _T], then: Callable[[_T | CdcError], None]) -> None:
        """Queue a question. `then` gets its result, or the CdcError that it raised."""
        self._waiting.put((question, then))  # type: ignore[arg-type]  # each question has its own kind of answer
        if not self.is_started:
            self.start()

    def run(self) -> None:
        """Ask one question after the other."""
        while not self.stopping.is_set():
            question, then = self._waiting.get()
            answer = _answer(question)
            self._post(SchemaAnswer(deliver=partial(then, answer)))
            if isinstance(answer, FetchError):
                for _ in range(self._waiting.qsize()):
                    self._post(SchemaAnswer(deliver=partial(self._waiting.get()[1], answer)))


def _answer(question: Callable[[], object]) -> object:
    try:
        return question()
    except CdcError as error:
        return error
