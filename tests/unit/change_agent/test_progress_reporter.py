"""ProgressReporter and Stops: real progress records, and a producer in memory."""

from __future__ import annotations

import fcntl
import itertools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

import pytest

from change_agent.errors import PublishError
from change_agent.positions.stops import EVERY_TABLE, Stops, read_stops, remove_stops
from change_agent.publishing.event_producers import OnResult
from change_agent.reporting.checkpoints import with_newest
from change_agent.reporting.cluster_looks import ClusterLooks, ClusterView
from change_agent.reporting.progress_reporter import (
    ProgressReporter,
    ProgressState,
    newest_published_ms,
    stored_progress,
)
from change_agent.reporting.topic_prefix import take_prefix
from change_agent.segments.table_stops import note_disabled, note_left_out, note_unlogged, table_stops
from schemas.gap_record import GapRecord
from schemas.progress_record import UNKNOWN_POSITION, Checkpoint, Peer, ProgressRecord, TopicPosition, decode_progress
from schemas.table_metadata import TableMetadata
from tests.cql.tables import table_of
from tests.topics.events_topic import wait_until
from tests.topics.gaps import GAP

_NODE = UUID(int=1)
_LEDGER_5 = (TopicPosition(5, 1),)
_DAY_MS = 86_400_000
_DEFAULT_PREFIX = "persistent://public/default/cdc-events-"
_OTHER_PREFIX = "persistent://public/default/other-"


def _table(name: str, number: int, keyspace: str = "ks") -> TableMetadata:
    return table_of({}, name=f"{keyspace}.{name}", table_id=UUID(int=number), cdc=True)


@dataclass
class _Line:
    """The checkpoints of a publisher, and a producer."""

    checkpoints: dict[tuple[str, str], Checkpoint] = field(default_factory=dict)
    firsts: dict[tuple[str, str], tuple[TopicPosition, ...]] = field(default_factory=dict)
    sent: list[tuple[str | None, ProgressRecord]] = field(default_factory=list)
    refuses: bool = False
    last_position: TopicPosition = UNKNOWN_POSITION

    def checkpoint(self, keyspace: str, table: str) -> Checkpoint | None:
        return self.checkpoints.get((keyspace, table))

    def first_positions(self, keyspace: str, table: str) -> tuple[TopicPosition, ...]:
        return self.firsts.get((keyspace, table), ())

    def stopped(self, keyspace: str, table: str) -> str | None:
        return None

    def send(self, payload: bytes, key: str | None, on_result: OnResult) -> bool:
        if not self.refuses:
            self.sent.append((key, decode_progress(payload)))
        on_result("refused" if self.refuses else None)
        return True

    def is_connected(self) -> bool:
        return True

    def close(self) -> None:
        return


def _state() -> ProgressState:
    return ProgressState(
        node_id=_NODE,
        tables=[_table("a", 1), _table("b", 2)],
        stops={("ks", "a"): None, ("ks", "b"): "parked"},
        behind=None,
    )


def _view(*others: UUID) -> ClusterView:
    return ClusterView(
        peers=[Peer(each, "10.0.0.1", "dc1") for each in (_NODE, *others)],
        replication={"ks": {"class": "SimpleStrategy"}, "other": {}},
    )


def _reporter(line: _Line, folder: Path, ask: Callable[[], ClusterView | None] = _view) -> ProgressReporter:
    return ProgressReporter(folder, lambda: line, _state, ask, line, 0.01)


def test_a_record_is_sent_for_each_new_time(tmp_path: Path) -> None:
    """Its key is the node's id. A stopped table has its reason."""
    line = _Line({("ks", "a"): Checkpoint(1000, (TopicPosition(5, 1),))})
    reporter = _reporter(line, tmp_path)
    reporter.start()
    wait_until(lambda: len(line.sent) == 1, "the first record is sent")
    line.checkpoints["ks", "a"] = Checkpoint(2000, (TopicPosition(5, 2),))
    reporter.note()
    wait_until(lambda: len(line.sent) == 2, "the second record is sent")
    reporter.stop()
    key, record = line.sent[-1]
    assert key == str(_NODE)
    first, second = record.tables
    assert [each.resolved_ms for each in first.checkpoints] == [2000, 1000]
    assert (second.checkpoints, second.stopped) == ((), "parked")
    assert record.replication == {"ks": {"class": "SimpleStrategy"}}


