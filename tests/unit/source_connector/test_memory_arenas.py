"""use_one_arena: the arenas of glibc, which the allocator itself lists."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROCESS = """
import ctypes, sys, threading
from source_connector.memory_arenas import use_one_arena
if sys.argv[1] == "one":
    use_one_arena()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.fopen.restype = ctypes.c_void_p, ctypes.c_void_p
libc.malloc_info.argtypes, libc.fclose.argtypes = (ctypes.c_int, ctypes.c_void_p), (ctypes.c_void_p,)
held = threading.Barrier(5)
def allocate():
    libc.malloc(5_000)
    held.wait()
threads = [threading.Thread(target=allocate) for _ in range(4)]
for each in threads:
    each.start()
held.wait()
for each in threads:
    each.join()
file = libc.fopen(sys.argv[2].encode(), b"w")
libc.malloc_info(0, file)
libc.fclose(file)
"""


def _arenas(how: str, folder: Path, **variables: str) -> int:
    """The number of arenas of a process in which four threads have allocated memory."""
    environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"} | variables
    listed = folder / "arenas.xml"
    command = [sys.executable, "-c", _PROCESS, how, str(listed)]
    subprocess.run(command, env=environment, check=True, timeout=120)
    return listed.read_text().count("<heap nr=")


@pytest.mark.skipif(sys.platform != "linux", reason="arenas are glibc's")
def test_threads_share_one_arena(tmp_path: Path) -> None:
    """Without the call, each thread has its own."""
    assert _arenas("one", tmp_path) == 1
    assert _arenas("several", tmp_path) > 1


@pytest.mark.skipif(sys.platform != "linux", reason="arenas are glibc's")
def test_the_users_own_number_of_arenas_remains(tmp_path: Path) -> None:
    """A user may set MALLOC_ARENA_MAX for the functions worker, whose instances inherit it."""
    assert _arenas("one", tmp_path, MALLOC_ARENA_MAX="3") == 3
