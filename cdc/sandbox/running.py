"""Reads the state of a sandbox in a folder from outside, and ends it, for ``cdc sandbox status`` and ``down``."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

import httpx
import psutil

from cdc.rest import rest
from cdc.sandbox.errors import SandboxError
from cdc.sandbox.native_protocol import NotServingError, count_rows
from cdc.sandbox.server import SANDBOX_VARIABLE
from cdc.sandbox.state import SandboxState, ServerState, read_state

__all__ = ["Condition", "ServerStatus", "answers", "server_statuses", "take_down"]

Condition: TypeAlias = Literal["ready", "unresponsive", "stopped"]

_PROBE_TIMEOUT_S: Final = 3.0
_PROBE_PAUSE_S: Final = 0.5
_SUPERVISOR_WAIT_S: Final = 60.0  # the supervisor kills its servers after 20 s
_STRAY_WAIT_S: Final = 10.0


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
    there is nothing to end. Raises SandboxError if a process survives SIGKILL, or may not be ended by this user.
    """
    state = read_state(folder)
    running = 0
    if state is not None:
        _check_owner(folder, state)
        running = sum(1 for server in state.servers if server.process and server.process.process())
        _end_supervisor(state)
    _end_strays(folder)
    if remove and state is not None:  # never a folder that holds no sandbox
        shutil.rmtree(folder.resolve())
        if folder.is_symlink():
            folder.unlink()
    return running


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
    supervisor = state.supervisor.process()
    if supervisor is None:
        return
    with suppress(psutil.NoSuchProcess):
        supervisor.terminate()
        try:
            supervisor.wait(_SUPERVISOR_WAIT_S)
        except psutil.TimeoutExpired:
            supervisor.kill()
            supervisor.wait(_SUPERVISOR_WAIT_S)


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
