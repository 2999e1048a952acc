"""Python environments for tests on other lines of Spark than that of .venv. They are made once by venv and pip, and
kept in the cache folder.

One environment cannot have two lines of Spark. `python -m tests.spark.environment 4.2` makes the environment of a line
and prints its interpreter. The folder's name has a hash of the requirements in pyproject.toml, so that other
requirements make another environment. Our own code is not in it, but is found by PYTHONPATH.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Final

from cdc.sandbox import artifacts
from runtime.cache_folder import cache_dir
from tests.servers.interface import REPOSITORY

__all__ = ["ensure_python", "line_jars"]

_WANTED: Final = {
    "3.5": (("spark35",), ()),
    "4.2": (("dev", "spark"), ("pyspark==4.2.*",)),  # pytest itself runs there
}
"""By line of Spark: extras of pyproject.toml, and further requirements."""

_JARS: Final = {
    "3.5": ("spark35", "spark35-iceberg"),
    "4.1": ("spark-avro", "spark-delta", "spark-iceberg"),
    "4.2": ("spark-avro", "spark-delta-4.2"),
}
"""By line of Spark: artifact sets of the sandbox."""


def ensure_python(line: str) -> Path:
    """Return the interpreter of a line's environment, and make the environment first if it does not exist.

    Raises KeyError for an unknown line.
    """
    wanted = requirements(line)
    version = ".".join(map(str, sys.version_info[:3]))
    digest = hashlib.sha256("\n".join([version, *wanted]).encode()).hexdigest()[:12]
    folder = cache_dir() / "environments" / f"spark{line.replace('.', '')}-{digest}"
    python, ready = folder / "bin" / "python", folder / ".ready"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():  # made again after an interrupted attempt
            print(f"preparing {folder} (once; some minutes on a slow network)", file=sys.stderr)
            venv.create(folder, clear=True, with_pip=True)
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", "setuptools", "wheel"], check=True)
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *wanted], check=True)
            ready.touch()
    return python


def requirements(line: str) -> list[str]:
    """The dependencies of pyproject.toml, and the further requirements of the line."""
    extras, more = _WANTED[line]
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    optional = [each for extra in extras for each in project["optional-dependencies"][extra]]
    return sorted([*project["dependencies"], *optional, *more])


def line_jars(line: str) -> list[Path]:
    """All jars that tests of a line need. Missing jars are downloaded."""
    return [jar for name in _JARS[line] for jar in artifacts.ensure(name)]


if __name__ == "__main__":
    print(ensure_python(sys.argv[1]))
