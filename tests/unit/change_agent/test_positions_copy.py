"""PositionsCopy: which positions it copies, and which copy a fresh machine takes. The topic is in memory."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import pulsar
import pytest

from change_agent.cdc_raw.segment_key import SegmentKey, key_of_reading_again
from change_agent.errors import PublishError
from change_agent.positions import positions_copy
from change_agent.positions.copied_state import CopiedState, format_copy, maker_of, parse_copy
from change_agent.positions.copy_topic import CopyTopic
from change_agent.positions.offsets import StoredPositions, StoredSegment, format_positions, parse_positions
from change_agent.positions.positions_copy import PositionsCopy
from change_agent.positions.published_clearings import PublishedClearings
from change_agent.positions.segment_ids import SegmentIds
from change_agent.positions.stops import EVERY_TABLE, Stop, Stops, read_stops, remove_stops
from tests.agent.segment_writer import segment_bytes
from tests.agent.stages import GOLDEN, MemoryTables, StagedAgent, payloads
from tests.topics.events_topic import wait_until
from tests.topics.gaps import GAP

_ID = time.time_ns() // 1_000_000 - 10_000
_STORED = StoredPositions(segments={7: StoredSegment(position=100)}, finished=SegmentIds.of([5, 6]), until_ms=9)


def _copied(topic: _Topic) -> StoredPositions:
    parsed = None if topic.payload is None else parse_positions(topic.payload, "the copy")
    return StoredPositions() if parsed is None else parsed[1]


class _Topic:
    """A topic with the newest payload. It refuses the first `refusals` calls."""

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
    """An agent as a PositionsCopy sees it."""

    def __init__(
        self,
        topic: _Topic,
        *,
        is_fresh: bool = False,
        patience_s: float = 60.0,
        folder: Path = Path("no such folder"),
    ) -> None:
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
            self.adopted.append,
            StoredPositions() if is_fresh else self.stored,
            Stops(folder),
            PublishedClearings(folder),
            "this one",
            patience_s,
        )

    def _open(self, node_id: str) -> _Topic:
        self.opened.append(node_id)
        if len(self.opened) <= self.busy:
            raise PublishError("positions", "another agent has them")
        return self._topic


def _copy(
    topic: _Topic,
    stops: Stops,
    clearings: PublishedClearings,
    adopt: Callable[[StoredPositions], None] = lambda restored: None,
    own: StoredPositions = _STORED,
) -> PositionsCopy:
    """The copy of an agent that has stored `_STORED`."""
    latest, is_portable = lambda: _STORED, lambda: True
    return PositionsCopy(
        lambda _: topic, lambda: "node-1", latest, is_portable, adopt, own, stops, clearings, "this one"
    )


@pytest.fixture
def topic() -> _Topic:
    """A topic without a copy."""
    return _Topic()


@pytest.fixture
def agent(topic: _Topic) -> Iterator[_Agent]:
    """An agent with a running copy."""
    made = _Agent(topic)
    made.copy.start()
    yield made
    made.copy.stop()
    assert made.copy.failure is None


def test_what_is_stored_is_copied_under_the_nodes_id(agent: _Agent, topic: _Topic) -> None:
    """The copy contains all positions and a checksum."""
    wait_until(lambda: topic.payload is not None, "a copy is made")
    assert topic.payload is not None
    parsed = parse_positions(topic.payload, "the copy")
    assert parsed is not None and parsed[1] == _STORED
    assert agent.opened == ["node-1"]


def test_no_copy_skips_what_waits_on_this_machines_disk(topic: _Topic) -> None:
    """Held events and parked mutations are acknowledged, but exist only on this disk. The last copy stays."""
    made = _Agent(topic)
    made.is_portable = False
    made.copy.start()
    made.copy.stop()
    assert topic.payload is None


def test_a_broker_that_is_away_gets_the_copy_later(caplog: pytest.LogCaptureFixture) -> None:
    """The log reports it once."""
    topic = _Topic(refusals=2)
    made = _Agent(topic)
    made.copy.start()
    wait_until(lambda: topic.payload is not None, "a copy is made", 20)
    made.copy.stop()
    assert [each.getMessage() for each in caplog.records] == ["positions: not now; trying again"]


def test_an_agent_waits_for_the_one_that_has_the_nodes_copy(caplog: pytest.LogCaptureFixture) -> None:
    """The agent waits although it has positions of its own. The log reports it once, and a stop ends the wait."""
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
    tmp_path: Path, payload: bytes | None, expected: StoredPositions | None
) -> None:
    """The positions of a damaged copy are ignored: events are published twice, and none is skipped."""
    made = _Agent(_Topic(payload), is_fresh=True, folder=tmp_path)
    made.copy.start()
    assert made.copy.is_ready.wait(20)
    made.copy.stop()
    assert made.adopted == ([] if expected is None else [expected])


def test_restoring_waits_for_the_broker_and_ends_when_the_agent_stops() -> None:
    """An agent that assumed that there is no copy would publish everything again."""
    made = _Agent(_Topic(refusals=1_000_000), is_fresh=True, patience_s=0.0)
    threading.Timer(0.2, made.copy.stopping.set).start()
    assert made.copy.restore() is None
    assert made.copy.stopping.is_set()
    again = _Agent(_Topic(format_positions(0, _STORED), refusals=1), is_fresh=True)
    assert again.copy.restore() == _STORED


class _Machine:
    """An agent with a copy of its positions. `topic` exists longer than the machine."""

    def __init__(self, folder: Path, topic: _Topic, patience_s: float = 60.0) -> None:
        folder.mkdir(exist_ok=True)
        self.is_portable = True
        self.agent = StagedAgent(folder, MemoryTables(GOLDEN.tables()), deletable=self._deletable)
        self.copy = PositionsCopy(
            lambda _: topic,
            lambda: "node-1",
            self._stored,
            lambda: self.is_portable,
            self.agent.adopt,
            self.agent.stored,
            self.agent.stops,
            PublishedClearings(self.agent.work),
            maker_of(self.agent.work),
            patience_s,
        )

    def _stored(self) -> StoredPositions:
        return self.agent.stored_now()

    def _deletable(self, finished: SegmentIds) -> Container[SegmentKey]:
        return self.copy.deletable(finished)

    def start(self) -> None:
        self.copy.start()
        assert self.copy.is_ready.wait(20)
        self.agent.start()

    def finish(self, segment_id: int) -> None:
        """Add a segment, and wait until it is stored as finished."""
        content = segment_bytes(segment_id, [payloads(3)])
        self.agent.segment(segment_id, content, f"{len(content)}\nCOMPLETED")
        wait_until(lambda: segment_id in self.agent.stored_now().finished, "it is finished")

    def stop(self) -> None:
        self.agent.stop()
        self.copy.stop()
        assert self.copy.failure is None


def test_a_segment_is_deleted_only_when_the_copy_has_it_as_finished(tmp_path: Path) -> None:
    """If the machine is lost while the copy has the segment as open, the new machine needs the file."""
    topic = _Topic()
    first = _Machine(tmp_path / "first", topic)
    first.agent.segment(_ID, segment_bytes(_ID, [payloads(3)]), "150")
    first.start()
    wait_until(lambda: _ID in _copied(topic).segments, "the copy has it as open")
    topic.refusals = 1_000_000
    first.agent.index(_ID, "400\nCOMPLETED")
    wait_until(lambda: _ID in first.agent.stored_now().finished, "it is finished")
    time.sleep(0.3)
    assert len(first.agent.files()) == 2
    topic.refusals = 0
    wait_until(lambda: first.agent.files() == [], "it is deleted")
    copied = _copied(topic)
    first.stop()
    assert _ID in copied.finished
    second = _Machine(tmp_path / "second", _Topic())
    second.agent.follower.adopt(copied)
    second.start()
    second.finish(_ID + 1)
    second.stop()
    assert second.agent.gaps == []


def test_a_machine_that_comes_back_goes_on_where_the_other_one_ended(tmp_path: Path) -> None:
    """Its own positions are older, and have segments as open that the other machine has finished."""
    topic = _Topic()
    first = _Machine(tmp_path / "first", topic)
    first.agent.segment(_ID, segment_bytes(_ID, [payloads(3)]), "150")
    first.start()
    wait_until(lambda: _ID in _copied(topic).segments, "the copy has it as open")
    first.stop()
    second = _Machine(tmp_path / "second", topic)
    second.start()
    for segment_id in (_ID, _ID + 1):
        second.finish(segment_id)
    wait_until(lambda: second.agent.files() == [], "all is deleted")
    second.stop()
    for each in first.agent.files():
        (first.agent.cdc_raw / each).unlink()
    back = _Machine(tmp_path / "first", topic)
    back.start()
    back.finish(_ID + 2)
    back.stop()
    assert back.agent.gaps == []
    assert _ID + 1 in back.agent.stored_now().finished


class _Tables(MemoryTables):
    """Record the positions before which changes of the schema may be missing."""

    def __init__(self) -> None:
        super().__init__(GOLDEN.tables())
        self.missing: list[tuple[int, int]] = []

    def forget_places_before(self, segment_id: int, position: int) -> None:
        self.missing.append((segment_id, position))


def test_an_agent_that_takes_over_asks_the_node_for_the_schema_that_the_other_one_has_seen_change(
    tmp_path: Path,
) -> None:
    """Its own history lacks the changes of that time. With it, a table that got `cdc = true` would be skipped."""
    tables = _Tables()
    agent = StagedAgent(tmp_path, tables)
    agent.adopt(StoredPositions(segments={_ID: StoredSegment(position=150)}, finished=SegmentIds.of([_ID - 1])))
    content = segment_bytes(_ID, [payloads(3), payloads(2)])
    agent.segment(_ID, content, f"{len(content)}\nCOMPLETED")
    tables.answers = False
    agent.start()
    wait_until(lambda: bool(tables.missing), "the part that the other one has read is known to be missing")
    time.sleep(0.3)
    assert (agent.published, agent.segments.has_listed, tables.missing) == ([], False, [(_ID, 150)])
    tables.answers = True
    wait_until(lambda: agent.files() == [], "it is read and deleted")
    agent.stop()


def test_a_machine_keeps_its_own_positions_if_they_are_farther_than_the_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The copy is some seconds old, missing or damaged."""
    old = replace(_STORED, segments={7: StoredSegment(position=99)})
    for payload in (format_positions(0, old), format_positions(0, _STORED), None, b"00000000\n{}"):
        made = _Agent(_Topic(payload), folder=tmp_path)
        made.copy.start()
        assert made.copy.is_ready.wait(20)
        made.copy.stop()
        assert made.adopted == []
    assert _Agent(_Topic(refusals=1_000_000), patience_s=0.0).copy.restore() is None
    assert [each.getMessage() for each in caplog.records if "own positions" in each.getMessage()] == [
        "the copy of this node's positions is damaged; this machine's own positions are used",
        "positions: not now; this machine's own positions are used",
    ]


