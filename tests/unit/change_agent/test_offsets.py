"""OffsetStore: positions survive damage and crashes, and only one agent writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from change_agent.offsets import (
    DamagedPositionsError,
    OffsetStore,
    StoredPositions,
    StoredSegment,
    WorkingDirInUseError,
)
from schemas.errors import ConfigError

_FIRST = StoredPositions(segments={7: StoredSegment(position=100)}, finished=frozenset({5, 6}))
_SECOND = StoredPositions(
    segments={7: StoredSegment(position=200, keep=True), 8: StoredSegment(position=20)}, finished=frozenset({5, 6})
)


def _load(directory: Path) -> StoredPositions:
    store = OffsetStore(directory)
    try:
        return store.load()
    finally:
        store.close()


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A directory in which two generations were stored."""
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
    """All of them, with what must be kept and what is finished."""
    assert _load(stored) == _SECOND


@pytest.mark.parametrize("damage", [b"", b"00000000\n{}", b"\0" * 200])
def test_a_damaged_newest_file_falls_back_to_the_generation_before(stored: Path, damage: bytes) -> None:
    """The older file is whole."""
    (stored / "positions-b.json").write_bytes(damage)
    assert _load(stored) == _FIRST


@pytest.mark.parametrize("cut", range(0, 40, 3))
def test_a_cut_file_is_noticed(stored: Path, cut: int) -> None:
    """Whatever was cut off, the checksum does not fit."""
    path = stored / "positions-b.json"
    path.write_bytes(path.read_bytes()[: -cut - 1])
    assert _load(stored) == _FIRST


def test_after_a_fallback_the_whole_generation_is_not_overwritten(stored: Path) -> None:
    """The next store replaces the damaged file, and is the newest."""
    (stored / "positions-b.json").write_bytes(b"damaged")
    store = OffsetStore(stored)
    store.load()
    store.store(_SECOND)
    store.close()
    (stored / "positions-b.json").write_bytes(b"damaged again")
    assert _load(stored) == _FIRST


def test_two_damaged_files_are_an_error_and_not_a_fresh_start(stored: Path) -> None:
    """Starting over in silence would publish everything again."""
    for name in ("positions-a.json", "positions-b.json"):
        (stored / name).write_bytes(b"x")
    with pytest.raises(DamagedPositionsError, match=r"positions-a.json and positions-b.json are damaged"):
        _load(stored)


def test_a_left_over_temporary_file_does_not_matter(stored: Path) -> None:
    """A crash before the rename leaves the generation before."""
    (stored / "positions-a.tmp").write_bytes(b"half")
    assert _load(stored) == _SECOND


def test_a_second_agent_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    """The lock goes with the process that holds it."""
    first = OffsetStore(tmp_path)
    with pytest.raises(WorkingDirInUseError, match="another agent"):
        OffsetStore(tmp_path)
    first.close()
    OffsetStore(tmp_path).close()


def test_a_working_directory_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    """The line names the option."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cdcWorkingDir: .* cannot be used \(Not a directory\); set it to"):
        OffsetStore(tmp_path / "file" / "work")
