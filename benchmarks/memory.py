"""Memory of a process, as Linux counts it."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["peak_rss"]


def peak_rss(pid: int) -> int:
    """The largest resident set of a process since its start, in bytes (VmHWM of proc(5))."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
