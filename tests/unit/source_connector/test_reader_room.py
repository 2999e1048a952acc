"""The room of a reader: waiting events, and the pause of the receiving thread."""

from __future__ import annotations

import threading

from source_connector.events.reader_room import ReaderLimits, ReaderRoom

LIMIT = 400
FULL, FREE, IN_TIME = (False, False), (True, True), (True, False)


def room(waiting: int = LIMIT) -> ReaderRoom:
    made = ReaderRoom(ReaderLimits(LIMIT))
    made.add(waiting)
    return made


def test_a_reader_waits_while_its_events_do() -> None:
    """The receiving thread does not wake up for each event, but for many events and for a message that is done."""
    full = room()
    assert full.wait(0) == FULL
    full.settle(49, is_last=False)
    assert full.wait(0) == FULL
    full.settle(1, is_last=False)
    assert full.wait(0) == FREE
    full.add(50)
    full.settle(1, is_last=True)
    assert full.wait(0) == FREE


def test_the_wait_ends_when_room_is_made() -> None:
    """Another thread makes room."""
    full = room()
    threading.Timer(0.05, full.settle, (LIMIT,), {"is_last": True}).start()
    assert full.wait(60) == IN_TIME


def test_a_topic_that_is_added_gives_back_the_settled_events_of_a_larger_group() -> None:
    """The events that are left may wait for long, so that no later event ends the group."""
    limits = ReaderLimits(LIMIT)
    limits.add_topic()
    made = ReaderRoom(limits)
    made.add(LIMIT)
    made.settle(LIMIT - 50, is_last=False)
    made.settle(20, is_last=False)
    made.settled.count = 5
    for _ in range(9):
        limits.add_topic()
    assert limits.max_waiting_events == 40
    assert made.wait(0) == FREE
    made.add(15)
    assert made.wait(0) == FULL
    assert made.settled.together == limits.settled_together


def test_topics_share_what_may_wait() -> None:
    """Each topic may have at least one event, and one message that the client prefetches."""
    limits = ReaderLimits(10)
    for _ in range(4):
        limits.add_topic()
    assert (limits.max_waiting_events, limits.receiver_queue) == (2, 2)
    for _ in range(40):
        limits.add_topic()
    assert (limits.max_waiting_events, limits.receiver_queue) == (1, 1)
