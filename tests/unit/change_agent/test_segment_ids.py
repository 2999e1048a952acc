"""SegmentIds: finished segments as a few runs of ids. The work of an update depends on the number of new ids."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Collection, Container, Mapping
from pathlib import Path

import pytest

from change_agent.metrics import AgentMetrics
from change_agent.positions.inflight import InflightPositions
from change_agent.positions.offsets import OffsetStore, StoredPositions
from change_agent.positions.positions_writer import PositionsWriter
from change_agent.positions.segment_ids import SegmentIds

_TEN_MILLION = 10_000_000
_MOST_RUNS = 20_000


def _ids(found: SegmentIds) -> set[int]:
    return {each for first, last in found.runs for each in range(first, last + 1)}


@pytest.mark.parametrize("seed", range(20))
def test_it_holds_what_a_set_holds(seed: int) -> None:
    """Ids are added and removed in any order, including negative ones. Two runs are never adjacent."""
    drawn = random.Random(seed)
    expected: set[int] = set()
    found = SegmentIds()
    for _ in range(300):
        ids = {drawn.randrange(-20, 60) for _ in range(drawn.randrange(1, 5))}
        if drawn.random() < 0.6:
            found, expected = found.adding(ids), expected | ids
        else:
            found, expected = found.removing(ids), expected - ids
        assert _ids(found) == expected
        assert all(before + 1 < first for (_, before), (first, _) in zip(found.runs, found.runs[1:], strict=False))
        assert [each for each in range(-22, 62) if each in found] == sorted(expected)
        assert sorted(found.read_again()) == sorted(each for each in expected if each < 0)
        assert found == SegmentIds.of(expected)
        assert hash(found) == hash(SegmentIds.of(expected))
        of_run = {each: found.first_of_run(each) for each in expected}
        assert all(set(range(first or 0, each + 1)) <= expected for each, first in of_run.items())


def test_there_are_never_more_runs_than_can_come_back() -> None:
    """The lowest ids are forgotten, except ids whose files exist, and second readings."""
    found = SegmentIds([(-7, -7), *((each, each) for each in range(0, 2 * _MOST_RUNS - 2, 2))])
    assert len(found.runs) == _MOST_RUNS
    found = found.adding([2 * _MOST_RUNS], present=[4])
    assert len(found.runs) < _MOST_RUNS
    assert [each in found for each in (-7, 0, 2, 4, 6, 2 * _MOST_RUNS)] == [True, False, False, True, False, True]


def test_of_a_long_run_its_end_is_stored() -> None:
    """An earlier version, to which the agent may be rolled back, expands the stored runs to a set."""
    assert SegmentIds([(1, 2), (5, _TEN_MILLION)]).as_json() == f"[[1, 2], [{_TEN_MILLION - 19_999}, {_TEN_MILLION}]]"


class _NoFiles:
    """No files of segments exist."""

    def let_go(self, finished: Container[int], lost: Container[int], faulty: Mapping[int, str]) -> frozenset[int]:
        return frozenset()

    def present(self) -> Collection[int]:
        return ()


class _NotListed(_NoFiles):
    """No folder has been listed yet, so no file is known to be missing."""

    def present(self) -> None:
        return None


def test_second_readings_stay_finished_until_the_folder_was_listed(tmp_path: Path) -> None:
    """The first positions are stored before the reader has listed anything."""
    store = OffsetStore(tmp_path)
    store.load()
    stored = StoredPositions(finished=SegmentIds([(-7, -7), (7, 8)]))
    found = []
    for files in (_NotListed(), _NoFiles()):
        positions = InflightPositions(max_events=10, max_bytes=10)
        writer = PositionsWriter(store, stored, positions, files, AgentMetrics(), lambda: None, 1.0)
        writer._store_and_let_go()
        found.append(writer.stored.finished.runs)
    store.close()
    assert found == [[(-7, -7), (7, 8)], [(7, 8)]]


def _bytes_of_a_store(directory: Path, finished: int) -> int:
    """Return the peak of allocated memory when one more segment finishes, with this number of finished ones."""
    positions = InflightPositions(max_events=10, max_bytes=10)
    store = OffsetStore(directory)
    store.load()
    stored = StoredPositions(finished=SegmentIds([(_TEN_MILLION, _TEN_MILLION + finished - 1)]))
    writer = PositionsWriter(store, stored, positions, _NoFiles(), AgentMetrics(), lambda: None, 1.0)
    following = _TEN_MILLION + finished
    for segment_id in (following, following + 1):  # the first warms what is made once
        positions.open(segment_id, 0)
        positions.finish(segment_id)
        tracemalloc.start()
        writer._store_and_let_go()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    store.close()
    assert writer.stored.finished.runs == [(_TEN_MILLION, following + 1)]
    return peak


def test_the_work_of_a_store_is_by_what_is_new(tmp_path: Path) -> None:
    """The difference between a thousand and ten million ids is less than a kilobyte."""
    few, many = (_bytes_of_a_store(tmp_path / str(count), count) for count in (1_000, _TEN_MILLION))
    assert abs(many - few) < 1_000, (few, many)
