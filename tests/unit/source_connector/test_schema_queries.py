"""Questions that wait while Cassandra answers another one."""

from __future__ import annotations

import queue
import threading

import pytest

from schemas.errors import CdcError
from source_connector.errors import FetchError, TableNotFoundError
from source_connector.tables.schema_queries import SchemaAnswer, SchemaQueries


class Asked:
    """Questions of which the first is answered when a test says so; the others already wait behind it."""

    def __init__(self, first: Exception | str, behind: int) -> None:
        self._go_on = threading.Event()
        self._first = first
        self.answers: list[object] = []
        self.inbox: queue.SimpleQueue[SchemaAnswer | Exception] = queue.SimpleQueue()
        self.looks = SchemaQueries(self.inbox.put)
        self.looks.ask(self._hang, self.answers.append)
        for number in range(behind):
            self.looks.ask(lambda number=number: number, self.answers.append)  # type: ignore[misc]

    def _hang(self) -> str:
        assert self._go_on.wait(10)
        if isinstance(self._first, Exception):
            raise self._first
        return self._first

    def tell(self, count: int) -> list[object]:
        """The next `count` answers, in the order in which they came."""
        self._go_on.set()
        for _ in range(count):
            looked = self.inbox.get(timeout=10)
            assert isinstance(looked, SchemaAnswer), looked
            looked.deliver()
        return self.answers


@pytest.mark.parametrize("first", ["an answer", TableNotFoundError("ks.t")])
def test_each_question_has_its_answer_in_turn(first: CdcError | str) -> None:
    """A missing table does not affect the answers about others."""
    assert Asked(first, 2).tell(3) == [first, 0, 1]


def test_questions_that_wait_behind_one_that_cassandra_does_not_answer_are_not_asked() -> None:
    """They get the same error at once; later questions are asked again."""
    error = FetchError("system_schema", "OperationTimedOut")
    asked = Asked(error, 49)
    assert asked.tell(50) == [error] * 50
    asked.looks.ask(lambda: "again", asked.answers.append)
    assert asked.tell(1)[-1] == "again"


def test_what_nobody_has_foreseen_is_posted() -> None:
    """It ends the source, because otherwise no question would be asked any more."""
    asked = Asked(AssertionError("unforeseen"), 1)
    asked.tell(0)
    assert isinstance(asked.inbox.get(timeout=10), AssertionError)
