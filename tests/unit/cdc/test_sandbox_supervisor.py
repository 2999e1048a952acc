"""The guarantees of the supervisor, with small real processes instead of servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from cdc.sandbox import SandboxError
from cdc.sandbox.supervision import SupervisorChannel, attach

_REPOSITORY = Path(__file__).parents[3]
# A server that starts a child in its group and one outside of it, writes their pids, and waits.
_SERVER = "sleep 60 & echo $! > group.pid; setsid sh -c 'echo $$ > away.pid; exec sleep 60' & wait"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a sandbox."""
    (tmp_path / "logs").mkdir()
    return tmp_path


@pytest.fixture
def supervisor(folder: Path) -> Iterator[SupervisorChannel]:
    """A supervisor owned by this process."""
    channel = SupervisorChannel(folder, held=[], remove_folder=False)
    yield channel
    if psutil.pid_exists(channel.pid):
        channel.shutdown(0)


def _spawn(supervisor: SupervisorChannel, folder: Path, script: str = _SERVER) -> int:
    return supervisor.spawn("server", ["sh", "-c", script], dict(os.environ), folder, folder / "logs" / "server.log")


def _eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _children(folder: Path) -> list[int]:
    files = [folder / "group.pid", folder / "away.pid"]
    assert _eventually(lambda: all(file.exists() and file.read_text().endswith("\n") for file in files))
    return [int(file.read_text()) for file in files]


def test_shutdown_ends_servers_and_everything_they_started(supervisor: SupervisorChannel, folder: Path) -> None:
    """No process of a sandbox is left, also none outside of its process group."""
    server = _spawn(supervisor, folder)
    processes = [server, supervisor.pid, *_children(folder)]
    supervisor.shutdown(0)
    assert [pid for pid in processes if _alive(pid)] == []


def test_a_killed_server_takes_its_children_with_it(supervisor: SupervisorChannel, folder: Path) -> None:
    """Pulsar's function instances must not run together with those of the next Pulsar."""
    _spawn(supervisor, folder)
    children = _children(folder)
    supervisor.signal("server", signal.SIGKILL)
    assert _eventually(lambda: supervisor.returncode("server") == -9)
    assert _eventually(lambda: not any(_alive(pid) for pid in children))


def test_a_server_can_be_started_again_under_its_name(supervisor: SupervisorChannel, folder: Path) -> None:
    """Fault tests restart nodes in this way."""
    first = _spawn(supervisor, folder, "exit 3")
    assert _eventually(lambda: supervisor.returncode("server") == 3)
    second = _spawn(supervisor, folder, "exec sleep 60")
    assert first != second
    assert supervisor.returncode("server") is None


def test_the_same_server_is_not_started_twice_at_once(supervisor: SupervisorChannel, folder: Path) -> None:
    """Two processes with the same data folder would destroy it."""
    _spawn(supervisor, folder, "exec sleep 60")
    with pytest.raises(SandboxError, match="server runs already"):
        _spawn(supervisor, folder, "exec sleep 60")


def test_a_program_that_is_not_there_is_an_error(supervisor: SupervisorChannel, folder: Path) -> None:
    """The supervisor keeps running."""
    with pytest.raises(SandboxError, match="FileNotFoundError"):
        supervisor.spawn("server", ["/no/such/program"], {}, folder, folder / "logs" / "server.log")
    assert _spawn(supervisor, folder, "exec sleep 60") > 0


@pytest.mark.parametrize("line", [b"no JSON", b"\xff", b"[1]", b"7", b'{"op": []}'])
def test_a_line_that_is_no_request_ends_nothing(supervisor: SupervisorChannel, folder: Path, line: bytes) -> None:
    """The answer is an error, and the next request is served."""
    pid = _spawn(supervisor, folder)
    supervisor._channel.sendall(line + b"\n")
    assert "error" in json.loads(supervisor._replies.readline())
    assert supervisor.returncode("server") is None
    assert _alive(pid)


def test_shutdown_gives_servers_time_to_end_by_themselves(supervisor: SupervisorChannel, folder: Path) -> None:
    """`cdc sandbox down` keeps the data, so Cassandra must be able to end in order."""
    _spawn(supervisor, folder, "trap 'echo done > ended; exit 0' TERM; echo > ready; while :; do sleep 0.01; done")
    assert _eventually((folder / "ready").exists)
    supervisor.shutdown(10)
    assert (folder / "ended").read_text() == "done\n"


