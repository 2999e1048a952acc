"""Reads the state of a sandbox in a folder from outside, and ends it, for ``cdc sandbox status`` and ``down``."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

import httpx
import psutil

from cdc.rest import rest
from cdc.sandbox.errors import SandboxError
from cdc.sandbox.native_protocol import NotServingError, count_rows
from cdc.sandbox.server import SANDBOX_VARIABLE
from cdc.sandbox.state import SandboxState, ServerState, lock_now, read_state

__all__ = ["Condition", "ServerStatus", "answers", "foreign_files", "server_statuses", "take_down"]

Condition: TypeAlias = Literal["ready", "unresponsive", "stopped"]

_PROBE_TIMEOUT_S: Final = 3.0
_PROBE_PAUSE_S: Final = 0.5
_SUPERVISOR_WAIT_S: Final = 60.0  # the supervisor kills its servers after 20 s
_END_LOOK_S: Final = 0.05
_STRAY_WAIT_S: Final = 10.0
_OF_SANDBOX: Final = re.compile(r"logs|lock|control\.sock")
_OF_SERVERS: Final = re.compile(r"cassandra-\d+|pulsar|\.sandbox\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """A server and its present condition. ``unresponsive``: its process runs, but it does not answer (yet)."""

    server: ServerState
    condition: Condition


def server_statuses(folder: Path, *, patience_s: float = 0.0) -> list[ServerStatus]:
    """The conditions of the servers in a folder; empty if no sandbox was ever started there.

    A server that does not answer is asked again for ``patience_s``.
    """
    deadline = time.monotonic() + patience_s
    while True:
        state = read_state(folder)
        servers = state.servers if state else ()
        statuses = [ServerStatus(server=server, condition=_condition(server)) for server in servers]
        if time.monotonic() >= deadline or all(each.condition != "unresponsive" for each in statuses):
            return statuses
        time.sleep(_PROBE_PAUSE_S)


def take_down(folder: Path, *, remove: bool = False) -> int:
    """End all processes of the folder's sandbox, first by SIGTERM. Return the number of servers that ran.

    Afterwards none of its processes and ports is left. The data stays, unless ``remove`` is True. If no sandbox runs,
    there is nothing to end. Raises SandboxError if a process survives SIGKILL, or may not be ended by this user, and
    while a start has not written its state yet.
    """
    state = read_state(folder)
    running = 0
    if state is not None:
        _check_owner(folder, state)
        running = sum(1 for server in state.servers if server.process and server.process.process())
        _end_supervisor(state)
    _end_strays(folder)
    with _lock(folder) as is_sandbox:
        if remove and (state is not None or (is_sandbox and not foreign_files(folder))):
            shutil.rmtree(folder.resolve())
            if folder.is_symlink():
                folder.unlink()
    return running


def foreign_files(folder: Path) -> list[str]:
    """The names of the files that no sandbox has made, sorted, in a folder without a sandbox's state.

    A first start that failed before it wrote its state has locked the folder, and no server has run in it.
    """
    names = {entry.name for entry in folder.iterdir() if not _OF_SANDBOX.fullmatch(entry.name)}
    is_unused = (folder / "lock").exists() and {each.name for each in folder.glob("logs/*")} <= {"supervisor.log"}
    return sorted(name for name in names if not (is_unused and _OF_SERVERS.fullmatch(name)))


def _condition(server: ServerState) -> Condition:
    if server.process is None or server.process.process() is None:
        return "stopped"
    return "ready" if answers(server) else "unresponsive"


def answers(server: ServerState) -> bool:
    """Return True if the server serves clients now."""
    try:
        if "native" in server.ports:
            count_rows(server.address, server.ports["native"], "system.local", _PROBE_TIMEOUT_S)
            return True
        url = f"http://{server.address}:{server.ports['web']}/admin/v2/worker/cluster/leader/ready"
        return rest().get(url, timeout=_PROBE_TIMEOUT_S).status_code == httpx.codes.OK
    except (NotServingError, httpx.HTTPError):
        return False


@contextmanager
def _lock(folder: Path) -> Iterator[bool]:
    """A context in which no sandbox starts in the folder. Its value is False if none ever locked the folder.

    Raises SandboxError if a sandbox has the lock.
    """
    try:
        file = (folder / "lock").open("rb")
    except (FileNotFoundError, NotADirectoryError):
        yield False
        return
    with file:
        lock_now(
            file,
            f"a sandbox that is just starting, or that this user may not see, has the lock of {folder}; end its"
            " `cdc sandbox up` by Ctrl-C, or try again when it is ready",
        )
        yield True


def _check_owner(folder: Path, state: SandboxState) -> None:
    """Raise SandboxError if a process of the sandbox is of another user. Root may end all processes."""
    for each in [state.supervisor, *(server.process for server in state.servers)]:
        process = None if each is None else each.process()
        with suppress(psutil.NoSuchProcess):
            if process is not None and os.geteuid() not in {0, process.uids().real}:
                raise SandboxError(
                    f"the sandbox in {folder} runs as the user {process.username()} (pid {process.pid});"
                    f" nothing was ended: call `cdc sandbox down` as this user, or as root"
                )


def _end_supervisor(state: SandboxState) -> None:
    """End the supervisor, at first by SIGTERM. Its zombie may remain, because nobody may collect it in a container."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _SUPERVISOR_WAIT_S
        with suppress(psutil.NoSuchProcess):
            if (supervisor := state.supervisor.process()) is not None:
                supervisor.send_signal(number)
        while state.supervisor.process() is not None and time.monotonic() < deadline:
            time.sleep(_END_LOOK_S)
    if state.supervisor.process() is not None:
        raise SandboxError(f"the supervisor, process {state.supervisor.pid}, survived SIGKILL; it hangs in the kernel")


def _end_strays(folder: Path) -> None:
    """Kill the processes that are left after a supervisor was killed.

    These are function instances, which run until they miss Pulsar's health checks.
    """
    deadline = time.monotonic() + _STRAY_WAIT_S
    while strays := list(_processes_of(folder)):
        if time.monotonic() > deadline:
            raise SandboxError(f"processes {', '.join(str(stray.pid) for stray in strays)} survived SIGKILL")
        for stray in strays:
            with suppress(psutil.NoSuchProcess):
                stray.kill()
        psutil.wait_procs(strays, timeout=1)


def _processes_of(folder: Path) -> Iterator[psutil.Process]:
    own = os.getuid()
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.uids().real == own and process.environ().get(SANDBOX_VARIABLE) == str(folder):
                yield process
