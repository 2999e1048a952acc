"""The Python environment of the tests on PySpark 3.5: made once by venv and pip, kept in the cache folder.

`python -m tests.spark35_environment` makes it and prints its interpreter. Its folder carries a hash of what pyproject.toml
asks for, so that another range is another environment. Our own code is not in it: PYTHONPATH says where that is.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

from cdc.sandbox.artifacts import cache_dir
from tests.servers import REPOSITORY

__all__ = ["ensure_python"]


def ensure_python() -> Path:
    """The environment's interpreter; the environment is made first if it is not there."""
    wanted = requirements()
    version = ".".join(map(str, sys.version_info[:3]))
    digest = hashlib.sha256("\n".join([version, *wanted]).encode()).hexdigest()[:12]
    folder = cache_dir() / "environments" / f"spark35-{digest}"
    python, ready = folder / "bin" / "python", folder / ".ready"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():  # also after an attempt that was cut off
            print(f"preparing {folder} (once; some minutes on a slow network)", file=sys.stderr)
            venv.create(folder, clear=True, with_pip=True)
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", "setuptools", "wheel"], check=True)
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *wanted], check=True)
            ready.touch()
    return python


def requirements() -> list[str]:
    """What pyproject.toml asks for: the dependencies and the extra `spark35`."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    return sorted([*project["dependencies"], *project["optional-dependencies"]["spark35"]])


if __name__ == "__main__":
    print(ensure_python())