_OWNER = """
import os, sys, time
from pathlib import Path
from cdc.sandbox.supervision import SupervisorChannel, attach
folder = Path(sys.argv[1])
supervisor = SupervisorChannel(folder, held=[], remove_folder=sys.argv[2] == "remove")
log = folder / "logs" / "server.log"
server = supervisor.spawn("server", ["sh", "-c", sys.argv[3]], dict(os.environ), folder, log)
if sys.argv[2] == "detach":
    supervisor.detach()
if os.fork() == 0:  # a child that holds the channel open must not keep the servers alive
    time.sleep(30)
    os._exit(0)
print(supervisor.pid, server, flush=True)
if sys.argv[2] != "detach":
    time.sleep(30)
"""


def _owner(folder: Path, mode: str) -> tuple[subprocess.Popen[str], int, int]:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(folder), mode, _SERVER],
        stdout=subprocess.PIPE,
        text=True,
        cwd=_REPOSITORY,
        start_new_session=True,
    )
    assert owner.stdout is not None
    supervisor, server = map(int, owner.stdout.readline().split())
    return owner, supervisor, server


def _end_owner(owner: subprocess.Popen[str]) -> None:
    os.killpg(owner.pid, signal.SIGKILL)
    owner.wait()
    assert owner.stdout is not None
    owner.stdout.close()


@pytest.mark.parametrize("mode", ["keep", "remove"])
def test_nothing_outlives_an_owner_that_is_killed(folder: Path, mode: str) -> None:
    """After a crash of a test run, no server and no temporary folder is left."""
    owner, supervisor, server = _owner(folder, mode)
    processes = [supervisor, server, *_children(folder)]
    owner.kill()  # only the owner: its forked child lives on
    assert _eventually(lambda: not any(_alive(pid) for pid in processes))
    assert folder.exists() == (mode == "keep")
    _end_owner(owner)


def test_a_detached_sandbox_outlives_its_owner_until_it_is_told_to_end(folder: Path) -> None:
    """`cdc sandbox up` returns, and its servers keep running. `down` sends SIGTERM to the supervisor."""
    owner, supervisor, server = _owner(folder, "detach")
    children = _children(folder)
    _end_owner(owner)
    time.sleep(0.2)
    assert _alive(server)
    os.kill(supervisor, signal.SIGTERM)
    assert _eventually(lambda: not any(_alive(pid) for pid in [supervisor, server, *children]))


def test_one_server_of_a_detached_sandbox_is_killed_and_started_again_as_it_was(folder: Path) -> None:
    """`cdc sandbox kill` and `start` are other processes, and several of them may run."""
    owner, supervisor, server = _owner(folder, "detach")
    children = _children(folder)
    _end_owner(owner)
    channel, other = attach(folder), attach(folder)
    other.close()
    assert (folder / "control.sock").stat().st_mode & 0o777 == 0o700
    channel.signal("server", signal.SIGKILL)
    assert _eventually(lambda: channel.returncode("server") == -9)
    assert _eventually(lambda: not any(_alive(pid) for pid in [server, *children]))
    launch = channel.launch("server")
    assert (list(launch.argv), launch.cwd) == (["sh", "-c", _SERVER], folder)
    again = channel.spawn("server", launch.argv, launch.env, launch.cwd, folder / "logs" / "server.log")
    with pytest.raises(SandboxError, match="server runs already"):
        channel.spawn("server", launch.argv, launch.env, launch.cwd, folder / "logs" / "server.log")
    channel.close()
    assert _alive(again)
    os.kill(supervisor, signal.SIGTERM)
    assert _eventually(lambda: not any(_alive(pid) for pid in [supervisor, again]))
    with pytest.raises(
        SandboxError, match=rf"no sandbox runs in {folder}; start it with `cdc sandbox up --dir {folder}`"
    ):
        attach(folder)


def test_servers_die_with_a_supervisor_that_is_killed(folder: Path) -> None:
    """The kernel kills them, so it does not depend on other processes."""
    owner, supervisor, server = _owner(folder, "detach")
    orphans = _children(folder)  # which `cdc sandbox down` finds by their environment
    os.kill(supervisor, signal.SIGKILL)
    assert _eventually(lambda: not _alive(server))
    for orphan in orphans:
        os.kill(orphan, signal.SIGKILL)
    _end_owner(owner)
