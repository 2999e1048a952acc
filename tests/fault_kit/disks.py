"""Full disks: `cdc_raw`, the files that an agent writes, and the spill folder.

On one disk, a move is a rename, which a limit on the size of files does not stop. So the spill folder is on another
file system, where a move is a copy. The agent off-loads only segments that are finished and not published yet. So
`disk-spill` silences Pulsar and fills segments.
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
"""RLIMIT_FSIZE: the soft limit and the hard limit."""

NO_BYTES: Final[Limit] = (0, resource.RLIM_INFINITY)
HALF_A_SEGMENT: Final[Limit] = (2**19, resource.RLIM_INFINITY)
_NO_LIMIT: Final[Limit] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
_CDC_RAW_BYTES: Final = 1024 * 2**20
_BALLAST: Final = "ballast"

_MEMORY: Final = Path("/dev/shm")  # no file with a predictable name is made there
# Twice the space that the agent leaves free on a disk.
_MIN_FREE_BYTES: Final = 2 * 2**30
# The sandbox has segments of 1 MiB. A mutation may have half of that. The text is written as hex digits, two a byte.
_TEXT_BYTES: Final = 75_000
_ROWS_OF_A_SEGMENT: Final = 7
_REQUEST_TIMEOUT_S: Final = 10.0
_KEY: Final = -2
_FAILED_MOVES: Final = "cdc_agent_spill_failures_total "


@contextmanager
def cdc_raw_filled(cdc_raw: Path, share: float) -> Iterator[None]:
    """Take this share of the size that Cassandra allows for `cdc_raw`. Cassandra and the agent count a sparse file by
    its length."""
    ballast = cdc_raw / _BALLAST
    try:
        with ballast.open("wb") as file:
            file.truncate(int(_CDC_RAW_BYTES * share))
        yield
    finally:
        ballast.unlink(missing_ok=True)


@contextmanager
def files_limited(agent: AgentProcess, limit: Limit) -> Iterator[None]:
    """Let the agent write files only up to the limit. Raises SandboxError when the agent has ended."""
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
    """Return a new folder in /dev/shm, which the caller removes. Return None if /dev/shm is not writable, has not
    enough free space, or is the file system of the given folder."""
    try:
        is_other = _MEMORY.stat().st_dev != folder.stat().st_dev
        if not is_other or not os.access(_MEMORY, os.W_OK) or shutil.disk_usage(_MEMORY).free < _MIN_FREE_BYTES:
            return None
        return Path(tempfile.mkdtemp(prefix="cdc-faults-", dir=_MEMORY))
    except OSError:
        return None


def fill_segments(session: Session, segments: int) -> None:
    """Write until each node has finished about this number of segments, each with a change of a table with CDC. Stop
    early if a statement fails, for example because a node is down."""
    with suppress(DriverException, NoHostAvailable):
        for number in range(segments * _ROWS_OF_A_SEGMENT):
            for statement in (
                f"INSERT INTO {KEYSPACE}.{UNTRACKED} (pk, ck, v) VALUES ({_KEY}, {number}, '{secrets.token_hex(_TEXT_BYTES)}')",
                f"INSERT INTO {KEYSPACE}.only_keys (a, b) VALUES ({_KEY}, '{number}')",
            ):
                session.execute(statement, timeout=_REQUEST_TIMEOUT_S)


def failed_moves(agent: AgentProcess) -> int:
    """How many moves of segments have failed since the agent's start. Raises SandboxError when it does not give its
    metrics."""
    try:
        # Not from the status file, because the agent may be unable to write it.
        page = rest().get(f"http://{agent.status()['http']}/metrics").raise_for_status().text
    except httpx.HTTPError as error:
        raise SandboxError(f"an agent does not tell its metrics ({error}):\n{agent.log_tail()}") from error
    (count,) = (line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(_FAILED_MOVES))
    return int(float(count))
