"""Which messages wait because another instance may still have records of the same keys in progress."""

from __future__ import annotations

from source_connector.events.takeovers import Arrival, Takeovers

_P0, _P1 = "events-partition-0", "events-partition-1"


def _arrival(now: float, entry: int, topic: str = _P0, age_s: float = 0.01) -> Arrival:
    return Arrival(topic, (1, entry, -1), age_s, now)


def test_the_first_messages_of_each_partition_wait_for_five_seconds() -> None:
    """All messages of that time begin when it ends, so that they keep their order."""
    takeovers = Takeovers(4, 90)
    assert [takeovers.held_until(_arrival(now, entry)) for entry, now in enumerate((100, 103, 104.9))] == [105] * 3
    assert takeovers.held_until(_arrival(104.9, 0, _P1)) == 109.9
    assert takeovers.held_until(_arrival(105.1, 3)) <= 105.1
    assert takeovers.count == 2


def test_messages_that_come_again_wait() -> None:
    """The broker starts again after the acknowledged messages: another instance may have had them."""
    takeovers = Takeovers(4, 90)
    for entry in range(5):
        takeovers.held_until(_arrival(100, entry))
    assert takeovers.held_until(_arrival(200, 5)) <= 200
    assert takeovers.held_until(_arrival(201, 3)) == 206
    assert takeovers.held_until(_arrival(202, 6)) == 206
    assert takeovers.held_until(_arrival(207, 7)) <= 207
    assert takeovers.held_until(_arrival(300, 7)) == 305  # the last one alone was not acknowledged


def test_a_message_that_the_broker_kept_for_a_second_waits() -> None:
    """The partition came back without state: its messages are old, although this instance waited for some."""
    takeovers = Takeovers(4, 90)
    takeovers.held_until(_arrival(100, 0))
    assert takeovers.held_until(_arrival(200, 1)) <= 200
    assert takeovers.held_until(_arrival(300, 2, age_s=1.1)) == 305


def test_a_quiet_partition_a_wrong_clock_and_a_busy_instance_are_no_takeover() -> None:
    """Silence alone is no sign, and neither is the age of messages that waited for this instance."""
    takeovers = Takeovers(4, 90)
    for now in (100, 110, 120):  # The agent's clock is 30 s behind.
        last = takeovers.held_until(_arrival(now, now, age_s=30))
    assert last <= 120
    takeovers.was_busy(130)
    assert takeovers.held_until(_arrival(130.1, 130, age_s=33)) <= 130.1
    assert takeovers.held_until(_arrival(130.2, 131, age_s=33)) <= 130.2
    assert takeovers.count == 1


def test_a_message_may_have_been_in_the_clients_queue_since_it_was_empty() -> None:
    """It may also have been there since the message was taken that was one queue length ahead of it."""
    takeovers = Takeovers(2, 90)
    assert takeovers.fetched_after(_arrival(100, 0)) == 90
    takeovers.was_empty(99)
    for entry, now in enumerate((100, 101, 102)):
        assert takeovers.fetched_after(_arrival(now, entry)) == (99, 99, 100)[entry]
        takeovers.held_until(_arrival(now, entry))
    assert takeovers.fetched_after(_arrival(110, 0, _P1)) == 99
    assert takeovers.fetched_after(_arrival(110, 3)) == 101
    takeovers.was_empty(120)
    assert takeovers.fetched_after(_arrival(121, 3)) == 120
