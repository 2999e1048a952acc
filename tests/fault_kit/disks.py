"""Disks that are full: `cdc_raw`, what an agent may write, and the folder to which it off-loads segments.

A move on one disk is a renaming, which no limit on the size of files stops. So that folder is on another file system, where a
move is a copy. And a segment can go only when it is finished and not sent yet: `disk-spill` silences Pulsar and fills segments.
"""

from __future__ import annotations

import os
import resource
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx
from cassandra import DriverException
from cassandra.cluster import NoHostAvailable

from cdc.agent_process import AgentProcess
from cdc.rest import rest
from cdc.sandbox import SandboxError
from tests.fault_kit.tables import KEYSPACE, UNTRACKED

if TYPE_CHECKING:
    from cassandra.cluster import Session

__all__ = [
    "HALF_A_SEGMENT",
    "NO_BYTES",
    "cdc_raw_filled",
    "failed_moves",
    "files_limited",
    "fill_segments",
    "folder_on_another_disk",
]

Limit = tuple[int, int]
"""Of RLIMIT_FSIZE: what holds, and up to what it may be raised."""

NO_BYTES: Final[Limit] = (0, resource.RLIM_INFINITY)
HALF_A_SEGMENT: Final[Limit] = (2**19, resource.RLIM_INFINITY)
_NO_LIMIT: Final[Limit] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
_CDC_RAW_BYTES: Final = 1024 * 2**20
_BALLAST: Final = "ballast"

_MEMORY: Final = Path("/dev/shm")  # no file of a foreseeable name is made there
# Twice what the agent leaves free of a disk.
_MIN_FREE_BYTES: Final = 2 * 2**30
# Segments of the sandbox are of 1 MiB, and a mutation may have half of that.
_TEXT_BYTES: Final = 75_000
_ROWS_OF_A_SEGMENT: Final = 7
_REQUEST_TIMEOUT_S: Final = 10.0
_KEY: Final = -2
_FAILED_MOVES: Final = "cdc_agent_spill_failures_total "


@contextmanager
def cdc_raw_filled(cdc_raw: Path, share: float) -> Iterator[None]:
    """So much of what Cassandra allows is taken. A sparse file counts by its length, as Cassandra and the agent reckon."""
    ballast = cdc_raw / _BALLAST
    try:
        with ballast.open("wb") as file:
            file.truncate(int(_CDC_RAW_BYTES * share))
        yield
    finally:
        ballast.unlink(missing_ok=True)


@contextmanager
def files_limited(agent: AgentProcess, limit: Limit) -> Iterator[None]:
    """The agent can make files, but no larger ones. Raises SandboxError when it ended for that."""
    with suppress(ProcessLookupError, PermissionError):
        resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, limit)
    try:
        yield
    finally:
        with suppress(ProcessLookupError, PermissionError):
            resource.prlimit(agent.pid, resource.RLIMIT_FSIZE, _NO_LIMIT)
    if not agent.running:
        raise SandboxError(f"an agent ended, for it could not write:\n{agent.log_tail()}")


def folder_on_another_disk(folder: Path) -> Path | None:
    """A new folder, in memory, where that is another file system than this folder's; the caller removes it. None: there is none."""
    try:
        is_other = _MEMORY.stat().st_dev != folder.stat().st_dev
        if not is_other or not os.access(_MEMORY, os.W_OK) or shutil.disk_usage(_MEMORY).free < _MIN_FREE_BYTES:
            return None
        return Path(tempfile.mkdtemp(prefix="cdc-faults-", dir=_MEMORY))
    except OSError:
        return None


def fill_segments(session: Session, segments: int) -> None:
    """Writes so much that each node finishes about so many segments, each with a change of a table with CDC. A node may be
    away just now: then it is less."""
    with suppress(DriverException, NoHostAvailable):
        for number in range(segments * _ROWS_OF_A_SEGMENT):
            for statement in (
                f"INSERT INTO {KEYSPACE}.{UNTRACKED} (pk, ck, v) VALUES ({_KEY}, {number}, '{secrets.token_hex(_TEXT_BYTES)}')",
                f"INSERT INTO {KEYSPACE}.only_keys (a, b) VALUES ({_KEY}, '{number}')",
            ):
                session.execute(statement, timeout=_REQUEST_TIMEOUT_S)


def failed_moves(agent: AgentProcess) -> int:
    """How often this start of the agent could not move a segment. Raises SandboxError when it does not tell."""
    try:
        # Not from its status file, which it may not be able to write.
        page = rest().get(f"http://{agent.status()['http']}/metrics").raise_for_status().text
    except httpx.HTTPError as error:
        raise SandboxError(f"an agent does not tell its metrics ({error}):\n{agent.log_tail()}") from error
    (count,) = (line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(_FAILED_MOVES))
    return int(float(count))