def test_times_from_before_the_first_event_after_a_restart_get_its_position(tmp_path: Path) -> None:
    """Otherwise a reader would take the end of the topic for their position, and a table with a new backlog would not be
    complete until a time before the restart."""
    before = (TopicPosition(5, 7), TopicPosition(6, 2))
    line = _Line({("ks", "a"): Checkpoint(1000, before)})
    _after_a_record(line, tmp_path)
    line.checkpoints["ks", "a"] = Checkpoint(2000)  # the agent was started again, and the table is quiet
    reporter = _reporter(line, tmp_path)
    reporter.start()
    wait_until(lambda: _times(line) == [2000, 1000], "a record of the quiet table is sent")
    line.firsts["ks", "a"] = (TopicPosition(5, 8), UNKNOWN_POSITION)
    line.checkpoints["ks", "a"] = Checkpoint(9000, (TopicPosition(5, 40), UNKNOWN_POSITION))
    reporter.note()
    wait_until(lambda: _times(line)[0] == 9000, "a record of the events is sent")
    reporter.stop()
    assert list(line.sent[-1][1].tables[0].checkpoints) == [
        Checkpoint(9000, (TopicPosition(5, 40), UNKNOWN_POSITION)),
        Checkpoint(2000, (TopicPosition(5, 8), UNKNOWN_POSITION)),
        Checkpoint(1000, before),
    ]


def _times(line: _Line) -> list[int]:
    return [each.resolved_ms for each in line.sent[-1][1].tables[0].checkpoints] if line.sent else []


class _JoinedLine(_Line):
    """A node joins the cluster while the agent makes a record, after the agent has taken the newest time."""

    has_joined = False

    def checkpoint(self, keyspace: str, table: str) -> Checkpoint | None:
        try:
            return super().checkpoint(keyspace, table)
        finally:
            self.has_joined = True


def test_a_time_is_published_with_all_nodes_that_may_have_answered_a_write_before_it(tmp_path: Path) -> None:
    """Without the node that joined, a reader would not wait for its agent."""
    line = _JoinedLine({("ks", "a"): Checkpoint(1000, _LEDGER_5)})
    reporter = _reporter(line, tmp_path, lambda: _view(UUID(int=7)) if line.has_joined else _view())
    reporter.start()
    wait_until(lambda: len(line.sent) == 1, "a record is sent")
    reporter.stop()
    [(_, record)] = line.sent
    assert record.tables[0].checkpoints
    assert [each.host_id for each in record.peers] == [_NODE, UUID(int=7)]


def test_times_wait_while_the_node_does_not_say_who_is_in_the_cluster(tmp_path: Path) -> None:
    """The record is sent, with the last times and the nodes that were known at them."""
    line = _Line({("ks", "a"): Checkpoint(1000, _LEDGER_5)})
    answers: list[ClusterView | None] = [_view(UUID(int=7))]
    reporter = _reporter(line, tmp_path, lambda: answers[0])
    reporter.start()
    wait_until(lambda: len(line.sent) == 1, "a record is sent")
    answers[0] = None
    line.checkpoints["ks", "a"] = Checkpoint(2000, (TopicPosition(5, 2),))
    reporter.note()
    time.sleep(0.2)
    reporter.stop()
    assert [each.resolved_ms for _, record in line.sent for each in record.tables[0].checkpoints] == [1000]
    after = _reporter(line, tmp_path, lambda: None)
    after.start()
    wait_until(lambda: len(line.sent) == 2, "the next agent sends a record")
    after.stop()
    _, record = line.sent[-1]
    assert [each.resolved_ms for each in record.tables[0].checkpoints] == [1000]
    assert [each.host_id for each in record.peers] == [_NODE, UUID(int=7)]


