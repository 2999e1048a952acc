"""Profiles a process with py-spy, if that is installed: the functions that hold the interpreter's lock."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

__all__ = ["Profiler"]

_SHOWN: Final = 12
_RATE_HZ: Final = 200


class Profiler:
    """Samples a process from the creation of this object until the process ends. A compiled function counts for its
    Python caller."""

    def __init__(self, pid: int) -> None:
        found = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}")
        self._process: subprocess.Popen[bytes] | None = None
        if found is None:
            return
        self._folder = tempfile.TemporaryDirectory()
        self._file = Path(self._folder.name) / "stacks"
        command = [found, "record", "--gil", "--format", "raw", "--rate", str(_RATE_HZ), "--duration", "3600"]
        command += ["--output", str(self._file), "--pid", str(pid)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def lines(self) -> list[str]:
        """The functions with the largest shares, or why there are none. Call it after the process has ended."""
        if self._process is None:
            return ["profile: py-spy is not installed (pip install py-spy)"]
        self._process.wait(60)
        if not self._file.exists():
            return ["profile: py-spy may not look at the agent (it needs the right to trace, as root has)"]
        own: Counter[str] = Counter()
        for line in self._file.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            own[stack.rpartition(";")[2]] += int(count)
        self._folder.cleanup()
        total = own.total() or 1
        return [
            "profile, of the time that holds the interpreter's lock:",
            *(f"{100 * count / total:>6.1f} %  {function}" for function, count in own.most_common(_SHOWN)),
        ]
