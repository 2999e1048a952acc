"""OffsetStore: positions survive damage and crashes, and only one agent writes them."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from change_agent.positions.offsets import (
    DamagedPositionsError,
    OffsetStore,
    StoredPositions,
    StoredSegment,
    WorkingDirInUseError,
)
from change_agent.positions.segment_ids import SegmentIds
from schemas.errors import ConfigError

_REPOSITORY = Path(__file__).parents[3]
_FIRST = StoredPositions(segments={7: StoredSegment(position=100)}, finished=SegmentIds.of([5, 6]))
_SECOND = StoredPositions(
    segments={7: StoredSegment(position=200, keep=True), 8: StoredSegment(position=20, fault="broken")},
    finished=SegmentIds.of([3, 5, 6]),
    lost=SegmentIds.of([3]),
)


def _load(directory: Path) -> StoredPositions:
    store = OffsetStore(directory)
    try:
        return store.load()
    finally:
        store.close()


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A directory with two stored generations."""
    store = OffsetStore(tmp_path)
    store.load()
    store.store(_FIRST)
    store.store(_SECOND)
    store.close()
    return tmp_path


def test_the_first_start_finds_nothing(tmp_path: Path) -> None:
    """An empty directory is no error."""
    assert _load(tmp_path / "new") == StoredPositions()


def test_the_last_stored_positions_come_back(stored: Path) -> None:
    """They include kept and finished segments."""
    assert _load(stored) == _SECOND


@pytest.mark.parametrize("damage", [b"", b"00000000\n{}", b"\0" * 200])
def test_a_damaged_newest_file_falls_back_to_the_generation_before(stored: Path, damage: bytes) -> None:
    """The older file is intact."""
    (stored / "positions-b.json").write_bytes(damage)
    assert _load(stored) == _FIRST


def test_a_file_that_was_cut_at_any_byte_is_noticed(stored: Path) -> None:
    """The checksum does not fit at any length."""
    path = stored / "positions-b.json"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert _load(stored) == _FIRST, length


def test_a_flipped_bit_anywhere_is_noticed(stored: Path) -> None:
    """The checksum and the line break after it are included."""
    path = stored / "positions-b.json"
    whole = path.read_bytes()
    for bit in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert _load(stored) == _FIRST, bit


def test_kill_9_at_any_moment_leaves_what_was_stored_last_or_what_was_being_stored(tmp_path: Path) -> None:
    """A process stores without pause and prints what it has stored. It is killed five times, during a store."""
    program = (
        "import sys; from pathlib import Path; from change_agent.positions.offsets import *\n"
        "store = OffsetStore(Path(sys.argv[1])); n = store.load().segments.get(1, StoredSegment(position=0)).position\n"
        "while True:\n"
        "    n += 1; store.store(StoredPositions(segments={1: StoredSegment(position=n)})); print(n, flush=True)\n"
    )
    stored = 0
    for lines in (1, 7, 20, 33, 50):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], cwd=_REPOSITORY, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            for _ in range(lines):
                process.stdout.readline()
            process.kill()
            said = [int(line) for line in process.stdout.read().split()]
        stored += lines + len(said)
        found = _load(tmp_path).segments[1].position
        assert found in (stored, stored + 1)
        stored = found


def test_finished_ids_are_stored_as_runs(tmp_path: Path) -> None:
    """The file must stay short after months, because it is written many times a second."""
    ids = SegmentIds([(1_000, 3_999), (4_001, 9_000)])
    store = OffsetStore(tmp_path)
    store.load()
    store.store(StoredPositions(finished=ids))
    store.close()
    assert (tmp_path / "positions-a.json").stat().st_size < 200
    assert _load(tmp_path).finished == ids


def test_lost_segments_were_not_read_in_full() -> None:
    """The log is complete only between segments that were read in full."""
    stored = StoredPositions(finished=SegmentIds([(-7, -7), (3, 9)]), lost=SegmentIds([(4, 5), (9, 9)]))
    assert stored.read_in_full.runs == [(-7, -7), (3, 3), (6, 8)]
    assert _FIRST.read_in_full == _FIRST.finished


def test_a_file_without_lost_segments_has_none(stored: Path) -> None:
    """Earlier versions neither store nor read this field."""
    path = stored / "positions-b.json"
    body = path.read_bytes().partition(b"\n")[2]
    assert json.loads(body)["lost"] == [[3, 3]]
    fields = json.loads(body)
    del fields["lost"]
    body = json.dumps(fields).encode()
    path.write_bytes(b"%08x\n%s" % (zlib.crc32(body), body))
    assert _load(stored) == replace(_SECOND, lost=SegmentIds())


def test_after_a_fallback_the_whole_generation_is_not_overwritten(stored: Path) -> None:
    """The next store replaces the damaged file, which then is the newest."""
    (stored / "positions-b.json").write_bytes(b"damaged")
    store = OffsetStore(stored)
    store.load()
    store.store(_SECOND)
    store.close()
    (stored / "positions-b.json").write_bytes(b"damaged again")
    assert _load(stored) == _FIRST


def test_two_damaged_files_are_an_error_and_not_a_fresh_start(stored: Path) -> None:
    """A silent fresh start would publish everything again."""
    for name in ("positions-a.json", "positions-b.json"):
        (stored / name).write_bytes(b"x")
    with pytest.raises(DamagedPositionsError, match=r"positions-a.json and positions-b.json are damaged"):
        _load(stored)


def test_a_left_over_temporary_file_does_not_matter(stored: Path) -> None:
    """A crash before the rename leaves the last stored positions intact."""
    (stored / "positions-a.tmp").write_bytes(b"half")
    assert _load(stored) == _SECOND


def test_a_second_agent_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    """The lock ends with the process that holds it."""
    first = OffsetStore(tmp_path)
    with pytest.raises(WorkingDirInUseError, match="another agent"):
        OffsetStore(tmp_path)
    first.close()
    OffsetStore(tmp_path).close()


def test_a_working_directory_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    """The message names the option."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cdcWorkingDir: .* cannot be used \(Not a directory\); set it to"):
        OffsetStore(tmp_path / "file" / "work")


@pytest.mark.parametrize(
    ("stored", "place"),
    [
        (StoredPositions(), (0, 0)),
        (_FIRST, (7, 100)),
        (StoredPositions(segments={7: StoredSegment(position=100)}, finished=SegmentIds.of([5, 9])), (9, 2**31 - 1)),
    ],
)
def test_the_last_place_of_stored_positions(stored: StoredPositions, place: tuple[int, int]) -> None:
    """A finished segment counts up to the largest possible position."""
    assert stored.last_place == place
