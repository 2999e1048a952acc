"""A wall clock for Python processes that can be stepped from outside.

A file holds one double: the seconds by which `time.time()` is wrong. The agent gets the clock from a `sitecustomize` on
its path. The connector's child gets it from a wrapper around its interpreter, because the child runs isolated, without
our path.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Final

__all__ = ["SteppedClock"]

_OFFSET: Final = struct.Struct("<d")

# The patch must import nothing of this project: in those processes it is a module on its own.
_PATCH: Final = """\
import mmap, struct, time
with open({file!r}, "r+b") as _file:
    _offset = mmap.mmap(_file.fileno(), 8)
_right, _unpack = time.time, struct.Struct("<d").unpack_from
def _time():
    return _right() + _unpack(_offset)[0]
time.time = _time
time.time_ns = lambda: int(_time() * 1e9)
"""
_RUN_CHILD: Final = """
import runpy, sys
_arguments = sys.argv[1:]
while _arguments and _arguments[0].startswith("-") and _arguments[0] != "-c":
    _arguments.pop(0)
if _arguments and _arguments[0] == "-c":
    sys.argv = ["-c", *_arguments[2:]]
    exec(compile(_arguments[1], "<string>", "exec"), {"__name__": "__main__"})
else:
    sys.argv = _arguments
    runpy.run_path(_arguments[0], run_name="__main__")
"""


class SteppedClock:
    """Files below `folder` that give processes a clock, which `step` moves."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._file = folder / "offset"
        self.step(0.0)
        patch = _PATCH.format(file=str(self._file))
        self._site = folder / "site"
        self._site.mkdir()
        (self._site / "sitecustomize.py").write_text(patch)
        child = folder / "child.py"
        child.write_text(patch + _RUN_CHILD)
        self.python: Final = folder / "python"
        """An interpreter for the connector's option `python`."""
        self.python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{child}" "$@"\n')
        self.python.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for a Python process that uses PYTHONPATH."""
        return {"PYTHONPATH": ":".join([str(self._site), *filter(None, sys.path)])}

    def step(self, seconds: float) -> None:
        """Make the clock wrong by these seconds from now on; 0 corrects it."""
        if self._file.exists():
            with self._file.open("r+b") as file:  # overwritten, not replaced: processes have mapped this file
                file.write(_OFFSET.pack(seconds))
        else:
            self._file.write_bytes(_OFFSET.pack(seconds))
