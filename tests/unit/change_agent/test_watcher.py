"""CdcRawWatcher: which segments of cdc_raw can be read, up to where, and which are final. Real files, real inotify."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from change_agent.cdc_raw.folder import list_folder
from change_agent.cdc_raw.watcher import CdcRawWatcher

# The node started at this time (milliseconds). The ids of its segments begin there.
_START = 1_795_219_249_000
_LATER_START = _START + 3_600_000
_NOW = _START + 7_200_000


@pytest.fixture
def cdc_raw(tmp_path: Path) -> Path:
    """The watched folder. Its parent is Cassandra's own commit log folder."""
    folder = tmp_path / "cdc_raw"
    folder.mkdir()
    return folder


@pytest.fixture
def watcher(cdc_raw: Path) -> Iterator[CdcRawWatcher]:
    """A watcher that polls only every 30 seconds."""
    made = CdcRawWatcher(cdc_raw, 30.0)
    yield made
    made.close()


def _segment(cdc_raw: Path, segment_id: int, index: str | None, *, written_ms: int = _NOW, links: int = 2) -> None:
    log = cdc_raw / f"CommitLog-7-{segment_id}.log"
    log.write_bytes(b"x")
    if links == 2:
        os.link(log, cdc_raw.parent / log.name)
    if index is not None:
        _write_index(cdc_raw, segment_id, index, written_ms)


def _write_index(cdc_raw: Path, segment_id: int, index: str, written_ms: int = _NOW) -> None:
    path = cdc_raw / f"CommitLog-7-{segment_id}_cdc.idx"
    path.write_text(index)
    os.utime(path, ns=(written_ms * 1_000_000, written_ms * 1_000_000))


def _found(watcher: CdcRawWatcher) -> list[tuple[int, int, bool]]:
    return [(each.segment_id - _START, each.limit, each.final) for each in watcher.segments(_NOW)]


def test_segments_come_in_the_order_of_their_ids_and_only_with_an_index(watcher: CdcRawWatcher, cdc_raw: Path) -> None:
    """A segment without an index has no changes yet."""
    _segment(cdc_raw, _START + 10, "300")
    _segment(cdc_raw, _START + 2, "200\nCOMPLETED")
    _segment(cdc_raw, _START + 11, None)
    (cdc_raw / "something else").write_text("1")
    assert _found(watcher) == [(2, 200, True), (10, 300, False)]


def test_a_limit_never_goes_back(watcher: CdcRawWatcher, cdc_raw: Path) -> None:
    """The index is rewritten in place, so it may be empty or have only its first digits for a moment."""
    _segment(cdc_raw, _START, "1048576")
    assert _found(watcher) == [(0, 1048576, False)]
    for torn in ("", "1", "1048"):
        _write_index(cdc_raw, _START, torn)
        assert _found(watcher) == [(0, 1048576, False)]
    _write_index(cdc_raw, _START, "1048600")
    assert _found(watcher) == [(0, 1048600, False)]


def test_of_an_index_that_was_empty_from_the_start_nothing_is_read(watcher: CdcRawWatcher, cdc_raw: Path) -> None:
    """The segment exists, so it does not count as deleted, and later segments wait for it."""
    _segment(cdc_raw, _START, "")
    assert _found(watcher) == [(0, 0, False)]


