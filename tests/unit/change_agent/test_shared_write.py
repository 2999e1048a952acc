"""Files that many topics share: topics that are opened at the same time wait for one write, not for one each."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from change_agent.errors import PublishError
from change_agent.positions.inflight import Place
from change_agent.publishing import partition_counts
from change_agent.publishing.partition_counts import PartitionCounts
from change_agent.publishing.shared_write import SharedWrite
from change_agent.publishing.topic_checks import TopicChecks, TopicState

_TOPICS = [f"persistent://public/default/cdc-events-ks.table{number}" for number in range(100)]


def _state(end: int) -> TopicState:
    return TopicState(partitions=4, mark="m", ends=((1, end),) * 4, consumed=((1, 0),) * 4)


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The descriptors that were synced to the disk."""
    found: list[int] = []
    fsync = os.fsync

    def counted(descriptor: int) -> None:
        found.append(descriptor)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    return found


def _at_once(action: Callable[[str], object]) -> list[object]:
    """Call `action` for all topics at the same time; an exception is a result, too."""

    def run(topic: str) -> object:
        try:
            return action(topic)
        except PublishError as error:
            return error

    with ThreadPoolExecutor(len(_TOPICS)) as threads:
        return list(threads.map(run, _TOPICS))


def test_topics_that_are_opened_together_share_a_write(tmp_path: Path, syncs: list[int]) -> None:
    """The file has each topic when its thread continues."""
    checks = TopicChecks(tmp_path)

    def open_topic(topic: str) -> bool:
        checks.note(topic, _state(10), None)
        checks.save()
        return topic in json.loads(checks.path.read_text())

    assert all(_at_once(open_topic))
    assert len(syncs) <= 10
    # The next start finds all of them as they were.
    checks = TopicChecks(tmp_path)
    syncs.clear()
    assert all(_at_once(open_topic))
    assert not syncs


def test_a_start_does_not_take_longer_because_the_connector_was_away(tmp_path: Path) -> None:
    """The checks of that time, 120 of each topic, are not written once for each topic."""
    checks = TopicChecks(tmp_path)
    for number in range(120):
        for topic in _TOPICS:
            checks.note(topic, _state(number), Place(7, number, number))
    checks.save()
    began_at = time.monotonic()
    checks = TopicChecks(tmp_path)

    def open_topic(topic: str) -> None:
        checks.note(topic, _state(200), None)
        checks.save()

    _at_once(open_topic)
    assert time.monotonic() - began_at < 5
    assert checks.renew(_TOPICS[0], _state(-1)) == Place(7, 0, 0)


def test_partition_counts_share_a_write(tmp_path: Path, syncs: list[int]) -> None:
    """Each of them is stored when its thread continues."""
    counts = PartitionCounts(tmp_path)

    def open_topic(topic: str) -> int | None:
        counts.check(topic, 4)
        return counts.known(topic)

    assert set(_at_once(open_topic)) == {4}
    assert len(syncs) <= 20


def test_partition_counts_that_cannot_be_written_are_an_error_for_each_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No topic waits for the failures of the others. All are stored when the disk has room."""

    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    counts = PartitionCounts(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(partition_counts, "replace_private", refuse)
        began_at = time.monotonic()
        found = _at_once(lambda topic: counts.check(topic, 4))
        assert time.monotonic() - began_at < 5
    assert {str(each).partition(": ")[2] for each in found} == {
        f"{counts.path} cannot be written (No space left on device)"
    }
    assert counts.known(_TOPICS[0]) is None
    counts.check(_TOPICS[0], 4)
    assert PartitionCounts(tmp_path).known(_TOPICS[0]) == 4


def test_a_change_that_comes_during_a_write_waits_for_the_next_one() -> None:
    """The write that runs may have begun without it."""
    contents: list[int] = []
    changes = [0]
    lock, all_have_come = threading.Lock(), threading.Event()

    def write() -> None:
        seen = changes[0]
        assert all_have_come.wait(20)
        contents.append(seen)

    file = SharedWrite(write, gather_s=0.0)

    def change() -> bool:
        with lock:
            changes[0] = mine = changes[0] + 1
            file.note_change()
            if mine == 50:
                all_have_come.set()
        file.run()
        return max(contents) >= mine

    with ThreadPoolExecutor(50) as threads:
        assert all(threads.map(lambda _: change(), range(50)))
    assert len(contents) < 10
