"""A Python script in a process of its own, which is killed while it works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

__all__ = ["lines_before_kill_9"]


def lines_before_kill_9(script: str, folder: Path) -> int:
    """Run a script with this folder as its argument, and kill it after 30 lines. Return how many lines it printed."""
    command = [sys.executable, "-c", script, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(30)]
        os.kill(process.pid, signal.SIGKILL)
        said += process.stdout.read().splitlines()
    return len([line for line in said if line.strip()])
