"""States in a folder, read while another process writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_bridge.jobs.state_file import newest_state
from spark_bridge.reading.folders import FsspecFolder


class _BesideAWriter(FsspecFolder):
    """A folder in which a writer replaces all states by newer ones after each of the first listings."""

    def __init__(self, folder: Path, writes: int) -> None:
        super().__init__(str(folder))
        self._folder = folder
        self._writes = writes

    def names(self) -> list[str]:
        found = super().names()
        if self._writes:
            self._writes -= 1
            newest = max(int(name.removesuffix(".json")) for name in found)
            for name in found:
                (self._folder / name).unlink()
            (self._folder / f"{newest + 2}.json").write_text(f"state {newest + 2}")
        return found


@pytest.mark.parametrize("writes", [0, 1, 3])
def test_a_state_that_newer_ones_replace_meanwhile_is_no_error(tmp_path: Path, writes: int) -> None:
    (tmp_path / "1.json").write_text("state 1")
    assert newest_state(_BesideAWriter(tmp_path, writes)) == f"state {1 + 2 * writes}"


def test_a_newest_state_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text("state 1")
    (tmp_path / "2.json").mkdir()
    with pytest.raises(OSError, match=r"2\.json"):
        newest_state(FsspecFolder(str(tmp_path)))


def test_a_folder_without_a_state_has_none(tmp_path: Path) -> None:
    assert newest_state(FsspecFolder(str(tmp_path / "none"))) is None