def test_an_index_that_is_none_is_left_alone(
    watcher: CdcRawWatcher, cdc_raw: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The unknown content is reported once, and other segments are read."""
    _segment(cdc_raw, _START, "what?")
    _segment(cdc_raw, _START + 1, "5")
    assert _found(watcher) == _found(watcher) == [(0, 0, False), (1, 5, False)]
    assert len(caplog.records) == 1


def test_a_segment_of_an_earlier_start_of_the_node_is_final(watcher: CdcRawWatcher, cdc_raw: Path) -> None:
    """Its index was last written before the later start, whose time is in the newer segment's id."""
    _segment(cdc_raw, _START + 5, "100", written_ms=_START + 60_000)
    _segment(cdc_raw, _LATER_START + 1, "50")
    assert _found(watcher) == [(5, 100, True), (3_600_001, 50, False)]


def test_an_older_segment_of_the_same_start_is_not_final_because_a_newer_one_is_there(
    watcher: CdcRawWatcher, cdc_raw: Path
) -> None:
    """Ids begin with the time of the start, and grow much more slowly than the clock."""
    _segment(cdc_raw, _START + 5, "100", written_ms=_START + 60_000)
    _segment(cdc_raw, _START + 6, "50", written_ms=_START + 61_000)
    assert _found(watcher) == [(5, 100, False), (6, 50, False)]


def test_a_segment_that_cassandra_unlinked_is_final_after_a_rest(watcher: CdcRawWatcher, cdc_raw: Path) -> None:
    """Without a name in the commit log folder no process can write it. Clocks do not matter."""
    _segment(cdc_raw, _START + 5, "100", written_ms=_NOW - 20_000, links=1)
    _segment(cdc_raw, _START + 6, "100", written_ms=_NOW - 5_000, links=1)
    _segment(cdc_raw, _START + 7, "50", written_ms=_NOW, links=1)
    assert _found(watcher) == [(5, 100, True), (6, 100, False), (7, 50, False)]


def test_an_index_without_its_segment_is_told(watcher: CdcRawWatcher, cdc_raw: Path) -> None:
    """The file was removed. The caller decides whether that is a loss."""
    _segment(cdc_raw, _START, "100")
    (cdc_raw / f"CommitLog-7-{_START}.log").unlink()
    [found] = watcher.segments(_NOW)
    assert not found.log_exists


def test_files_of_completed_segments_are_not_looked_at_again(cdc_raw: Path) -> None:
    """Thousands may wait while Pulsar is away. A look lists the folder, and needs no call for each file."""
    _segment(cdc_raw, _START + 1, "9\nCOMPLETED")
    _segment(cdc_raw, _START + 2, "9\nCOMPLETED")
    first = list_folder(cdc_raw)
    settled = {each.path.name: each for each in (*first.logs.values(), *first.indexes.values())}
    _write_index(cdc_raw, _START + 1, "10\nCOMPLETED", _LATER_START)
    replaced = cdc_raw / f"CommitLog-7-{_START + 2}_cdc.idx"
    replaced.with_suffix(".new").write_text("100\nCOMPLETED")
    replaced.with_suffix(".new").replace(replaced)
    again = list_folder(cdc_raw, settled)
    assert again.logs[_START + 1] is first.logs[_START + 1]
    assert again.indexes[_START + 1] is first.indexes[_START + 1]
    assert again.indexes[_START + 2].size == 13


def test_a_completed_segment_that_goes_is_seen_to_be_gone(watcher: CdcRawWatcher, cdc_raw: Path) -> None:
    """Remembered facts are valid only for the same files. A new segment is found as before."""
    _segment(cdc_raw, _START + 1, "9\nCOMPLETED")
    _segment(cdc_raw, _START + 2, "9\nCOMPLETED")
    assert _found(watcher) == [(1, 9, True), (2, 9, True)]
    _segment(cdc_raw, _START + 3, "7")
    assert _found(watcher) == [(1, 9, True), (2, 9, True), (3, 7, False)]
    (cdc_raw / f"CommitLog-7-{_START + 1}.log").unlink()
    assert [each.log_exists for each in watcher.segments(_NOW) or ()] == [False, True, True]
    (cdc_raw / f"CommitLog-7-{_START + 1}_cdc.idx").unlink()
    _write_index(cdc_raw, _START + 3, "8\nCOMPLETED")
    assert _found(watcher) == [(2, 9, True), (3, 8, True)]


def test_waiting_ends_at_once_when_an_index_is_written(watcher: CdcRawWatcher, cdc_raw: Path) -> None:
    """This is long before the poll interval of 30 seconds."""
    threading.Timer(0.05, _write_index, (cdc_raw, _START, "1")).start()
    began = time.monotonic()
    watcher.wait()
    assert time.monotonic() - began < 5


def test_waiting_ends_when_it_is_woken(watcher: CdcRawWatcher) -> None:
    """The agent needs this to stop."""
    threading.Timer(0.05, watcher.wake).start()
    began = time.monotonic()
    watcher.wait()
    assert time.monotonic() - began < 5
