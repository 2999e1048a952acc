"""HeldEvents: a queue in a file that survives a crash during a write."""

from __future__ import annotations

import errno
import os
import tracemalloc
from pathlib import Path

import pytest

from change_agent.metrics import TableMetrics
from change_agent.publishing.held_events import TOO_LARGE, HeldEvents, holds_events
from change_agent.publishing.held_frames import frame_of
from change_agent.publishing.topic_files import TopicFiles
from schemas.mutation_event import MUTATION_EVENTS_SCHEMA_TEXT
from tests.agent.messages import message_without_events


def _read_all(held: HeldEvents) -> list[int]:
    found = []
    while (message := held.read_next()) is not None:
        found.append(message.segment_id)
    return found


def test_messages_come_out_as_they_went_in_also_in_another_process(tmp_path: Path) -> None:
    """First in, first out. A restart or a rewind begins again at the first message."""
    held = HeldEvents(tmp_path / "held" / "ks.t.events")
    assert held.is_read
    held.append([message_without_events(1), message_without_events(2)])
    assert _read_all(held) == [1, 2]
    held.append([message_without_events(3)])
    assert (_read_all(held), held.is_read) == ([3], True)
    held.rewind()
    assert _read_all(held) == [1, 2, 3]
    assert _read_all(HeldEvents(tmp_path / "held" / "ks.t.events")) == [1, 2, 3]


@pytest.mark.parametrize("cut", range(1, len(message_without_events(3)) + 8))
def test_a_write_that_was_cut_is_left_out_and_written_over(tmp_path: Path, cut: int) -> None:
    """The cut message was never acknowledged. The next message follows the last whole one."""
    path = tmp_path / "ks.t.events"
    HeldEvents(path).append([message_without_events(1), message_without_events(2), message_without_events(3)])
    path.write_bytes(path.read_bytes()[:-cut])
    held = HeldEvents(path)
    held.append([message_without_events(4)])
    assert _read_all(held) == [1, 2, 4]
    assert _read_all(HeldEvents(path)) == [1, 2, 4]


def test_what_is_removed_is_gone(tmp_path: Path) -> None:
    """The queue can be used again."""
    held = HeldEvents(tmp_path / "ks.t.events")
    held.append([message_without_events(1)])
    held.remove()
    assert (held.is_read, held.size, list(tmp_path.iterdir())) == (True, 0, [])
    held.append([message_without_events(2)])
    assert _read_all(held) == [2]


def _file_of(path: Path, *segment_ids: int) -> list[int]:
    """Write these messages to a file, and return the end of each frame."""
    held, ends = HeldEvents(path), []
    for each in segment_ids:
        held.append([message_without_events(each)])
        ends.append(held.size)
    return ends


def _flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x40
    path.write_bytes(content)


