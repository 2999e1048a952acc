"""DroppedTables: held events of a table that was dropped make no topic, and no other held event is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from pathlib import Path
from uuid import UUID

import pytest

from change_agent.publishing.dropped_tables import DroppedTables, TableOfNode
from tests.topics.events_topic import wait_until
from tests.unit.change_agent.memory_broker import HEADERS, TOPIC_A, MemoryBroker, PublisherLine

HaveGone = Callable[[Collection[TableOfNode]], bool | None]

_A = TableOfNode(HEADERS["a"].node_id, HEADERS["a"].table_id)


def _hold(broker: MemoryBroker, folder: Path) -> None:
    """Let a publisher hold ten events of table a, whose topic is refused, and end."""
    line = PublisherLine(broker, folder, hold_events=5)
    line.start_with_a_held()
    line.publisher.stop()
    broker.refused_topics.clear()


def _started(broker: MemoryBroker, folder: Path, have_gone: HaveGone, patience_s: float = 60.0) -> PublisherLine:
    """The next publisher."""
    line = PublisherLine(broker, folder, dropped=DroppedTables(broker.has_topic, have_gone, patience_s))
    line.publisher.start()
    return line


def _is_empty(folder: Path) -> bool:
    return not list(folder.iterdir())


def _publishes_all(line: PublisherLine, broker: MemoryBroker, folder: Path) -> None:
    wait_until(lambda: _is_empty(folder), "all is published", 20)
    line.publisher.stop()
    assert broker.positions(TOPIC_A) == list(range(2, 12))
    assert line.metrics.held_events_dropped == 0


def test_held_events_of_a_dropped_table_do_not_make_its_topic_again(
    broker: MemoryBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic was deleted with the table. The file goes, one line says it, and later events are published."""
    _hold(broker, tmp_path)
    asked: list[Collection[TableOfNode]] = []

    def have_gone(tables: Collection[TableOfNode]) -> bool:
        asked.append(tables)
        return True

    line = _started(broker, tmp_path, have_gone)
    wait_until(lambda: _is_empty(tmp_path), "the file is removed", 20)
    wait_until(lambda: not line.publisher.statuses, "the topic is given up")
    assert TOPIC_A not in broker.stored
    assert all(set(each) == {_A} for each in asked)
    assert line.metrics.held_events_dropped == 10
    assert [each.getMessage() for each in caplog.records if "was dropped" in each.getMessage()] == [
        f"{TOPIC_A} does not exist any more, and its table was dropped: 10 events that were held for it are not published, and"
        " the topic is not made for them"
    ]
    line.publish("a", 12)
    wait_until(lambda: line.acknowledged() == 1, "a new event is published")
    line.publisher.stop()


def test_a_running_agent_drops_what_it_holds_for_a_table_that_is_dropped(broker: MemoryBroker, tmp_path: Path) -> None:
    """The topic could not be opened. When it and the table are gone, the next attempt does not make it."""
    is_dropped = False
    dropped = DroppedTables(broker.has_topic, lambda tables: is_dropped)
    line = PublisherLine(broker, tmp_path, hold_events=5, dropped=dropped)
    line.start_with_a_held()
    is_dropped = True
    wait_until(lambda: _is_empty(tmp_path), "the file is removed", 20)
    wait_until(lambda: [*line.publisher.statuses] == ["ks.b"], "the topic is given up")
    line.publisher.stop()
    assert (TOPIC_A in broker.stored, line.metrics.held_events_dropped) == (False, 10)


def test_held_events_are_published_where_the_topic_exists(broker: MemoryBroker, tmp_path: Path) -> None:
    """The node is not asked."""
    _hold(broker, tmp_path)
    broker.stored[TOPIC_A] = [[]]
    asked: list[object] = []
    _publishes_all(_started(broker, tmp_path, lambda tables: bool(asked.append(tables))), broker, tmp_path)
    assert asked == []


def test_held_events_of_a_table_that_exists_make_a_topic_that_was_lost(broker: MemoryBroker, tmp_path: Path) -> None:
    """Somebody has deleted the topic, or it was never made."""
    _hold(broker, tmp_path)
    _publishes_all(_started(broker, tmp_path, lambda tables: False), broker, tmp_path)


