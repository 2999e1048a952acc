"""Runs a Spark driver of the tests in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["run_driver"]

_REPOSITORY: Final = Path(__file__).parents[2]
_PATIENCE_S: Final = 1_200


def run_driver(command: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
    """Run a driver until it has ended, and return its exit code. Its JVM, which would end by itself only later, is killed."""
    with log.open("wb") as output:
        driver = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=_REPOSITORY,
            start_new_session=True,
        )
    try:
        return driver.wait(timeout=_PATIENCE_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