@pytest.mark.parametrize(
    "back",
    [1, len(message_without_events(2)) // 2, len(message_without_events(2)) + 2, len(message_without_events(2)) + 7],
)
def test_a_damaged_message_is_left_out_and_told_and_those_behind_it_are_read(tmp_path: Path, back: int) -> None:
    """The damaged byte is in the payload, in the length or in the CRC. New messages follow the existing ones."""
    path = tmp_path / "ks.t.events"
    ends = _file_of(path, 1, 2, 3)
    _flip(path, ends[1] - back)
    held = HeldEvents(path)
    assert (_read_all(held), held.take_damage(), held.take_damage()) == ([1, 3], ends[1] - ends[0], 0)
    held.append([message_without_events(4)])
    assert _read_all(HeldEvents(path)) == [1, 3, 4]


def test_damage_is_reported_with_its_file_also_by_the_process_after_a_restart(tmp_path: Path) -> None:
    """Afterwards the file is set aside, and nothing else shows that it held events."""
    ends = _file_of(tmp_path / "ks.t.events", 1, 2)
    _flip(tmp_path / "ks.t.events", ends[0] - 1)
    metrics, reasons = TableMetrics(), list[str]()
    files = TopicFiles("events-ks.t", tmp_path, "ks.t.events", metrics, reasons.append)
    assert files.read_next() is not None
    assert (len(reasons), metrics.damaged_bytes) == (1, len(frame_of(message_without_events(1))))
    assert f"events in {tmp_path / 'ks.t.events'} were damaged" in reasons[0]


@pytest.mark.parametrize("missing", [1, 2, 9])
def test_a_cut_write_behind_damaged_bytes_is_not_completed_by_the_next_one(tmp_path: Path, missing: int) -> None:
    """The missing end is zeros, and the next frame begins with zeros, which must not complete the cut frame."""
    path = tmp_path / "ks.t.events"
    ends = _file_of(path, 1, 2, 3)
    _flip(path, ends[1] - 1)
    path.write_bytes(path.read_bytes()[:-missing])
    held = HeldEvents(path)
    held.append([message_without_events(4)])
    held.append([message_without_events(5)])
    assert _read_all(held) == [1, 4, 5]
    again = HeldEvents(path)
    assert _read_all(again) == [1, 4, 5]
    assert again.take_damage() == held.take_damage() > ends[1] - ends[0]


@pytest.mark.parametrize("schema", [b'{"type": "int"}', b'{"type": ', b'{"\xff\xfe": 1}', b'{"a":' * 3_000, b"{}"])
def test_a_schema_that_is_none_takes_only_what_was_written_by_it(tmp_path: Path, schema: bytes) -> None:
    """The bytes are not a schema, although their checksum fits. New messages begin with a schema of their own."""
    path = tmp_path / "ks.t.events"
    path.write_bytes(frame_of(message_without_events(1)) + frame_of(schema) + frame_of(message_without_events(2)))
    held = HeldEvents(path)
    held.append([message_without_events(3)])
    assert (_read_all(held), held.take_damage()) == ([1, 3], len(frame_of(message_without_events(2))))
    assert _read_all(HeldEvents(path)) == [1, 3]


def test_the_last_message_may_be_damaged_too(tmp_path: Path) -> None:
    """Its length fits, so it may have been durable.

    It is not overwritten, and a byte separates it from the next message.
    """
    path = tmp_path / "ks.t.events"
    ends = _file_of(path, 1, 2)
    _flip(path, ends[1] - 1)
    held = HeldEvents(path)
    held.append([message_without_events(3)])
    assert (_read_all(HeldEvents(path)), held.take_damage()) == ([1, 3], ends[1] - ends[0] + 1)


@pytest.mark.parametrize("length", [1, 7, 8, 64, 4096])
def test_zeros_at_the_end_are_what_a_power_loss_has_left(tmp_path: Path, length: int) -> None:
    """The file had its new length, but not yet the bytes. The zeros are cut off."""
    path = tmp_path / "ks.t.events"
    _file_of(path, 1, 2)
    path.write_bytes(path.read_bytes() + bytes(length))
    held = HeldEvents(path)
    held.append([message_without_events(3)])
    assert (_read_all(held), held.take_damage(), _read_all(HeldEvents(path))) == ([1, 2, 3], 0, [1, 2, 3])


def test_a_length_of_gigabytes_takes_no_memory(tmp_path: Path) -> None:
    """The length is larger than the file."""
    path = tmp_path / "ks.t.events"
    _file_of(path, 1)
    path.write_bytes(path.read_bytes() + b"\xff\xff\xff\xff" + bytes(4) + b"x")
    tracemalloc.start()
    assert _read_all(HeldEvents(path)) == [1]
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_a_damaged_schema_costs_no_wrong_event(tmp_path: Path) -> None:
    """Later events are read with the present schema.

    Events of an older schema have other fields, so they count as damaged.
    """
    path = tmp_path / "ks.t.events"
    ends = _file_of(path, 1, 2)
    _flip(path, 40)
    held = HeldEvents(path)
    assert _read_all(held) == [1, 2]
    assert 0 < held.take_damage() < ends[0]
    foreign = MUTATION_EVENTS_SCHEMA_TEXT.replace('"segment_id","type":"long"', '"segment_id","type":"string"')
    assert foreign != MUTATION_EVENTS_SCHEMA_TEXT
    path.write_bytes(frame_of(foreign.encode()) + frame_of(message_without_events(1)) + path.read_bytes()[ends[0] :])
    assert _read_all(HeldEvents(path)) == []


def test_a_damaged_file_is_kept_when_the_rest_is_done(tmp_path: Path) -> None:
    """Its name is not one of held events, so it is not read again."""
    path = tmp_path / "ks.t.events"
    for _ in range(2):
        ends = _file_of(path, 1, 2)
        _flip(path, ends[0] - 1)
        held = HeldEvents(path)
        assert _read_all(held) == [2]
        assert holds_events(tmp_path)
        held.remove()
        (tmp_path / "too-large").mkdir(exist_ok=True)
        assert (held.is_read, held.size, holds_events(tmp_path)) == (True, 0, False)
    assert sorted(each.name for each in tmp_path.glob("ks*")) == ["ks.t.events.damaged", "ks.t.events.damaged1"]


def test_damage_anywhere_loses_that_place_only(tmp_path: Path) -> None:
    """Damage each byte of a file separately. Exactly the other messages are read, in order."""
    path = tmp_path / "ks.t.events"
    ends = _file_of(path, 1, 2, 3)
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole)
        _flip(path, position)
        hit = next(number for number, end in enumerate(ends, start=1) if position < end)
        in_schema = position < ends[0] - len(frame_of(message_without_events(1)))
        expected = [1, 2, 3] if in_schema else [each for each in (1, 2, 3) if each != hit]
        found = HeldEvents(path)
        # A last frame without its length looks like a frame that was not written to its end.
        assert _read_all(found) == expected, position
        assert found.take_damage() > 0 or (hit == 3 and not in_schema), position


