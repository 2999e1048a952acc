"""`cdc nar`: its folder, and what it fetches."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cdc.commands.nar import nar
from schemas.errors import ConfigError


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_built(tmp_path: Path) -> None:
    """One line names the option."""
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "build"
    done = CliRunner().invoke(nar, ["--out", str(out)])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == f"--out: {out} cannot be made (Not a directory); name a folder in which you may write"


def test_what_is_there_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class path of the host, and the wheels."""
    ran: list[str] = []

    def run(*command: str | Path) -> None:
        ran.append(Path(command[0]).name)
        folder = command[command.index("--target") + 1] if "--target" in command else str(command[-1]).partition("=")[2]
        Path(folder).mkdir()

    monkeypatch.setattr("source_connector.nar_build._run", run)
    for _ in range(2):
        done = CliRunner().invoke(nar, ["--fetch-only", "--out", str(tmp_path / "build")])
        assert done.exit_code == 0, done.output
        assert ran == ["mvn", Path(sys.executable).name]
    assert sorted(path.name for path in (tmp_path / "build").iterdir()) == ["nar-class-path", "nar-wheels", "nar.lock"]