def test_a_node_that_is_down_holds_times_for_ten_seconds() -> None:
    """By then, the other nodes know all nodes that it knew, and their agents have named them."""
    now, answer = [0.0], [_view(UUID(int=7)), None]
    looks = ClusterLooks(lambda: answer[now[0] > 0], ClusterView(), lambda: now[0])
    assert looks.look()
    for now[0], is_enough in ((0.1, False), (9.9, False), (10.0, True)):
        assert looks.look() is is_enough
    assert looks.view == answer[0]


def test_a_node_that_only_cannot_give_its_schema_names_the_nodes_that_it_knows() -> None:
    """The newest nodes are published, although the agent cannot store the schema of the same answer."""
    now, joined = [0.0], replace(_view(UUID(int=7)), is_new=False)
    looks = ClusterLooks(lambda: joined if now[0] else _view(), ClusterView(), lambda: now[0])
    assert looks.look()
    now[0] = 5.0
    assert not looks.look()
    assert looks.view == joined
    now[0] = 10.0
    assert looks.look()


def test_the_ten_seconds_begin_with_the_first_look() -> None:
    """An agent may make its first record long after its start."""
    now = [60.0]
    looks = ClusterLooks(lambda: None, ClusterView(), lambda: now[0])
    now[0] = 100.0
    assert not looks.look()
    now[0] = 110.0
    assert looks.look()


def test_checkpoints_of_a_lost_topic_are_taken_back(tmp_path: Path) -> None:
    """They are also removed for the next agent, and while the publisher still has them."""
    line = _Line({("ks", "a"): Checkpoint(1000, _LEDGER_5), ("ks", "b"): Checkpoint(1000, _LEDGER_5)})
    reporter = _reporter(line, tmp_path)
    reporter.start()
    wait_until(lambda: len(line.sent) == 1, "the first record is sent")
    reporter.forget("ks", "a")
    reporter.note()
    wait_until(lambda: len(line.sent) == 2, "the second record is sent")
    assert [len(each.checkpoints) for each in line.sent[-1][1].tables] == [0, 1]
    assert [len(each.checkpoints) for each in _stored(tmp_path).tables] == [0, 1]
    later_ms = time.time_ns() // 1_000_000 + 1
    line.checkpoints["ks", "a"] = Checkpoint(later_ms, (TopicPosition(9, 0),))
    reporter.note()
    wait_until(lambda: len(line.sent) == 3, "the third record is sent")
    reporter.stop()
    assert [each.resolved_ms for each in line.sent[-1][1].tables[0].checkpoints] == [later_ms]


def _after_a_record(line: _Line, folder: Path) -> ProgressReporter:
    """A reporter that has been stopped after its first record."""
    reporter = _reporter(line, folder)
    reporter.start()
    wait_until(lambda: len(line.sent) == 1, "a record is sent")
    reporter.stop()
    return reporter


@pytest.mark.parametrize("ahead_ms", [-3_600_000, 3_600_000])
def test_checkpoints_of_a_lost_topic_do_not_come_back_with_a_restart(tmp_path: Path, ahead_ms: int) -> None:
    """The process ends before the next record. The topic exists again, so the next agent does not know of the loss.

    Checkpoints are later than now if the clock was set back.
    """
    resolved_ms = time.time_ns() // 1_000_000 + ahead_ms
    line = _Line({("ks", name): Checkpoint(resolved_ms, _LEDGER_5) for name in ("a", "b")})
    _after_a_record(line, tmp_path).forget("ks", "a")
    line.checkpoints.clear()
    after = _reporter(line, tmp_path)
    after.start()
    wait_until(lambda: len(line.sent) == 2, "another record is sent")
    after.stop()
    assert [len(each.checkpoints) for each in line.sent[-1][1].tables] == [0, 1]


