"""Limits what glibc's allocator keeps.

glibc gives each of the first threads its own arena, and an arena keeps freed memory for its own threads. The connector
has a thread or more for each table.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

__all__ = ["use_one_arena"]

_M_ARENA_MAX: Final = -8
_VARIABLE: Final = "MALLOC_ARENA_MAX"


def use_one_arena() -> None:
    """Let all threads that start from now on share one arena. The user's own MALLOC_ARENA_MAX remains.

    Does nothing with an allocator that has no arenas.
    """
    if _VARIABLE not in os.environ and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)
