"""``sandbox.json``: the state of the servers that run, or ran, in a sandbox's folder.

The sandbox's owner and ``cdc sandbox start`` write it at each start of a server, by rename. The commands of
``cdc sandbox`` read it, and so do ``cdc status`` and other commands without ``--config``. `lock_now` keeps these commands
apart.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final

import psutil

from cdc.sandbox.errors import SandboxError

__all__ = ["ProcessId", "SandboxState", "ServerState", "lock_now", "read_state", "write_state"]

_FILE: Final = "sandbox.json"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    created: float
    """Its start, in seconds since the epoch, as psutil tells it."""

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """The process that has this pid now. If it is already gone, its start is 0, which matches no process."""
        try:
            return cls(pid=pid, created=psutil.Process(pid).create_time())
        except psutil.NoSuchProcess:
            return cls(pid=pid, created=0.0)

    def process(self) -> psutil.Process | None:
        """The process if it still runs and is no zombie, else None."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.created) < 0.05
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """One server, as of its last start."""

    name: str
    version: str
    address: str
    ports: Mapping[str, int]
    details: Mapping[str, str]
    """URLs and paths by name, for users."""
    log: str
    process: ProcessId | None
    """None before its first start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxState:
    """A sandbox, as of the last start of one of its servers."""

    cassandra: str
    """The line, such as ``5.0``."""
    nodes: int
    pulsar: bool
    address_prefix: str
    supervisor: ProcessId
    servers: tuple[ServerState, ...]


def write_state(folder: Path, state: SandboxState) -> None:
    """Replace the folder's ``sandbox.json``."""
    temporary = folder / f".{_FILE}"
    temporary.write_text(json.dumps({"format": _FORMAT, **asdict(state)}, indent=2) + "\n")
    temporary.rename(folder / _FILE)


def read_state(folder: Path) -> SandboxState | None:
    """The state in the folder; None if no sandbox was ever started in it.

    Raises SandboxError for a file that is of another format or damaged, or cannot be read.
    """
    try:
        fields = json.loads((folder / _FILE).read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise SandboxError(
            f"{folder / _FILE} may not be read by this user; use the one who started the sandbox"
        ) from error
    except (OSError, ValueError) as error:
        raise SandboxError(f"{folder / _FILE} cannot be read ({error}); remove the folder to start afresh") from error
    if not isinstance(fields, dict) or fields.pop("format", None) != _FORMAT:
        raise SandboxError(f"{folder / _FILE} is of another version of cdc; remove the folder to start afresh")
    try:
        servers = tuple(
            ServerState(**{**server, "process": ProcessId(**server["process"]) if server["process"] else None})
            for server in fields.pop("servers")
        )
        return SandboxState(**{**fields, "supervisor": ProcessId(**fields["supervisor"])}, servers=servers)
    except (KeyError, TypeError) as error:
        raise SandboxError(f"{folder / _FILE} is damaged ({error!r}); remove the folder to start afresh") from error


def lock_now(file: IO[bytes], otherwise: str) -> None:
    """Lock an open file until it is closed. Raises SandboxError with the text `otherwise` if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SandboxError(otherwise) from None
