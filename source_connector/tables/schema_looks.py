"""Checks of Cassandra's schema, in a thread of their own, because a node that hangs takes seconds to fail.

SchemaWatch, GuessedEvents, source -- ask --> SchemaLooks -- Looked, by the inbox --> whoever asked
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from schemas.errors import CdcError
from source_connector.errors import FetchError

__all__ = ["Looked", "SchemaLooks"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """An answer; whoever gets it calls `tell`, in the thread of those who asked."""

    tell: Callable[[], None]


class SchemaLooks:
    """Owns the thread, which starts with the first question. `post` takes the answers, or what nobody has foreseen.

    When Cassandra does not answer a question, those that wait behind it have the same answer: many tables cost one
    timeout then, not one each. Whoever asks again should pause first.
    """

    def __init__(self, post: Callable[[Looked | Exception], None]) -> None:
        self._post = post
        self._waiting: queue.SimpleQueue[tuple[Callable[[], object], Callable[[object], None]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, question: Callable[[], _T], then: Callable[[_T | CdcError], None]) -> None:
        """Have the question asked; `then` gets what it returned, or the CdcError that it raised."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="schema-looks", daemon=True)
            self._thread.start()
        self._waiting.put((question, then))  # type: ignore[arg-type]  # each question has its own kind of answer

    def _run(self) -> None:
        try:
            while True:
                question, then = self._waiting.get()
                answer = _answer(question)
                self._post(Looked(tell=partial(then, answer)))
                if isinstance(answer, FetchError):
                    for _ in range(self._waiting.qsize()):
                        self._post(Looked(tell=partial(self._waiting.get()[1], answer)))
        except Exception as error:  # noqa: BLE001  # the top of a thread: whoever owns it decides
            self._post(error)


def _answer(question: Callable[[], object]) -> object:
    try:
        return question()
    except CdcError as error:
        return error