@pytest.mark.parametrize("was_finished", [True, False])
def test_a_segment_that_waits_for_a_second_reading_is_read_although_another_machine_has_read_it_twice(
    tmp_path: Path, was_finished: bool
) -> None:
    """The file was queued on this machine before the start.

    The other machine's position belongs to a file of its own.
    """
    again = key_of_reading_again(_ID)
    copied = StoredPositions(
        segments={} if was_finished else {again: StoredSegment(position=10_000)},
        finished=SegmentIds.of([_ID, again] if was_finished else [_ID]),
    )
    machine = _Machine(tmp_path, _Topic(format_positions(0, copied)))
    queue = machine.agent.work / "reprocess"
    queue.mkdir()
    (queue / f"CommitLog-7-{_ID}.log").write_bytes(segment_bytes(_ID, [payloads(3)]))
    machine.start()
    wait_until(lambda: not list(queue.iterdir()), "it is deleted")
    machine.stop()
    assert len(machine.agent.published) == 3


def test_finished_segments_do_not_wait_for_the_interval_of_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each finished segment causes a copy."""
    monkeypatch.setattr(positions_copy, "_INTERVAL_S", 1_000.0)
    machine = _Machine(tmp_path, _Topic())
    machine.start()
    for segment_id in (_ID, _ID + 1):
        machine.finish(segment_id)
        wait_until(lambda: machine.agent.files() == [], "it is deleted", 10)
    machine.stop()


def test_while_no_copy_may_be_made_segments_are_deleted_without_it(tmp_path: Path) -> None:
    """Held events would be lost with the machine, so a gap would be reported correctly."""
    topic = _Topic()
    machine = _Machine(tmp_path, topic)
    machine.is_portable = False
    machine.start()
    machine.finish(_ID)
    wait_until(lambda: machine.agent.files() == [], "it is deleted")
    machine.stop()
    assert topic.payload is None


def test_a_new_machine_reports_the_segments_whose_events_were_only_on_the_disk_of_the_lost_one(tmp_path: Path) -> None:
    """The copy had no segment as open when events were held first, so nothing else says that there were later ones."""
    topic = _Topic()
    first = _Machine(tmp_path / "first", topic)
    first.start()
    first.finish(_ID)
    wait_until(lambda: _ID in _copied(topic).finished, "it is copied")
    first.is_portable = False
    for segment_id in (_ID + 1, _ID + 2):
        first.finish(segment_id)
    wait_until(lambda: first.agent.files() == [], "all is deleted")
    first.stop()
    copied = _copied(topic)
    assert (copied.finished, copied.segments) == (
        SegmentIds.of([_ID]),
        {_ID + 1: StoredSegment(position=0), _ID + 2: StoredSegment(position=0)},
    )
    second = _Machine(tmp_path / "second", topic)
    second.start()
    wait_until(lambda: bool(second.agent.gaps), "the gap is found")
    record = second.agent.gaps[0].records[0]
    assert (record.first_segment_id, record.first_position, record.last_segment_id) == (_ID + 1, 0, _ID + 2)
    assert EVERY_TABLE in second.agent.stops.reasons()
    second.stop()


def test_segments_whose_events_are_held_are_deleted_when_the_copy_knows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a limit the copy would become too large for a message: one segment that is gone is enough for a gap."""
    monkeypatch.setattr(positions_copy, "_MOST_UNREAD", 2)
    topic = _Topic()
    machine = _Machine(tmp_path, topic)
    machine.start()
    machine.finish(_ID)
    wait_until(lambda: _ID in _copied(topic).finished, "it is copied")
    machine.is_portable = False
    topic.refusals = 1_000_000
    machine.finish(_ID + 1)
    time.sleep(0.3)
    assert len(machine.agent.files()) == 2
    topic.refusals = 0
    wait_until(lambda: machine.agent.files() == [], "it is deleted")
    for segment_id in range(_ID + 2, _ID + 5):
        machine.finish(segment_id)
        wait_until(lambda: machine.agent.files() == [], "it is deleted")
    machine.stop()
    assert _copied(topic).segments.keys() == {_ID + 1, _ID + 2}
    assert "no copy of this node's positions" not in caplog.text