class _LosingLine(_Line):
    """The topic of table a is lost after its checkpoints were added to a record, which is the last one of the agent."""

    reporter: ProgressReporter

    def checkpoint(self, keyspace: str, table: str) -> Checkpoint | None:
        if table == "b":
            self.reporter.forget("ks", "a")
            self.reporter.stopping.set()
        return super().checkpoint(keyspace, table)


def test_a_record_that_was_made_before_the_loss_does_not_bring_its_checkpoints_back(tmp_path: Path) -> None:
    """The record is stored and sent after the loss was noticed, and is the last one of the process."""
    line = _LosingLine({("ks", "a"): Checkpoint(1000, _LEDGER_5), ("ks", "b"): Checkpoint(1000, _LEDGER_5)})
    line.reporter = _reporter(line, tmp_path)
    line.reporter.run()
    for record in (line.sent[-1][1], _stored(tmp_path)):
        assert [len(each.checkpoints) for each in record.tables] == [0, 1]


def test_on_a_full_disk_the_file_with_checkpoints_of_a_lost_topic_goes(tmp_path: Path) -> None:
    """The topic must be opened, because only that frees space."""
    reporter = _after_a_record(_Line({("ks", "a"): Checkpoint(1000, _LEDGER_5)}), tmp_path)
    (tmp_path / "progress.tmp").mkdir()
    reporter.forget("ks", "a")
    assert stored_progress(tmp_path) is None
    reporter.forget("ks", "a")


def test_checkpoints_that_cannot_be_taken_from_the_disk_are_told(tmp_path: Path) -> None:
    """The loss must not be reported yet. The next attempt removes the checkpoints."""
    reporter = _after_a_record(_Line({("ks", "a"): Checkpoint(1000, _LEDGER_5)}), tmp_path)
    (tmp_path / "progress.tmp").mkdir()
    (tmp_path / "progress.avro").rename(tmp_path / "kept")
    (tmp_path / "progress.avro").mkdir()
    with pytest.raises(PublishError, match=r"progress\.avro cannot be removed"):
        reporter.forget("ks", "a")
    (tmp_path / "progress.tmp").rmdir()
    (tmp_path / "progress.avro").rmdir()
    reporter.forget("ks", "a")
    assert _stored(tmp_path).tables[0].checkpoints == ()


def _stored(folder: Path) -> ProgressRecord:
    found = stored_progress(folder)
    assert found is not None
    return found


def test_an_agent_after_it_tells_nothing_older(tmp_path: Path) -> None:
    """The next agent finds the published times in the stored record, and publishes no older ones."""
    line = _Line({("ks", "a"): Checkpoint(5000, (TopicPosition(5, 1),))})
    _after_a_record(line, tmp_path)
    assert newest_published_ms(stored_progress(tmp_path)) == 5000
    line.checkpoints = {("ks", "a"): Checkpoint(4000)}
    second = _reporter(line, tmp_path)
    second.start()
    wait_until(lambda: len(line.sent) == 2, "another record is sent")
    second.stop()
    assert line.sent[-1][1].tables[0].checkpoints[0].resolved_ms == 5000


def test_a_damaged_file_is_no_obstacle(tmp_path: Path) -> None:
    """The times begin again."""
    (tmp_path / "progress.avro").write_bytes(b"damaged")
    assert stored_progress(tmp_path) is None


def test_what_the_broker_refuses_is_sent_again(tmp_path: Path) -> None:
    """The next attempt sends the newest record."""
    line = _Line({("ks", "a"): Checkpoint(1000)}, refuses=True)
    reporter = _reporter(line, tmp_path)
    reporter.start()
    wait_until(lambda: reporter.record is not None, "it is tried")
    line.refuses = False
    wait_until(lambda: bool(line.sent), "it is sent")
    reporter.stop()
    assert reporter.failure is None


class _SilentLine(_Line):
    """A broker that takes a record and does not answer."""

    def send(self, payload: bytes, key: str | None, on_result: OnResult) -> bool:
        self.sent.append((key, decode_progress(payload)))
        return True


