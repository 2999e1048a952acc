"""Events encoded by the native core, mixed with single events. Order, room, holding and message keys are the same."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from change_agent.events.mutation_events import is_published
from change_agent.native_core import native_core
from change_agent.positions.accounts import TrackedEntry
from change_agent.publishing.outgoing import OutgoingRun
from schemas.mutation_event import MutationKind, decode_events
from tests.agent.both_ways import BothWays
from tests.agent.segment_writer import entry_bytes
from tests.golden.segments import GOLDEN_SEGMENTS
from tests.unit.change_agent.memory_broker import HEADERS, TOPIC_A, MemoryBroker, PublisherLine

pytestmark = pytest.mark.skipif(native_core() is None, reason="there is no native core")

GOLDEN = GOLDEN_SEGMENTS[-1]


class MixedLine(PublisherLine):
    """A publisher line: of three keys, the core encodes two, and Python creates a single event for the third."""

    def publish(self, table: str, *keys: int) -> None:
        for key in keys:
            if key % 3 == 0:
                super().publish(table, key)
            else:
                self.publish_encoded(table, key)

    def publish_encoded(self, table: str, *keys: int) -> None:
        """Publish deletions of these partitions in one batch."""
        core = native_core()
        assert core is not None
        tables = GOLDEN.tables()
        simple = next(each for each in tables.values() if each.name == "simple" and is_published(each))
        # Flags, statistics, no columns, the deletion, estimate, end.
        rest = b"\x14" + bytes(3) + b"\0" + b"\x05\x07" + b"\1" + b"\1"
        entries = [entry_bytes(b"\1" + simple.table_id.bytes + b"\4" + key.to_bytes(4, "big") + rest) for key in keys]
        window = b"".join(entries)
        # The batch is tracked by the position of its last entry, as for single events.
        found = BothWays(core, tables, GOLDEN.version).encode(window, 0, self.position + 1 - len(entries[0]))
        assert found is not None
        assert found.entries == len(keys)
        ((_, run),) = found.runs
        self.position = found.events_end
        entry = TrackedEntry(1, self.position, len(run))
        outgoing = OutgoingRun(HEADERS[table], run, entry)
        assert self.positions.take_room(outgoing.count, outgoing.size, 1)
        self.positions.track([entry])
        self.publisher.publish([outgoing])


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _all(broker: MemoryBroker) -> list[int]:
    return [position for partition in range(broker.partitions) for position in broker.positions(TOPIC_A, partition)]


@pytest.mark.parametrize("partitions", [1, 4])
def test_encoded_and_single_events_keep_their_order(tmp_path: Path, partitions: int) -> None:
    """The order is kept in each topic partition. The position passes all events, and the room is released."""
    broker = MemoryBroker(partitions)
    line = MixedLine(broker, tmp_path)
    line.publisher.start()
    line.publish("a", *range(60))
    line.publish_encoded("a", *range(100, 340))
    _wait(lambda: line.positions.events == 0)
    line.publisher.stop()
    assert line.acknowledged() == line.position
    assert line.positions.bytes == 0
    assert len(_all(broker)) == 300
    for partition in range(partitions):
        found = broker.positions(TOPIC_A, partition)
        assert found == sorted(found)


def test_encoded_events_go_to_the_partition_of_single_ones(tmp_path: Path) -> None:
    """The changes of a row stay in order, whether they are encoded or not."""
    broker = MemoryBroker(4)
    line = MixedLine(broker, tmp_path)
    line.publisher.start()
    for key in range(40):
        PublisherLine.publish(line, "a", key)
        line.publish_encoded("a", key)
    _wait(lambda: line.positions.events == 0)
    line.publisher.stop()
    for payloads in broker.stored[TOPIC_A]:
        events = [event for payload in payloads for event in decode_events(payload).events]
        assert [each.kind for each in events] == [MutationKind.ROW, MutationKind.PARTITION_DELETION] * (
            len(events) // 2
        )
        assert [each.partition_key for each in events[::2]] == [each.partition_key for each in events[1::2]]


def test_a_topic_that_is_held_has_encoded_events_in_order(tmp_path: Path) -> None:
    """They wait in a file and are acknowledged there. They are sent before later events."""
    broker = MemoryBroker(2)
    broker.refused_topics = {TOPIC_A}
    line = MixedLine(broker, tmp_path, hold_events=5)
    line.publisher.start()
    line.publish("b", 1, 2, 3)
    line.publish("a", *range(30))
    _wait(lambda: line.positions.events == 0)
    assert line.metrics.topics_held == 1
    broker.refused_topics = set()
    line.publish("a", *range(30, 50))
    _wait(lambda: TOPIC_A in broker.stored and len(_all(broker)) == 50)
    line.publisher.stop()
    for partition in range(2):
        found = broker.positions(TOPIC_A, partition)
        assert found == sorted(found)


def test_a_message_of_encoded_events_that_is_too_large_goes_in_parts(tmp_path: Path) -> None:
    """Each part is sent when it fits. No event is lost or doubled."""
    broker = MemoryBroker()
    broker.max_message_bytes = 600
    line = MixedLine(broker, tmp_path)
    line.publish_encoded("a", *range(40))
    line.publisher.start()
    _wait(lambda: line.positions.events == 0)
    line.publisher.stop()
    assert len(broker.stored[TOPIC_A][0]) > 1
    assert len(_all(broker)) == len(set(_all(broker))) == 40


def test_a_message_that_was_refused_goes_again_in_order(tmp_path: Path) -> None:
    """All later messages are sent again too."""
    broker = MemoryBroker()
    broker.fail_next = ["Timeout"]
    line = MixedLine(broker, tmp_path, max_events=7)
    line.publisher.start()
    line.publish("a", *range(30))
    line.publish_encoded("a", *range(30, 60))
    _wait(lambda: line.positions.events == 0)
    line.publisher.stop()
    assert _all(broker) == sorted(set(_all(broker)))
    assert len(_all(broker)) == 60


def test_one_event_a_message_has_its_key(tmp_path: Path) -> None:
    """Custom consumers need it: base64 of the Avro key."""
    broker = MemoryBroker()
    line = MixedLine(broker, tmp_path, max_events=1)
    line.publisher.start()
    line.publish_encoded("a", *range(5))
    _wait(lambda: line.positions.events == 0)
    line.publisher.stop()
    assert broker.keys == [base64.b64encode(bytes([2 * key])).decode() for key in range(5)]
    assert [len(decode_events(each).events) for each in broker.stored[TOPIC_A][0]] == [1] * 5