def test_a_broker_that_refuses_the_copy_does_not_fill_cdc_raw(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After a while, segments are deleted without a copy. The log reports it once."""
    topic = _Topic()
    machine = _Machine(tmp_path, topic, patience_s=0.3)
    machine.start()
    topic.refusals = 1_000_000
    for segment_id in (_ID, _ID + 1):
        machine.finish(segment_id)
        wait_until(lambda: machine.agent.files() == [], "it is deleted")
    [told] = [each.getMessage() for each in caplog.records if "finished segments" in each.getMessage()]
    assert told.startswith("no copy of this node's positions could be stored for 0 s (positions: not now)")
    topic.refusals = 0
    wait_until(lambda: topic.payload is not None and _ID + 1 in _copied(topic).finished, "a copy is made")
    machine.stop()


def test_before_the_copy_is_claimed_nobody_is_told_that_it_is_late(caplog: pytest.LogCaptureFixture) -> None:
    """The start waits for Pulsar, and nothing is read meanwhile."""
    made = _Agent(_Topic(), patience_s=0.0)
    assert 5 in made.copy.deletable(_STORED.finished)
    assert caplog.records == []
    made.copy.is_ready.set()
    assert 5 in made.copy.deletable(_STORED.finished)
    assert len(caplog.records) == 1


def test_a_segment_that_is_read_again_is_not_deleted_because_an_earlier_copy_has_it_as_finished() -> None:
    """The segment was lost and came back."""
    made = _Agent(_Topic())
    made.copy.is_ready.set()
    made.copy._copied = CopiedState(positions=_STORED)
    deletable = made.copy.deletable(SegmentIds.of([5, 8]))
    assert [each in deletable for each in (5, 6, 8)] == [True, False, False]


_GAP = replace(GAP, keyspace="ks", table="a", first_segment_id=_ID, last_segment_id=_ID, from_ms=None, to_ms=10)


def _stops_of(topic: _Topic) -> Mapping[str, Stop]:
    copied = None if topic.payload is None else parse_copy(topic.payload, "the copy")
    return {} if copied is None else copied.stops


def test_a_new_machine_stops_the_tables_that_the_lost_one_had_stopped(tmp_path: Path) -> None:
    """Their gaps are open, so a time behind these gaps would be wrong. They end as on the first machine."""
    topic = _Topic()
    first = _Machine(tmp_path / "first", topic)
    first.start()
    first.finish(_ID)
    first.agent.stops.note("ks.a", "its topic was deleted", [_GAP])
    first.agent.stops.note("ks.b", "a segment is damaged")
    wait_until(lambda: _stops_of(topic).keys() == {"ks.a", "ks.b"}, "the copy has them")
    second = _Machine(tmp_path / "second", topic)
    second.start()
    assert second.agent.stops.reasons() == {"ks.a": "its topic was deleted", "ks.b": "a segment is damaged"}
    assert read_stops(second.agent.work) == second.agent.stops.reasons()
    assert _ID in second.agent.stored_now().finished
    assert second.agent.stops.close([_GAP.closed(1, "sent")]) == ["ks.a"]
    wait_until(lambda: _stops_of(topic) == {"ks.b": Stop(reason="a segment is damaged")}, "the copy has that")
    for each in (second, first):
        each.stop()


def test_a_stop_is_in_the_copy_although_its_positions_may_not_be_copied(tmp_path: Path) -> None:
    """Events of a topic that was deleted are held on the disk, and that is why its table is stopped."""
    before = StoredPositions(finished=SegmentIds.of([5, 6]), until_ms=9)
    topic = _Topic(format_copy(CopiedState(positions=before, maker="another")))
    machine = _Machine(tmp_path, topic)
    machine.is_portable = False
    machine.start()
    machine.finish(_ID)
    machine.agent.stops.note("ks.a", "its topic was deleted", [_GAP])
    wait_until(lambda: _stops_of(topic).keys() == {"ks.a"}, "the copy has it")
    machine.stop()
    assert _copied(topic) == replace(before, segments={_ID: StoredSegment(position=0)})


def test_a_restart_does_not_bring_back_a_stop_that_an_operator_has_ended(tmp_path: Path) -> None:
    """The agent was down, so its last copy still has the stop."""
    topic = _Topic()
    machine = _Machine(tmp_path, topic)
    machine.start()
    machine.finish(_ID)
    machine.agent.stops.note("ks.a", "a segment is damaged")
    machine.stop()
    assert _stops_of(topic).keys() == {"ks.a"}
    remove_stops(machine.agent.work, None)
    again = _Machine(tmp_path, topic)
    again.start()
    wait_until(lambda: not _stops_of(topic), "the copy does not have it either")
    again.stop()
    assert not read_stops(again.agent.work)


def test_a_machine_that_comes_back_has_its_own_stops_and_those_of_the_other_one(tmp_path: Path) -> None:
    """Also if its own positions are farther. A stop ends when both would end."""
    stops = {
        "ks.a": Stop(reason="one", gaps=(_GAP,)),
        "ks.b": Stop(reason="damaged", gaps=(_GAP,)),
        "ks.c": Stop(reason="other"),
    }
    machine = _Machine(tmp_path, _Topic(format_copy(CopiedState(stops=stops, maker="another"))))
    later = replace(_GAP, first_segment_id=_ID + 5, last_segment_id=_ID + 6, to_ms=20)
    machine.agent.stops.note("ks.a", "first", [later])
    machine.agent.stops.note("ks.b", "first")
    machine.start()
    machine.stop()
    assert read_stops(tmp_path / "work") == {"ks.a": "first", "ks.b": "first; damaged", "ks.c": "other"}
    assert Stops(tmp_path / "work").close([later.closed(1, "sent")]) == []
    assert Stops(tmp_path / "work").close([_GAP.closed(1, "sent")]) == ["ks.a"]


def test_a_node_that_often_goes_from_one_machine_to_another_has_each_reason_once(tmp_path: Path) -> None:
    """Otherwise the reasons of both would double each time, until the broker refuses the copy."""
    machines = [Stops(tmp_path / name) for name in ("first", "second")]
    for each in ("first", "second"):
        (tmp_path / each).mkdir()
    for stops, reason in zip(machines, ("damaged; repair it", "disabled"), strict=True):
        stops.note("ks.a", reason)
    for turn in range(6):
        assert machines[turn % 2].restore(machines[1 - turn % 2].known())
        if turn == 2:
            machines[0].add("ks.a", "unlogged")
    expected = {"ks.a": "damaged; repair it; disabled; unlogged"}
    assert [each.reasons() for each in machines] == [expected, expected]


@pytest.mark.parametrize("is_portable", [True, False])
def test_a_copy_that_could_not_be_read_at_the_start_is_read_before_it_is_replaced(
    tmp_path: Path, is_portable: bool
) -> None:
    """Nobody else knows the stops that another machine has noted; nor its positions, if none may be copied here."""
    topic = _Topic()
    machine = _Machine(tmp_path, topic)
    machine.start()
    machine.finish(_ID)
    machine.stop()
    topic.payload = format_copy(CopiedState(positions=_STORED, stops={"ks.a": Stop(reason="why")}, maker="another"))
    topic.refusals = 1
    again = _Machine(tmp_path, topic, patience_s=0.0)
    again.is_portable = is_portable
    again.start()
    assert not read_stops(again.agent.work)
    again.finish(_ID + 1)
    again.agent.stops.note("ks.b", "own")
    wait_until(lambda: _stops_of(topic).keys() == {"ks.a", "ks.b"}, "a copy is made")
    assert read_stops(again.agent.work) == {"ks.a": "why", "ks.b": "own"}
    again.stop()
    unread = {7: StoredSegment(position=100), _ID: StoredSegment(position=0), _ID + 1: StoredSegment(position=0)}
    expected = again.agent.stored_now() if is_portable else replace(_STORED, segments=unread)
    assert _copied(topic) == expected


def _of_newer_version(content: bytes) -> bytes:
    body = content.partition(b"\n")[2].replace(b'"format": 1', b'"format": 2')
    return b"%08x\n%s" % (zlib.crc32(body), body)


@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize("why", ["is damaged", "is of a newer version of the agent"])
def test_a_copy_that_cannot_be_read_stops_every_table_before_it_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_late: bool, why: str
) -> None:
    """It may have had stops of another machine. Without them a resolved timestamp could pass an open gap."""
    topic = _Topic()
    machine = _Machine(tmp_path, topic)
    machine.start()
    machine.finish(_ID)
    machine.stop()
    content = format_copy(CopiedState(positions=_STORED, stops={"ks.a": Stop(reason="a gap")}, maker="another"))
    content = content[:-1] if why == "is damaged" else _of_newer_version(content)
    topic.payload, topic.refusals = content, int(is_late)
    again = _Machine(tmp_path, topic, patience_s=0.0 if is_late else 60.0)
    in_the_way = again.agent.work / "stops.tmp"
    in_the_way.mkdir()
    again.copy.start()
    assert again.copy.is_ready.wait(3) is is_late
    again.copy.stop()
    again.agent.start()
    again.agent.stop()
    assert topic.payload == content
    in_the_way.rmdir()
    once_more = _Machine(tmp_path, topic)
    once_more.start()
    wait_until(lambda: topic.payload != content, "it is replaced")
    once_more.stop()
    reason = (
        f"the copy of this node's positions {why}, and may have had stops of another machine: repair the tables with"
        " cdc spark verify --repair, then run cdc agent resume-progress"
    )
    assert read_stops(tmp_path / "work") == {EVERY_TABLE: reason}
    assert _stops_of(topic) == {EVERY_TABLE: Stop(reason=reason)}
    own = f"the copy of this node's positions {why}; this machine's own positions are used"
    stopped = (
        "the copy of this node's positions stops the progress of all tables: cdc agent resume-progress --list says why"
    )
    assert {own, stopped} <= {each.getMessage() for each in caplog.records}


def test_nothing_is_read_or_copied_before_the_stops_are_written(tmp_path: Path) -> None:
    """The disk is full. Without them in the file, the next start would not have them."""
    content = format_copy(CopiedState(positions=_STORED, stops={"ks.a": Stop(reason="why")}, maker="another"))
    topic = _Topic(content)
    machine = _Machine(tmp_path, topic)
    in_the_way = machine.agent.work / "stops.tmp"
    in_the_way.mkdir()
    machine.copy.start()
    assert not machine.copy.is_ready.wait(0.3)
    machine.copy.stop()
    assert topic.payload == content
    assert machine.agent.stored_now() == StoredPositions()
    again = _copy(topic, machine.agent.stops, PublishedClearings(machine.agent.work), own=StoredPositions())
    in_the_way.rmdir()
    again.start()
    assert again.is_ready.wait(20)
    again.stop()
    assert read_stops(machine.agent.work) == {"ks.a": "why"}
    machine.agent.start()
    machine.agent.stop()


def test_an_agent_that_ends_before_it_has_stored_the_copied_positions_leaves_the_copy(tmp_path: Path) -> None:
    """The disk is full, and the agent is stopped: its own positions are older."""
    content = format_positions(0, replace(_STORED, segments={8: StoredSegment(position=1)}))
    topic = _Topic(content)

    def adopt(restored: StoredPositions) -> None:
        copy.stopping.set()

    copy = _copy(topic, Stops(tmp_path), PublishedClearings(tmp_path), adopt=adopt)
    copy.run()
    assert (topic.payload, copy.is_ready.is_set()) == (content, False)


def test_published_truncations_are_taken_before_anything_is_read_and_stay_if_the_copy_has_none(tmp_path: Path) -> None:
    """The disk is full at first. An earlier version has made the second copy."""
    state = CopiedState(positions=_STORED, clearings={"truncations": {}, "alive": []}, maker="another")
    machine = _Machine(tmp_path, _Topic(format_copy(state)))
    in_the_way = machine.agent.work / "clearings.tmp"
    in_the_way.mkdir()
    machine.copy.start()
    assert not machine.copy.is_ready.wait(0.3)
    in_the_way.rmdir()
    assert machine.copy.is_ready.wait(20)
    machine.copy.stop()
    clearings = PublishedClearings(machine.agent.work)
    assert clearings.read() == state.clearings
    later = format_positions(0, replace(_STORED, segments={8: StoredSegment(position=1)}))
    again = _copy(_Topic(later), machine.agent.stops, clearings)
    assert again.restore() is not None
    assert clearings.read() == state.clearings
    machine.agent.start()
    machine.agent.stop()


def test_clearings_that_are_too_many_for_a_message_do_not_keep_positions_from_being_copied() -> None:
    """A broker refuses messages of more than 5 MiB."""
    content = format_copy(CopiedState(positions=_STORED, clearings={"alive": ["x" * 40] * 30_000}))
    assert parse_copy(content, "the copy") == CopiedState(positions=_STORED)


def test_copies_of_the_version_before_have_no_stops_and_those_of_this_one_are_read_by_it() -> None:
    """It reads positions, and passes over fields that it does not know."""
    stops = {"ks.a": Stop(reason="why", gaps=(_GAP,))}
    copied = CopiedState(positions=_STORED, stops=stops, clearings={"truncations": {}, "alive": []}, maker="one")
    assert parse_copy(format_copy(copied), "the copy") == copied
    assert parse_positions(format_copy(copied), "the copy") == (0, _STORED)
    assert parse_copy(format_positions(0, _STORED), "the copy") == CopiedState(positions=_STORED)
    assert parse_copy(b"00000000\n{}", "the copy") is None


def test_stops_that_cannot_be_read_stop_every_table() -> None:
    """A later version may write them in another form."""
    content = format_positions(0, _STORED, {"maker": "one", "stops": {"ks.a": {"reason": "why", "gaps": ["00"]}}})
    copied = parse_copy(content, "the copy")
    assert copied is not None and copied.stops.keys() == {EVERY_TABLE}
    assert copied.stops[EVERY_TABLE].reason.startswith("the copy cannot be read (")


def test_gaps_that_are_too_many_for_a_message_do_not_keep_positions_from_being_copied() -> None:
    """A broker refuses messages of more than 5 MiB. The stops stay, until an operator ends them."""
    gaps = tuple(replace(_GAP, first_position=number) for number in range(6_000))
    stops = {EVERY_TABLE: Stop(reason="segments went", gaps=gaps), "ks.b": Stop(reason="damaged")}
    content = format_copy(CopiedState(positions=_STORED, stops=stops))
    assert len(content) < 1_000
    assert parse_copy(content, "the copy") == CopiedState(
        positions=_STORED,
        stops={
            EVERY_TABLE: Stop(
                reason="segments went; its 6000 gaps are too many for the copy of positions: when they are closed, run cdc"
                " agent resume-progress"
            ),
            "ks.b": Stop(reason="damaged"),
        },
    )


def test_a_working_directory_keeps_its_name(tmp_path: Path) -> None:
    """It says whose copy it is after a restart; an empty file is of a disk that was full."""
    assert maker_of(tmp_path) == maker_of(tmp_path) != ""
    (tmp_path / "copy-maker.txt").write_text("")
    assert maker_of(tmp_path) == maker_of(tmp_path) != ""


@pytest.mark.parametrize(("maker", "is_taken"), [("another", True), ("this one", False), ("", False)])
def test_of_positions_that_are_as_far_those_of_the_machine_that_had_the_node_last_count(
    maker: str, is_taken: bool
) -> None:
    """It may have finished segments below that place, and deleted them: they would be reported as a gap."""
    copied = replace(_STORED, segments={7: StoredSegment(position=100)}, finished=SegmentIds.of([3, 4, 5, 6]))
    made = _Agent(_Topic(format_copy(CopiedState(positions=copied, maker=maker))))
    made.copy.start()
    assert made.copy.is_ready.wait(20)
    made.copy.stop()
    assert made.adopted == ([copied] if is_taken else [])


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
    """The next attempt would take its consumer for another agent."""
    client = _Client()
    with pytest.raises(PublishError, match="timeout"):
        CopyTopic(cast(pulsar.Client, client), "positions")
    CopyTopic(cast(pulsar.Client, client), "positions")
    assert client.consumers == 1