def test_a_broker_that_does_not_answer_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    """The stop of an agent took half a minute when Pulsar had just ended."""
    line = _SilentLine()
    reporter = _reporter(line, tmp_path)
    reporter.start()
    line.checkpoints["ks", "a"] = Checkpoint(1_000, _LEDGER_5)
    reporter.note()
    wait_until(lambda: bool(line.sent), "a record is on its way", 10)
    began_s = time.monotonic()
    reporter.stop()
    assert time.monotonic() - began_s < 4


def test_older_checkpoints_become_fewer_with_their_age() -> None:
    """A busy table keeps checkpoints of seven weeks; a table without events keeps one."""
    kept: tuple[Checkpoint, ...] = ()
    times_ms = itertools.chain(range(0, 80 * _DAY_MS, 900_000), range(80 * _DAY_MS, 80 * _DAY_MS + 10_000_000, 500))
    for step, time_ms in enumerate(times_ms):
        kept = with_newest(kept, Checkpoint(time_ms, (TopicPosition(1, step),)))
    ages_s = [(kept[0].resolved_ms - each.resolved_ms) / 1000 for each in kept]
    assert len(kept) <= 25
    assert ages_s == sorted(ages_s)
    assert ages_s[1] <= 1
    assert ages_s[-1] > 48 * 86_400
    assert all(later <= 4 * sooner for sooner, later in itertools.pairwise(ages_s[1:]))
    quiet = with_newest((Checkpoint(1, (TopicPosition(1, 1),)),), Checkpoint(2, (TopicPosition(1, 1),)))
    assert quiet == (Checkpoint(2, (TopicPosition(1, 1),)),)


