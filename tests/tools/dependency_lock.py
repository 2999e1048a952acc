"""Writes the locks, with the hashes of all files of each version, so that any Python and platform finds its own.

    pip install 'pip-tools>=7.5,<8'
    python -m tests.tools.dependency_lock                              # keeps what is pinned, adds what is new
    python -m tests.tools.dependency_lock --upgrade                    # takes the newest versions
    python -m tests.tools.dependency_lock --upgrade-package fastavro   # of one package

`requirements.lock`: every package of an installation with the extras `spark` and `compile`. The connector's archive takes
some of them, which stand in a lock of their own beside its Java host, for that is what an installation has of the repository.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from source_connector.nar_build import WHEELS, WHEELS_LOCK

__all__ = ["LOCK", "locked"]

LOCK = Path(__file__).parents[2] / "requirements.lock"
_HEADER = """\
# Made by `make lock` (tests/tools/dependency_lock.py); for Linux, Python 3.11 or later. Install with:
#   pip install --require-hashes -r requirements.lock && pip install --no-deps --no-build-isolation .
"""
_WHEELS_HEADER = (
    "# Made by `make lock` (tests/tools/dependency_lock.py): what the connector's archive takes of requirements.lock.\n"
)
_EXTRAS = ("spark", "compile")
_CONSTRAINTS = Path(__file__).parent / "dependency_lock_constraints.txt"


def locked(lock: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """Version and SHA-256 of the files of each package, by its normalised name."""
    found = {}
    for requirement in _requirements(lock):
        name, version = re.split("==| ", requirement)[:2]
        found[name] = version, frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})\b", requirement))
    return found


def _requirements(lock: Path) -> list[str]:
    """One text for each package, with its continuation lines."""
    lines = [line for line in lock.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return re.split(r"\n(?=\S)", "\n".join(lines))


def main() -> None:
    """Write both locks, with the command line's options for pip-compile."""
    extras = [word for extra in _EXTRAS for word in ("--extra", extra)]
    # pip-compile takes setuptools, which builds this project, for unsafe.
    options = [
        "--generate-hashes",
        "--no-reuse-hashes",
        "--allow-unsafe",
        "--strip-extras",
        "--no-annotate",
        "--no-header",
    ]
    here = ["--no-emit-find-links", "--no-emit-index-url", "--no-emit-trusted-host", "--quiet"]
    narrowed = ["--constraint", str(_CONSTRAINTS)]
    command = [sys.executable, "-m", "piptools", "compile", *options, *here, *narrowed, *extras, *sys.argv[1:]]
    subprocess.run([*command, "--output-file", LOCK.name, "pyproject.toml"], check=True, cwd=LOCK.parent)
    requirements = _requirements(LOCK)
    LOCK.write_text(_HEADER + "\n".join(requirements) + "\n", encoding="utf-8")
    wheels = [each for each in requirements if each.partition("==")[0] in WHEELS]
    WHEELS_LOCK.write_text(_WHEELS_HEADER + "\n".join(wheels) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
