"""Messages of DataStax's agents, whose meaning is guessed, while another thread looks at the schema."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from runtime.notices import Notices
from schemas.errors import CdcError
from source_connector.data_format import DataFormat
from source_connector.errors import FetchError
from source_connector.events.events_message import DataStaxMessage, RawMessage
from source_connector.tables.guessed_events import GuessedEvents
from source_connector.tables.table_schema import VersionedTable
from source_connector.tables.table_tracker import TableTracker
from source_connector.timers import Timers
from tests.unit.source_connector.test_datastax_events import SEM, _Nowhere, captured

VERSION, LATER = UUID(int=1), UUID(int=2)


class Case:
    """Messages of a table that was found; looks at the schema wait for a test's answer."""

    def __init__(self) -> None:
        self.looks: list[Callable[[UUID | CdcError], None]] = []
        self.tracker = TableTracker("ks2", "sem", ".*", DataFormat.KEY_VALUE_AVRO, lambda *_: None)
        self.find(VERSION)
        self.timers = Timers()
        self.guessed = GuessedEvents(
            self.tracker, self.looks.append, self.timers, Notices(logging.getLogger("guessed"))
        )

    def find(self, version: UUID, *, is_agreed: bool = True) -> None:
        self.tracker.refresh(VersionedTable(version, SEM, is_agreed), self.tracker.stale_marks)

    def answer(self, version: UUID, *, is_agreed: bool) -> bool:
        """Answer a look and the following read of the table. Return False if no look waits."""
        self.timers.run_due()
        if not self.looks:
            return False
        self.looks.pop(0)(version)
        if self.tracker.is_stale:
            self.find(version, is_agreed=is_agreed)
        return True

    def add(self, name: str) -> None:
        message_id: Any = name
        event = captured("statements-events.txt")[0]
        self.guessed.add(
            DataStaxMessage(
                identity=b"",
                message_id=message_id,
                topic="events-ks2.sem",
                event=event,
                raw=RawMessage(data=b""),
                origin=_Nowhere(),
            )
        )

    def understood(self) -> list[object]:
        return [message.message_id for message in self.guessed.understood()]


def test_a_message_that_comes_during_a_look_waits_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema may have changed between the question and the message. The next question follows a moment later."""
    now = [0.0]
    monkeypatch.setattr("source_connector.timers.time.monotonic", lambda: now[0])
    case = Case()
    case.add("first")
    assert case.understood() == []
    case.add("second")
    (look,) = case.looks
    look(VERSION)
    assert case.understood() == ["first"]
    assert case.understood() == []
    assert len(case.looks) == 1
    now[0] = 0.05
    case.timers.run_due()
    case.looks[1](LATER)
    assert case.understood() == []
    case.find(LATER)
    assert (case.understood(), len(case.looks)) == (["second"], 2)


def test_a_look_that_is_not_answered_is_made_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not repeated at once, nor in each turn of the source."""
    now = [0.0]
    monkeypatch.setattr("source_connector.timers.time.monotonic", lambda: now[0])
    case = Case()
    case.add("first")
    case.understood()
    case.looks[0](FetchError("system_schema", "OperationTimedOut"))
    for _ in range(3):
        assert case.understood() == []
    assert len(case.looks) == 1
    now[0] = 1.0
    case.timers.run_due()
    case.looks[1](VERSION)
    assert case.understood() == ["first"]


def test_messages_wait_while_a_node_that_lags_may_have_given_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is read once a second. When the nodes agree, the messages are understood, in their order."""
    now = [100.0]
    monkeypatch.setattr("source_connector.timers.time.monotonic", lambda: now[0])
    case = Case()
    reads = 0
    for number in range(100):
        case.add(f"m{number}")
        assert case.understood() == []
        reads += case.answer(LATER, is_agreed=False)
        assert case.understood() == []
        now[0] += 0.051
    assert reads == 5
    now[0] += 1
    case.answer(LATER, is_agreed=True)
    assert case.understood() == [f"m{number}" for number in range(100)]
    case.add("next")
    case.understood()
    now[0] += 0.05
    case.answer(LATER, is_agreed=True)
    assert case.understood() == ["next"]


def test_messages_wait_for_no_agreement_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node has another version for hours. Each message is interpreted by a table that was read after it came."""
    now = [100.0]
    monkeypatch.setattr("source_connector.timers.time.monotonic", lambda: now[0])
    case = Case()
    case.add("first")
    understood = []
    for _ in range(60):
        understood += case.understood()
        case.answer(LATER, is_agreed=False)
        understood += [(round(now[0]), each) for each in case.understood()]
        now[0] += 1
    assert understood == [(150, "first")]
    case.add("second")
    assert (case.understood(), case.answer(LATER, is_agreed=False), case.understood()) == ([], True, ["second"])
    case.add("third")
    assert (case.understood(), case.answer(LATER, is_agreed=False)) == ([], False)
