"""The setup of the virtual environment by make. A script replaces Python, and creates environments of one file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parent.parent.parent
_PYTHON = f"""#!/bin/sh
here=$(dirname "$0")
case "$*" in
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip --version") [ ! -e "$here/pip-in-pieces" ] ;;
"-m pip install "*) touch "$here/$PIP_LEAVES"; exit "$PIP_ENDS_WITH" ;;
*) exec {sys.executable} "$@" ;;
esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the files that the rule of the environment needs."""
    for name in ("Makefile", "pyproject.toml", "cdc/prerequisites.sh", "tests/tools/dependency_lock_constraints.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(_ROOT / name, tmp_path / name)
    (tmp_path / "python").write_text(_PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def make_environment(clone: Path, pip_leaves: str, *, pip_ends_with: int = 0) -> int:
    """Return the exit code of make, for a pip that writes this file and ends with this code."""
    return subprocess.run(
        ["make", ".venv/.ready", f"PYTHON={clone / 'python'}"],
        cwd=clone,
        env={**os.environ, "PIP_LEAVES": pip_leaves, "PIP_ENDS_WITH": str(pip_ends_with)},
        capture_output=True,
        check=False,
    ).returncode


@pytest.mark.parametrize("mark_is_there", [True, False])
def test_an_interrupted_set_up_is_begun_anew(clone: Path, mark_is_there: bool) -> None:
    """The broken environment is removed, also without the mark if its pip does not start."""
    assert make_environment(clone, "pip-in-pieces", pip_ends_with=1) != 0
    if not mark_is_there:
        (clone / ".venv.unfinished").unlink()
    assert make_environment(clone, "packages") == 0
    assert {path.name for path in (clone / ".venv" / "bin").iterdir()} == {"python", "packages"}
    assert (clone / ".venv" / ".ready").exists()
    assert not (clone / ".venv.unfinished").exists()


def test_a_whole_environment_is_kept_and_brought_up_to_date(clone: Path) -> None:
    """It is updated after a change of pyproject.toml.

    If the update is interrupted, the environment is created again.
    """
    assert make_environment(clone, "packages") == 0
    newer = (clone / ".venv" / ".ready").stat().st_mtime + 10
    os.utime(clone / "pyproject.toml", (newer, newer))
    assert make_environment(clone, "more", pip_ends_with=1) != 0
    assert (clone / ".venv" / "bin" / "packages").exists()
    assert make_environment(clone, "others") == 0
    assert not (clone / ".venv" / "bin" / "packages").exists()
