"""HeldEvents: a queue in a file that survives crashes in the middle of a write."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from change_agent.publishing.held_events import HeldEvents
from schemas.mutation_event import MutationEvents, encode_events


def _message(segment_id: int) -> bytes:
    return encode_events(
        MutationEvents(
            node_id=UUID(int=1),
            segment_id=segment_id,
            keyspace="ks",
            table="t",
            table_id=UUID(int=2),
            key_schema="",
            events=(),
        )
    )


def _read_all(held: HeldEvents) -> list[int]:
    found = []
    while (message := held.read_next()) is not None:
        found.append(message.segment_id)
    return found


def test_messages_come_out_as_they_went_in_also_in_another_process(tmp_path: Path) -> None:
    """First in, first out, from the front again after a restart or a rewind."""
    held = HeldEvents(tmp_path / "held" / "ks.t.events")
    assert held.is_read
    held.append([_message(1), _message(2)])
    assert _read_all(held) == [1, 2]
    held.append([_message(3)])
    assert (_read_all(held), held.is_read) == ([3], True)
    held.rewind()
    assert _read_all(held) == [1, 2, 3]
    assert _read_all(HeldEvents(tmp_path / "held" / "ks.t.events")) == [1, 2, 3]


@pytest.mark.parametrize("cut", range(1, len(_message(3)) + 8))
def test_a_write_that_was_cut_is_left_out_and_written_over(tmp_path: Path, cut: int) -> None:
    """It was never acknowledged; what is appended later stands behind the last whole message."""
    path = tmp_path / "ks.t.events"
    HeldEvents(path).append([_message(1), _message(2), _message(3)])
    path.write_bytes(path.read_bytes()[:-cut])
    held = HeldEvents(path)
    held.append([_message(4)])
    assert _read_all(held) == [1, 2, 4]
    assert _read_all(HeldEvents(path)) == [1, 2, 4]


def test_what_is_removed_is_gone(tmp_path: Path) -> None:
    """And the queue can be used again."""
    held = HeldEvents(tmp_path / "ks.t.events")
    held.append([_message(1)])
    held.remove()
    assert (held.is_read, held.size, list(tmp_path.iterdir())) == (True, 0, [])
    held.append([_message(2)])
    assert _read_all(held) == [2]
