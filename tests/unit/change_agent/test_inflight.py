"""InflightPositions: the acknowledged position moves only over a contiguous prefix, and the room is limited."""

from __future__ import annotations

import threading

import pytest

from change_agent.cdc_raw.segment_key import key_of_reading_again
from change_agent.positions.accounts import TrackedEntry
from change_agent.positions.inflight import InflightPositions


@pytest.fixture
def positions() -> InflightPositions:
    """Room for ten events or 1,000 bytes; segment 1 is open from position 20."""
    inflight = InflightPositions(max_events=10, max_bytes=1000)
    inflight.open(1, 20)
    return inflight


def _tracked(positions: InflightPositions, *entries: tuple[int, int]) -> list[TrackedEntry]:
    tracked = [TrackedEntry(1, position, events) for position, events in entries]
    positions.track(tracked)
    return tracked


def _position(positions: InflightPositions) -> int:
    return positions.progress()[1].position


def test_entries_without_events_are_done_when_they_are_read(positions: InflightPositions) -> None:
    """No event is in flight, so the position is the reader's."""
    positions.advance(1, 300)
    assert _position(positions) == 300


def test_acknowledgements_out_of_order_move_the_position_over_the_prefix_only(positions: InflightPositions) -> None:
    """The first open entry holds back the position of all later ones."""
    first, second, third = _tracked(positions, (100, 1), (200, 1), (300, 1))
    positions.advance(1, 350)
    positions.acknowledge([second], 0, 0)
    assert _position(positions) == 20
    positions.acknowledge([first], 0, 0)
    assert _position(positions) == 200
    positions.acknowledge([third], 0, 0)
    assert _position(positions) == 350


def test_an_entry_is_done_when_all_its_events_are(positions: InflightPositions) -> None:
    """A batch over several tables has several events in one entry."""
    [entry] = _tracked(positions, (100, 3))
    positions.acknowledge([entry, entry], 0, 0)
    assert _position(positions) == 20
    positions.acknowledge([entry], 0, 0)
    assert _position(positions) == 100


def test_a_segment_is_done_when_it_was_read_to_its_end_and_all_is_acknowledged(positions: InflightPositions) -> None:
    """Neither condition alone is enough."""
    [entry] = _tracked(positions, (100, 1))
    positions.advance(1, 100)
    positions.finish(1)
    assert not positions.progress()[1].done
    positions.acknowledge([entry], 0, 0)
    assert positions.progress()[1].done and not positions.progress()[1].keep


@pytest.mark.parametrize(("events", "size"), [(10, 100), (1, 1000)])
def test_room_is_bounded_by_events_and_by_bytes(positions: InflightPositions, events: int, size: int) -> None:
    """When either limit is reached, the reader waits for acknowledgements."""
    assert positions.take_room(events, size, 0)
    assert not positions.take_room(1, 1, 0)
    [entry] = _tracked(positions, (100, 1))
    threading.Timer(0.05, positions.acknowledge, ([entry], events, size)).start()
    assert positions.take_room(1, 1, 5)


def test_a_batch_larger_than_all_room_travels_alone(positions: InflightPositions) -> None:
    """One large mutation must not block the log for ever."""
    assert positions.take_room(500, 5000, 0)
    assert not positions.take_room(1, 1, 0)


def test_what_an_earlier_agent_did_was_read_before_any_segment_is_open() -> None:
    """The loss of a topic between two agents is found at the start. Its gap must reach up to the stored position."""
    positions = InflightPositions(max_events=10, max_bytes=1000)
    positions.go_on_from((7, 100))
    assert positions.read_place[:2] == (7, 100)
    positions.open(6, 20)
    positions.advance(6, 50)
    assert positions.read_place[:2] == (7, 100)
    positions.open(7, 100)
    positions.advance(7, 120)
    assert positions.read_place[:2] == (7, 120)


def test_the_acknowledged_place_waits_for_the_first_segment_with_events(positions: InflightPositions) -> None:
    """This holds also when the segment was read to its end and later ones are done.

    A gap of a lost topic begins at this place.
    """
    [entry] = _tracked(positions, (100, 1))
    positions.finish(1)
    positions.open(2, 20)
    positions.advance(2, 500)
    assert positions.acknowledged_place[:2] == (1, 20)
    positions.acknowledge([entry], 0, 0)
    assert positions.acknowledged_place[:2] == (2, 500)


def test_a_segment_that_is_read_again_is_no_place_in_the_log(positions: InflightPositions) -> None:
    """It is an old part of the log, and its events are published again."""
    positions.advance(1, 300)
    positions.open(key_of_reading_again(1), 0)
    assert positions.acknowledged_place[:2] == (1, 300)


def test_the_acknowledged_place_does_not_go_back_when_segments_are_forgotten_out_of_order(
    positions: InflightPositions,
) -> None:
    """A segment whose file waits to be set aside is forgotten after later segments."""
    positions.open(2, 20)
    for segment, end in ((1, 300), (2, 500)):
        positions.advance(segment, end)
        positions.finish(segment)
    positions.forget(2)
    positions.forget(1)
    assert positions.acknowledged_place[:2] == (2, 500)


def test_a_time_is_acknowledged_when_no_event_is_on_its_way(positions: InflightPositions) -> None:
    """The time window of a gap begins there, so no earlier write may be unacknowledged."""
    positions.note_read_until(5)
    assert positions.take_room(1, 1, 0)
    [entry] = _tracked(positions, (100, 1))
    positions.note_read_until(7)
    assert positions.acknowledged_until_ms == 5
    positions.acknowledge([entry], 1, 1)
    assert positions.acknowledged_until_ms == 7


def test_a_lost_segment_is_done_whatever_was_wrong_with_it(positions: InflightPositions) -> None:
    """No file can be kept or set aside. An account that never ends would stop the progress."""
    positions.keep(1)
    positions.note_fault(1, "a checksum is wrong")
    positions.abandon(1)
    found = positions.progress()[1]
    assert (found.done, found.is_lost, found.keep, found.fault) == (True, True, False, None)
