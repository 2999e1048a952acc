"""`cdc nar`: its output folder."""

from __future__ import annotations

from pathlib import Path

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