def test_stops_stay_until_a_person_takes_them_out(tmp_path: Path) -> None:
    """The first reason stays, also after a restart."""
    stops = Stops(tmp_path)
    stops.note("ks.a", "first")
    stops.note("ks.a", "second")
    Stops(tmp_path).note(EVERY_TABLE, "lost")
    assert stops.reasons() == {"ks.a": "first", EVERY_TABLE: "lost"}
    assert remove_stops(tmp_path, EVERY_TABLE) == {EVERY_TABLE: "lost"}
    assert stops.reasons() == {"ks.a": "first"}
    assert remove_stops(tmp_path, None) == {"ks.a": "first"}
    assert not stops.reasons()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda folder: Stops(folder).note("ks.c", "third"), {"ks.b": "second", "ks.c": "third"}),
        (lambda folder: Stops(folder).add("ks.b", "more"), {"ks.b": "second; more"}),
        (lambda folder: remove_stops(folder, "ks.b"), {}),
        (lambda folder: remove_stops(folder, "ks.a"), {"ks.b": "second"}),
    ],
)
def test_a_change_of_the_stops_waits_for_the_one_of_another_process(
    tmp_path: Path, change: Callable[[Path], object], expected: dict[str, str]
) -> None:
    """The agent and a command may change the file at the same time. Neither may undo the other's change."""
    Stops(tmp_path).note("ks.a", "first")
    with (tmp_path / "stops.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        changing = threading.Thread(target=change, args=(tmp_path,))
        changing.start()
        changing.join(0.1)
        assert read_stops(tmp_path) == {"ks.a": "first"}
        (tmp_path / "stops.json").write_text('{"ks.b": "second"}')
    changing.join()
    assert read_stops(tmp_path) == expected


def test_stops_are_changed_where_there_can_be_no_lock(tmp_path: Path) -> None:
    """A missing stop would be worse than two changes at the same time."""
    (tmp_path / "stops.lock").mkdir()
    Stops(tmp_path).note("ks.a", "first")
    assert remove_stops(tmp_path, None) == {"ks.a": "first"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change a file's owner")
def test_stops_that_root_removed_can_be_read_by_the_agent(tmp_path: Path) -> None:
    """The files belong to the agent's user. If the agent could not read them, every table would be stopped."""
    Stops(tmp_path).note("ks.a", "first")
    Stops(tmp_path).note("ks.b", "second")
    os.chown(tmp_path, 4_242, 4_242)
    remove_stops(tmp_path, "ks.a")
    assert {each.name: each.stat().st_uid for each in tmp_path.iterdir()} == {"stops.json": 4_242, "stops.lock": 4_242}


_GAP = replace(GAP, keyspace="ks", table="a", first_segment_id=1, last_segment_id=2, from_ms=None, to_ms=10)


def test_a_stop_of_gaps_goes_when_all_of_them_are_closed(tmp_path: Path) -> None:
    """This holds after a restart, and for the stop of all tables. An operator may remove the stop earlier."""
    other = replace(_GAP, table="b")
    stops = Stops(tmp_path)
    stops.note(EVERY_TABLE, "segments went", [_GAP, other])
    stops.note("ks.a", "the topic went", [_GAP])
    assert stops.awaits_closing()
    assert stops.close([_GAP, other]) == []
    again = Stops(tmp_path)
    assert again.close([_GAP.closed(1, "sent")]) == ["ks.a"]
    assert again.reasons() == read_stops(tmp_path) == {EVERY_TABLE: "segments went"}
    assert again.close([_GAP.closed(1, "sent"), other.closed(2, "sent")]) == [EVERY_TABLE]
    assert not again.reasons() and not again.awaits_closing()
    stops.note("ks.a", "the topic went", [_GAP])
    assert remove_stops(tmp_path, "ks.a") == {"ks.a": "the topic went"}
    assert not stops.awaits_closing()


def test_a_second_gap_of_a_stopped_table_waits_for_its_own_closing(tmp_path: Path) -> None:
    """The gap that was closed before is not waited for again."""
    later = replace(_GAP, first_segment_id=5, last_segment_id=6, to_ms=20)
    stops = Stops(tmp_path)
    stops.note("ks.a", "first", [_GAP])
    stops.note("ks.a", "second", [later])
    assert stops.close([_GAP.closed(1, "sent")]) == []
    assert Stops(tmp_path).reasons() == {"ks.a": "first"}
    assert stops.close([later.closed(1, "sent")]) == ["ks.a"]


@pytest.mark.parametrize("first", [(), (_GAP,)])
def test_what_no_gap_says_waits_for_a_person(tmp_path: Path, first: tuple[GapRecord, ...]) -> None:
    """A stop without a gap record, such as that of a corrupt segment, cannot be closed. The order does not matter."""
    second = () if first else (_GAP,)
    stops = Stops(tmp_path)
    stops.note("ks.a", "first", first)
    stops.note("ks.a", "second", second)
    assert Stops(tmp_path).close([_GAP.closed(1, "sent")]) == []
    assert read_stops(tmp_path) == {"ks.a": "first"}


def test_a_damaged_file_of_stops_stops_every_table(tmp_path: Path) -> None:
    """The stops in the file are not known."""
    for damaged in ("{", "[]", '{"ks.a": {"reason": "x"}}', '{"ks.a": {"reason": "x", "gaps": ["00"]}}'):
        (tmp_path / "stops.json").write_text(damaged)
        assert EVERY_TABLE in Stops(tmp_path).reasons()
        assert EVERY_TABLE in read_stops(tmp_path)


def test_a_file_of_stops_that_cannot_be_looked_at_stops_every_table_and_keeps_its_stops(tmp_path: Path) -> None:
    """Only a missing file means that no table is stopped."""
    stops, file = Stops(tmp_path), tmp_path / "stops.json"
    stops.note("ks.a", "first")
    written = file.read_text()
    file.unlink()
    file.symlink_to(file)
    assert set(stops.reasons()) == {"ks.a", EVERY_TABLE}
    file.unlink()
    file.write_text(written)
    assert stops.reasons() == {"ks.a": "first"}
    file.unlink()
    file.symlink_to(file)
    stops.note("ks.b", "second")
    assert set(read_stops(tmp_path)) == {"ks.a", "ks.b", EVERY_TABLE}
    file.unlink()
    assert stops.reasons() == {}


@pytest.mark.parametrize(
    ("parked", "stops", "stopped"),
    [
        (set(), {}, set()),
        ({UUID(int=1)}, {}, {"ks.a", "ks.b"}),
        ({UUID(int=77)}, {}, {"ks.a", "ks.b", "other.c"}),
        (set(), {"ks.b": "lost"}, {"ks.b"}),
        (set(), {EVERY_TABLE: "lost"}, {"ks.a", "ks.b", "other.c"}),
    ],
)
def test_what_is_parked_stops_every_table_that_it_may_be_of(
    parked: set[UUID], stops: dict[str, str], stopped: set[str]
) -> None:
    """A mutation of a known table stops its keyspace. A mutation of an unknown table stops every table."""
    tables = [_table("a", 1), _table("b", 2), _table("c", 3, "other")]
    found = table_stops(tables, {each.table_id: each for each in tables}, parked, stops)
    assert {".".join(name) for name, reason in found.items() if reason is not None} == stopped
    assert set(found) == {(each.keyspace, each.name) for each in tables}


def test_tables_of_a_node_that_ran_without_cdc_stand_still_until_an_operator_goes_on(tmp_path: Path) -> None:
    """This holds after a restart of the agent. A later table has lost nothing."""
    for _ in range(2):
        note_disabled([_table("a", 1)], Stops(tmp_path))
    found = table_stops([_table("a", 1), _table("b", 2)], {}, (), Stops(tmp_path).reasons())
    assert found["ks", "b"] is None
    assert (found["ks", "a"] or "").count("the node ran with cdc_enabled: false") == 1
    remove_stops(tmp_path, "ks.a")
    assert Stops(tmp_path).reasons() == {}


def test_a_closed_gap_does_not_end_the_stop_of_a_node_that_ran_without_cdc(tmp_path: Path) -> None:
    """The stop shows both reasons. If the first one ended it, the timestamp would pass the second loss."""
    stops = Stops(tmp_path)
    stops.note("ks.a", "events were lost", [_GAP])
    note_disabled([_table("a", 1)], stops)
    stops.close([_GAP.closed(_GAP.to_ms + 1, "sent again")])
    reason = Stops(tmp_path).reasons()["ks.a"]
    assert reason.startswith("events were lost; the node ran with cdc_enabled: false")


def test_tables_of_a_keyspace_that_is_not_logged_stand_still_until_an_operator_goes_on(tmp_path: Path) -> None:
    """This holds also after `durable_writes` is true again, because earlier writes are missing."""
    tables = [_table("a", 1), _table("c", 3, "Other")]
    note_unlogged(tables, {"Other"}, Stops(tmp_path))
    note_unlogged(tables, (), after := Stops(tmp_path))
    found = table_stops(tables, {}, (), after.reasons())
    assert found["ks", "a"] is None
    assert 'ALTER KEYSPACE "Other" WITH durable_writes = true;' in (found["Other", "c"] or "")
    remove_stops(tmp_path, "Other.c")
    assert after.reasons() == {}


def test_a_subscription_that_stands_still_keeps_a_time_near_its_own() -> None:
    """The kept checkpoint is older than the subscription's position by at most three times the age of that position."""
    kept: tuple[Checkpoint, ...] = ()
    step_s = 300
    for step in range(0, 30 * 86_400, step_s):
        kept = with_newest(kept, Checkpoint(step * 1000, (TopicPosition(1, step),)))
    for stuck_s in (60, 3_000, 4 * 3_600, 10 * 86_400):
        stuck_at_s = kept[0].resolved_ms // 1000 - stuck_s
        passed_s = max(each.resolved_ms // 1000 for each in kept if each.positions[0].entry <= stuck_at_s)
        assert stuck_at_s - passed_s <= 3 * stuck_s + step_s


def test_the_progress_of_another_topic_prefix_counts_no_more(tmp_path: Path) -> None:
    """With the same prefix the progress continues.

    With another prefix each table is stopped until an operator decides.
    """
    stops = Stops(tmp_path)
    line = _Line({("ks", "a"): Checkpoint(5000, (TopicPosition(5, 1),))})
    _after_a_record(line, tmp_path)
    for _ in range(2):
        take_prefix(tmp_path, _DEFAULT_PREFIX, stops, has_read=True)
        assert newest_published_ms(stored_progress(tmp_path)) == 5000
    assert not stops.reasons()
    for _ in range(2):
        take_prefix(tmp_path, _OTHER_PREFIX, stops, has_read=True)
        assert stored_progress(tmp_path) is None
    assert Stops(tmp_path).reasons() == {
        name: f"its events up to the change of topicPrefix are on {_DEFAULT_PREFIX}{name}: when the connector has read all of that"
        " topic, run cdc agent resume-progress"
        for name in ("ks.a", "ks.b")
    }
    remove_stops(tmp_path, None)
    take_prefix(tmp_path, _OTHER_PREFIX, stops, has_read=True)
    assert not stops.reasons()
    take_prefix(tmp_path, _DEFAULT_PREFIX, stops, has_read=True)
    assert list(stops.reasons()) == [EVERY_TABLE]


def test_a_prefix_that_nothing_was_published_with_stops_nothing(tmp_path: Path) -> None:
    """A file that a full disk or a power loss left empty stops nothing either."""
    stops = Stops(tmp_path)
    take_prefix(tmp_path, _DEFAULT_PREFIX, stops, has_read=False)
    take_prefix(tmp_path, _OTHER_PREFIX, stops, has_read=False)
    (tmp_path / "topic-prefix.txt").write_text("")
    _after_a_record(_Line({("ks", "a"): Checkpoint(5000, _LEDGER_5)}), tmp_path)
    take_prefix(tmp_path, _DEFAULT_PREFIX, stops, has_read=True)
    assert not stops.reasons()
    assert newest_published_ms(stored_progress(tmp_path)) == 5000


def test_the_progress_stays_until_its_stops_are_written(tmp_path: Path) -> None:
    """If the agent ends before that, its next start stores the stops."""
    take_prefix(tmp_path, _DEFAULT_PREFIX, Stops(tmp_path), has_read=True)
    _after_a_record(_Line({("ks", "a"): Checkpoint(5000, _LEDGER_5)}), tmp_path)
    (tmp_path / "stops.tmp").mkdir()  # it cannot be written
    with pytest.raises(OSError, match="the stops of the earlier topics cannot be written"):
        take_prefix(tmp_path, _OTHER_PREFIX, Stops(tmp_path), has_read=True)
    (tmp_path / "stops.tmp").rmdir()
    take_prefix(tmp_path, _OTHER_PREFIX, again := Stops(tmp_path), has_read=True)
    assert list(again.reasons()) == ["ks.a", "ks.b"]


def test_a_table_that_is_left_out_for_a_while_stands_still(tmp_path: Path) -> None:
    """It is stopped if it had progress before. The reason names the option that left it out."""
    stops = Stops(tmp_path)
    line = _Line({("ks", "a"): Checkpoint(5000, _LEDGER_5), ("ks", "b"): Checkpoint(5000, _LEDGER_5)})
    _after_a_record(line, tmp_path)
    reported = _reporter(line, tmp_path).reported
    assert reported == {("ks", "a"), ("ks", "b")}
    left_out = [_table("a", 1), replace(_table("b", 2), cdc=False), _table("c", 3)]
    for _ in range(2):
        note_left_out(left_out, reported, stops)
    reasons = stops.reasons()
    assert list(reasons) == ["ks.a", "ks.b"]
    assert reasons["ks.a"].startswith(
        "includeTables or excludeTables left it out, so its changes of that time are not on"
    )
    assert reasons["ks.b"].startswith(
        "it had cdc = false, so its changes of that time are not on the events topic: when"
    )
    assert table_stops([_table("a", 1)], {}, (), reasons)[("ks", "a")] == reasons["ks.a"]
