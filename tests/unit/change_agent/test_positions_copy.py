"""PositionsCopy: what it copies and when not, and what a fresh machine takes from it. The topic is in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import cast

import pulsar
import pytest

from change_agent.errors import PublishError
from change_agent.positions.copy_topic import CopyTopic
from change_agent.positions.offsets import StoredPositions, StoredSegment, format_positions, parse_positions
from change_agent.positions.positions_copy import PositionsCopy
from change_agent.positions.segment_ids import SegmentIds
from tests.topics.events_topic import wait_until

_STORED = StoredPositions(segments={7: StoredSegment(position=100)}, finished=SegmentIds.of([5, 6]), until_ms=9)


class _Topic:
    """Holds the newest payload; refuses as often as told."""

    def __init__(self, payload: bytes | None = None, refusals: int = 0) -> None:
        self.payload, self.refusals = payload, refusals

    def read(self) -> bytes | None:
        self._refuse()
        return self.payload

    def store(self, payload: bytes) -> None:
        self._refuse()
        self.payload = payload

    def _refuse(self) -> None:
        self.refusals -= 1
        if self.refusals >= 0:
            raise PublishError("positions", "not now")


class _Agent:
    """What a copy asks of its agent."""

    def __init__(self, topic: _Topic, *, is_fresh: bool = False) -> None:
        self.stored = _STORED
        self.is_portable = True
        self.adopted: list[StoredPositions] = []
        self.opened: list[str] = []
        self.busy = 0
        self._topic = topic
        self.copy = PositionsCopy(
            self._open,
            lambda: "node-1",
            lambda: self.stored,
            lambda: self.is_portable,
            self.adopted.append if is_fresh else None,
        )

    def _open(self, node_id: str) -> _Topic:
        self.opened.append(node_id)
        if len(self.opened) <= self.busy:
            raise PublishError("positions", "another agent has them")
        return self._topic


@pytest.fixture
def topic() -> _Topic:
    """An empty topic."""
    return _Topic()


@pytest.fixture
def agent(topic: _Topic) -> Iterator[_Agent]:
    """An agent whose copy runs."""
    made = _Agent(topic)
    made.copy.start()
    yield made
    made.copy.stop()
    assert made.copy.failure is None


def test_what_is_stored_is_copied_under_the_nodes_id(agent: _Agent, topic: _Topic) -> None:
    """Whole, with its checksum."""
    wait_until(lambda: topic.payload is not None, "a copy is made")
    assert topic.payload is not None
    parsed = parse_positions(topic.payload, "the copy")
    assert parsed is not None and parsed[1] == _STORED
    assert agent.opened == ["node-1"]


def test_no_copy_skips_what_waits_on_this_machines_disk(topic: _Topic) -> None:
    """Held events and parked mutations are acknowledged to the log, and nowhere else; the last copy stays."""
    made = _Agent(topic)
    made.is_portable = False
    made.copy.start()
    made.copy.stop()
    assert topic.payload is None


def test_a_broker_that_is_away_gets_the_copy_later(caplog: pytest.LogCaptureFixture) -> None:
    """Told once."""
    topic = _Topic(refusals=2)
    made = _Agent(topic)
    made.copy.start()
    wait_until(lambda: topic.payload is not None, "a copy is made", 20)
    made.copy.stop()
    assert [each.getMessage() for each in caplog.records] == ["positions: not now; trying again"]


def test_an_agent_waits_for_the_one_that_has_the_nodes_copy(caplog: pytest.LogCaptureFixture) -> None:
    """Told once, also where it has positions of its own; a stop ends the wait."""
    made = _Agent(_Topic())
    made.busy = 2
    made.copy.start()
    assert made.copy.is_ready.wait(20)
    made.copy.stop()
    assert len(made.opened) == 3
    assert [each.getMessage() for each in caplog.records] == ["positions: another agent has them; trying again"]
    stopped = _Agent(_Topic())
    stopped.busy = 1_000_000
    threading.Timer(0.2, stopped.copy.stopping.set).start()
    stopped.copy.run()
    assert (len(stopped.opened), stopped.copy.is_ready.is_set()) == (1, False)


@pytest.mark.parametrize(
    ("payload", "expected"), [(format_positions(0, _STORED), _STORED), (None, None), (b"00000000\n{}", None)]
)
def test_a_fresh_machine_takes_the_copy_or_reads_everything(
    payload: bytes | None, expected: StoredPositions | None
) -> None:
    """A damaged copy is as good as none: events come twice, and none is skipped."""
    made = _Agent(_Topic(payload), is_fresh=True)
    made.copy.start()
    assert made.copy.is_ready.wait(20)
    made.copy.stop()
    assert made.adopted == ([] if expected is None else [expected])


def test_restoring_waits_for_the_broker_and_ends_when_the_agent_stops() -> None:
    """To guess that there is no copy would repeat everything."""
    made = _Agent(_Topic(refusals=1_000_000))
    threading.Timer(0.2, made.copy.stopping.set).start()
    assert made.copy.restore() is None
    again = _Agent(_Topic(format_positions(0, _STORED), refusals=1))
    assert again.copy.restore() == _STORED


class _Client:
    """A broker that allows one consumer, and refuses the first producer."""

    def __init__(self) -> None:
        self.consumers = self.producers = 0

    def subscribe(self, topic: str, name: str, **options: object) -> _Client:
        if self.consumers:
            raise pulsar.ConsumerBusy("busy")
        self.consumers += 1
        return self

    def create_producer(self, topic: str, **options: object) -> _Client:
        self.producers += 1
        if self.producers == 1:
            raise pulsar.Timeout("timeout")
        return self

    def close(self) -> None:
        self.consumers -= 1


def test_a_claim_whose_producer_is_refused_is_not_in_the_way_of_the_next_try() -> None:
    """Its consumer would be taken for another agent."""
    client = _Client()
    with pytest.raises(PublishError, match="timeout"):
        CopyTopic(cast(pulsar.Client, client), "positions")
    CopyTopic(cast(pulsar.Client, client), "positions")
    assert client.consumers == 1