def test_a_message_that_goes_bad_while_the_agent_runs_is_left_out_and_told(tmp_path: Path) -> None:
    """Bytes are damaged after the scan at the start. Exactly the other messages are read, and the file is kept."""
    path, kept = tmp_path / "ks.t.events", tmp_path / "ks.t.events.damaged"
    ends = _file_of(path, 1, 2, 3)
    schema_end = ends[0] - len(frame_of(message_without_events(1)))
    for position in [*range(0, schema_end, 251), *range(schema_end, ends[-1], 5)]:
        path.unlink(missing_ok=True)
        _file_of(path, 1, 2, 3)
        held = HeldEvents(path)
        _flip(path, position)
        hit = next(number for number, end in enumerate(ends, start=1) if position < end)
        expected = [1, 2, 3] if position < schema_end else [each for each in (1, 2, 3) if each != hit]
        assert _read_all(held) == expected, position
        assert held.is_read and 0 < held.take_damage() < ends[0], position
        held.remove()
        assert (path.exists(), kept.exists()) == (False, True), position
        kept.unlink()


def test_bytes_that_go_bad_beside_known_damage_count_once(tmp_path: Path) -> None:
    """The second frame was damaged before the start. Then the first one is damaged, and a rewind reads both again."""
    path = tmp_path / "ks.t.events"
    ends = _file_of(path, 1, 2, 3, 4)
    _flip(path, ends[1] - 1)
    held = HeldEvents(path)
    assert (_read_all(held), held.take_damage()) == ([1, 3, 4], ends[1] - ends[0])
    _flip(path, ends[0] - 1)
    held.rewind()
    assert (_read_all(held), held.take_damage()) == ([3, 4], len(frame_of(message_without_events(1))))
    held.append([message_without_events(5)])
    assert (_read_all(held), held.take_damage()) == ([5], 0)


def test_what_is_appended_behind_bytes_that_went_bad_is_read_also_after_a_restart(tmp_path: Path) -> None:
    """The last message lost bytes while the process ran. The next message must not fill its place."""
    path = tmp_path / "ks.t.events"
    held = HeldEvents(path)
    held.append([message_without_events(1), message_without_events(2)])
    path.write_bytes(path.read_bytes()[:-20])
    assert (_read_all(held), held.take_damage()) == ([1], len(frame_of(message_without_events(2))))
    held.append([message_without_events(3)])
    assert _read_all(held) == [3]
    assert _read_all(HeldEvents(path)) == [1, 3]


def _files(folder: Path) -> TopicFiles:
    return TopicFiles("events-ks.t", folder, "ks.t.events", TableMetrics(), lambda reason: None)


@pytest.mark.parametrize("too_large", [False, True], ids=["held", "too large"])
def test_a_refused_first_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, too_large: bool) -> None:
    """The agent would count such a file as events that exist only on this disk."""
    files = _files(tmp_path)

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr("change_agent.publishing.held_events.os.fsync", refuse)
        assert not (
            files.keep_too_large(message_without_events(1)) if too_large else files.hold([message_without_events(1)])
        )
    assert not holds_events(tmp_path)
    assert files.hold([message_without_events(2)]) and holds_events(tmp_path)
    with monkeypatch.context() as full:
        full.setattr("change_agent.publishing.held_events.os.fsync", refuse)
        assert not files.hold([message_without_events(3)])
    assert _read_all(HeldEvents(tmp_path / "ks.t.events"))[:1] == [2]


def test_too_large_events_stay_until_they_are_stored_among_the_held_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk they stay where they are. The next start with free space stores them."""
    assert _files(tmp_path).keep_too_large(message_without_events(1))

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr("change_agent.publishing.held_events.os.fsync", refuse)
        files = _files(tmp_path)
    assert (files.too_large.size > 0, files.held.size) == (True, 0)
    files = _files(tmp_path)
    assert (files.too_large.size, _read_all(files.held)) == (0, [1])


@pytest.mark.parametrize("content", [b"", b"\0\0\0"], ids=["empty", "a few bytes"])
def test_the_rest_of_a_first_write_that_a_kill_ended_is_removed(tmp_path: Path, content: bytes) -> None:
    """While the table's topic can be used, no other code would remove the file."""
    (tmp_path / TOO_LARGE).mkdir()
    for each in (tmp_path / "ks.t.events", tmp_path / TOO_LARGE / "ks.t.events"):
        each.write_bytes(content)
    _files(tmp_path)
    assert not holds_events(tmp_path)