def test_events_of_an_earlier_table_of_the_same_name_go_before_those_of_the_new_one(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new table needs the topic. Nothing is dropped, because a file is kept or dropped as a whole."""
    _hold(broker, tmp_path)
    broker.refused_topics.add(TOPIC_A)
    again = HEADERS["a"]._replace(table_id=UUID(int=99))
    monkeypatch.setitem(HEADERS, "a", again)
    asked: list[set[TableOfNode]] = []

    def have_gone(tables: Collection[TableOfNode]) -> bool:
        asked.append(set(tables))
        return all(each.table_id != again.table_id for each in tables)

    first = PublisherLine(broker, tmp_path, hold_events=5)
    first.position = 11
    first.publisher.start()
    first.publish("b", 12)
    first.publish("a", *range(13, 23))
    wait_until(lambda: first.positions.events == 0, "the new events are held, too", 20)
    first.publisher.stop()
    broker.refused_topics.clear()
    line = _started(broker, tmp_path, have_gone)
    wait_until(lambda: _is_empty(tmp_path), "all is published", 20)
    line.publisher.stop()
    assert broker.positions(TOPIC_A) == [*range(2, 12), *range(13, 23)]
    assert asked == [{_A}, {_A, TableOfNode(_A.node_id, again.table_id)}]


def test_held_events_wait_for_the_nodes_answer_but_not_for_ever(broker: MemoryBroker, tmp_path: Path) -> None:
    """While the node is away, nobody knows whether it has the table. Other tables go on."""
    _hold(broker, tmp_path)
    line = _started(broker, tmp_path, lambda tables: None, 2.0)
    reason = "does not exist, and the node has not said yet whether it has the table"
    wait_until(lambda: bool(line.publisher.statuses), "the topic has a status")
    wait_until(lambda: line.publisher.statuses["ks.a"].problem == reason, "the reason is shown")
    assert TOPIC_A not in broker.stored
    _publishes_all(line, broker, tmp_path)


def test_events_that_come_while_the_node_is_asked_are_looked_at_as_well(broker: MemoryBroker, tmp_path: Path) -> None:
    """The file has grown when the answer comes, so the answer does not cover all of it."""
    _hold(broker, tmp_path)
    lines: list[PublisherLine] = []
    counts: list[int] = []

    def have_gone(tables: Collection[TableOfNode]) -> bool:
        if len(counts) == 1:
            lines[0].publish("a", 12)
            wait_until(lambda: lines[0].acknowledged() == 1, "it is held")
        counts.append(len(tables))
        return True

    lines.append(PublisherLine(broker, tmp_path, dropped=DroppedTables(broker.has_topic, have_gone)))
    lines[0].publisher.start()
    wait_until(lambda: _is_empty(tmp_path), "the file is removed", 20)
    lines[0].publisher.stop()
    assert (counts, lines[0].metrics.held_events_dropped) == ([1, 1, 1, 1], 11)
    assert TOPIC_A not in broker.stored


def _with_more_than_the_disk_takes(broker: MemoryBroker, folder: Path, dropped: DroppedTables) -> PublisherLine:
    """A publisher that holds ten events of table a on the disk, and has one more in memory."""
    line = PublisherLine(broker, folder, hold_events=5, max_held_bytes=100, dropped=dropped)
    line.start_with_a_held()
    line.publish("a", 12)
    wait_until(lambda: line.metrics.held_full == 1, "the disk takes no more")
    return line


def test_events_that_the_disk_has_not_taken_do_not_wait_for_ever(broker: MemoryBroker, tmp_path: Path) -> None:
    """The held events fill their share of the disk, so later ones stay in memory, where they take room from others."""
    is_dropped = False
    dropped = DroppedTables(broker.has_topic, lambda tables: is_dropped)
    line = _with_more_than_the_disk_takes(broker, tmp_path, dropped)
    is_dropped = True
    wait_until(lambda: line.acknowledged() == 12, "the disk has room again", 20)
    wait_until(lambda: _is_empty(tmp_path), "all is removed", 20)
    wait_until(lambda: line.metrics.held_events_dropped == 11, "all is dropped")
    line.publisher.stop()
    assert TOPIC_A not in broker.stored


def test_what_a_refused_write_has_left_in_the_file_does_not_keep_it(broker: MemoryBroker, tmp_path: Path) -> None:
    """A full disk may have taken the first messages of a write. They are still in memory, and no part of the file, which
    was looked at again and again: the topic was neither opened nor given up."""
    _hold(broker, tmp_path)
    [file] = tmp_path.iterdir()
    content = file.read_bytes()

    def has_topic(topic: str) -> bool:
        file.write_bytes(content * 2)
        return broker.has_topic(topic)

    line = PublisherLine(broker, tmp_path, dropped=DroppedTables(has_topic, lambda tables: True))
    line.publisher.start()
    wait_until(lambda: line.metrics.held_events_dropped > 0, "the events are dropped", 10)
    line.publisher.stop()
    assert (line.metrics.held_events_dropped, _is_empty(tmp_path), TOPIC_A in broker.stored) == (10, True, False)


def test_only_the_beginning_of_a_file_is_read_while_its_table_exists(broker: MemoryBroker, tmp_path: Path) -> None:
    """A topic that cannot be made is tried every few seconds, for hours: the whole file was read each time."""
    _hold(broker, tmp_path)
    [file] = tmp_path.iterdir()
    content = file.read_bytes()
    with file.open("wb") as many:
        many.writelines([content] * (10_000_000 // len(content)))
    dropped = DroppedTables(broker.has_topic, lambda tables: False)
    before = _bytes_read()
    assert dropped.unwanted(TOPIC_A, file, file.stat().st_size) is None
    assert _bytes_read() - before < 1_000_000


def _bytes_read() -> int:
    """How many bytes this process has read from files."""
    [count] = [line.split()[1] for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar")]
    return int(count)


def test_a_file_with_damaged_events_is_not_dropped(broker: MemoryBroker, tmp_path: Path) -> None:
    """They may be of a table of the same name that exists. Publishing the others reports the damage."""
    _hold(broker, tmp_path)
    [file] = tmp_path.iterdir()
    content = file.read_bytes()
    dropped = DroppedTables(broker.has_topic, lambda tables: True)
    assert dropped.unwanted(TOPIC_A, file, len(content)) == (len(content), 10)
    damaged = content + content[:-1] + bytes([content[-1] ^ 1])
    file.write_bytes(damaged)
    assert dropped.unwanted(TOPIC_A, file, len(damaged)) is None


def test_a_thread_that_replaces_a_producer_ends_with_the_topic(broker: MemoryBroker, tmp_path: Path) -> None:
    """The topic was deleted while messages were under way, and createTopics is false. The thread never ended, and said
    again and again that the topic is waited for."""
    is_dropped = False
    dropped = DroppedTables(broker.has_topic, lambda tables: is_dropped)
    line = PublisherLine(broker, tmp_path, hold_events=5, dropped=dropped)
    line.start_with_a_failing("TopicTerminated")
    wait_until(lambda: line.acknowledged() == 12, "a is held")
    del broker.stored[TOPIC_A]
    is_dropped = True
    wait_until(lambda: [*line.publisher.statuses] == ["ks.b"], "the topic is given up", 20)
    wait_until(lambda: all(each.name != "open" for each in threading.enumerate()), "no thread opens it", 15)
    line.publisher.stop()
    assert (TOPIC_A in broker.stored, line.metrics.held_events_dropped) == (False, 10)


def test_events_that_the_disk_takes_when_others_were_dropped_are_dropped_as_well(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    """The topic was opened before the disk had taken them, and so made again."""
    is_dropped = False

    def have_gone(tables: Collection[TableOfNode]) -> bool:
        if is_dropped:
            broker.refused_topics.clear()
        return is_dropped

    dropped = DroppedTables(broker.has_topic, have_gone)
    line = _with_more_than_the_disk_takes(broker, tmp_path, dropped)
    is_dropped = True
    wait_until(lambda: line.acknowledged() == 12, "the disk has room again", 20)
    wait_until(lambda: [*line.publisher.statuses] == ["ks.b"], "the topic is given up", 20)
    line.publisher.stop()
    assert (TOPIC_A in broker.stored, line.metrics.held_events_dropped) == (False, 11)
