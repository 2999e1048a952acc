"""Command lines and limits of processes, from `/proc`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["connectors_below", "limit_of", "process_lines"]


def process_lines() -> Iterator[tuple[str, str]]:
    """Yield the name and the command line, as `ps` shows it, of all processes but this one."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                yield f"process {folder.name}", (folder / "cmdline").read_bytes().decode("utf-8", "replace")
            except OSError:  # it has ended
                continue


def connectors_below(folder: Path) -> list[int]:
    """The ids of connector processes that run from an archive unpacked below this folder."""
    return [
        int(where.split()[1])
        for where, line in process_lines()
        if line.startswith("\0".join((sys.executable, "-I", "-S", str(folder))))
    ]


def limit_of(limits: str, name: str) -> list[str]:
    """The soft and the hard limit of this name, from the text of `/proc/<pid>/limits`."""
    (line,) = (line for line in limits.splitlines() if line.startswith(name))
    return line.removeprefix(name).split()[:2]
