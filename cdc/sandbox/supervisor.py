"""The supervisor: one small process for each sandbox. It is the parent of the servers, and they end with it.

It runs as a script (``python -P supervisor.py ...``) and imports no module of this project, so it starts fast and does
not need the project's path. It ends all servers, and then itself, when

- its owner closes the control channel or dies, for any reason, unless the owner has detached. The supervisor watches
  the channel and a pidfd of the owner, because a forked child of the owner may hold the channel open;
- it gets SIGTERM or SIGINT: ``cdc sandbox down`` ends a detached supervisor by SIGTERM.

If the supervisor is killed, the kernel kills the servers (PR_SET_PDEATHSIG). The servers are started here, because that
signal depends on the thread that forks, and this process has only one. Each server leads its own process group, which
is killed when the server has ended; Pulsar's function instances are in this group. Processes that have left the group
become children of the supervisor (PR_SET_CHILD_SUBREAPER), and are killed as well.

Control channel: a Unix stream socket with one JSON object for each line, and one answer for each request. After
`detach`, all processes of the same user may connect to ``control.sock`` in the sandbox's folder and send the same
requests. The end of such a connection ends nothing.

    {"op": "spawn", "name": N, "argv": [..], "env": {..}, "cwd": P, "log": P}    {"pid": 123}
    {"op": "launch", "name": N}                      {"argv": [..], "env": {..}, "cwd": P} of its last start
    {"op": "signal", "name": N, "signal": 9}                                     {}
    {"op": "poll", "name": N}                                                    {"returncode": null | -9}
    {"op": "detach"}                                                             {}
    {"op": "shutdown", "grace_s": 10}                                            {} after the last process is gone

The answer to a request that fails is {"error": "..."}. With ``--remove-folder``, the supervisor removes the sandbox's
folder at its end, so that a killed owner leaves no files behind.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import psutil

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_CONTROL: Final = "control.sock"
_DETACHED_GRACE_S: Final = 20.0
_KILL_WAIT_S: Final = 30.0
_Message: TypeAlias = dict[str, Any]
_libc = ctypes.CDLL(None, use_errno=True)


class _Channel:
    """The supervisor's end of a control channel: receives requests, and answers them."""

    def __init__(self, connection: socket.socket, answer: Callable[[bytes], _Message]) -> None:
        self.connection = connection
        self._answer = answer
        self._received = b""

    def serve(self) -> bool:
        """Answer the requests that have arrived. Return False if the other end is closed."""
        try:
            data = self.connection.recv(65536)
        except ConnectionError:
            data = b""
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            answer = self._answer(line)
            with suppress(OSError):  # the other end is closed; the next `recv` shows it, too
                self.connection.sendall(json.dumps(answer).encode() + b"\n")
        return bool(data)


class Supervisor:
    """Owns the servers' processes. Single-threaded: everything happens in :meth:`run`."""

    def __init__(self, channel: socket.socket, owner_pid: int, folder: Path) -> None:
        self._owner = _Channel(channel, self._answer)
        self._folder = folder
        self._servers: dict[str, int] = {}  # name -> pid of the last start, also the id of its process group
        self._launches: dict[str, _Message] = {}
        self._returncodes: dict[str, int] = {}  # of servers that ended
        self._selector = selectors.DefaultSelector()
        self._stop_grace_s: float | None = None
        self._owner_pidfd = _open_pidfd(owner_pid)
        self._operations: dict[str, Callable[[_Message], _Message]] = {
            "spawn": self._spawn,
            "launch": self._launch,
            "signal": self._signal,
            "poll": self._poll,
            "detach": self._detach,
            "shutdown": self._shutdown,
        }

    def run(self) -> None:
        """Serve until the supervisor must stop, then end all servers."""
        wakeup, wakeup_writer = socket.socketpair()
        wakeup_writer.setblocking(False)
        signal.set_wakeup_fd(wakeup_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop(_DETACHED_GRACE_S))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._selector.register(wakeup, selectors.EVENT_READ, lambda: wakeup.recv(4096))
        self._selector.register(self._owner.connection, selectors.EVENT_READ, self._serve_owner)
        if self._owner_pidfd is None:
            self._stop(0)
        else:
            self._selector.register(self._owner_pidfd, selectors.EVENT_READ, lambda: self._stop(0))
        while self._stop_grace_s is None:
            for key, _ in self._selector.select():
                key.data()
            self._reap()
        self._end_servers(self._stop_grace_s)

    def _stop(self, grace_s: float) -> None:
        self._stop_grace_s = grace_s

    def _serve_owner(self) -> None:
        if not self._owner.serve():
            self._stop(0)

    def _answer(self, line: bytes) -> _Message:
        self._reap()
        try:
            request = json.loads(line)
            return self._operations[request["op"]](request)
        except (OSError, KeyError, TypeError, ValueError) as error:  # also for a line that is no request
            return {"error": f"{type(error).__name__}: {error}"}

    def _spawn(self, request: _Message) -> _Message:
        name = request["name"]
        if self._alive(name):
            return {"error": f"{name} runs already"}
        with Path(request["log"]).open("ab") as log:
            process = subprocess.Popen(
                request["argv"],
                env=request["env"],
                cwd=request["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent(os.getpid()),  # noqa: PLW1509 - this process has one thread only
            )
        process.returncode = 0  # _reap collects it; Popen must not
        self._servers[name] = process.pid
        self._launches[name] = {key: request[key] for key in ("argv", "env", "cwd")}
        self._returncodes.pop(name, None)
        return {"pid": process.pid}

    def _launch(self, request: _Message) -> _Message:
        return self._launches[request["name"]]

    def _signal(self, request: _Message) -> _Message:
        name = request["name"]
        if self._alive(name):
            os.kill(self._servers[name], request["signal"])
        return {}

    def _poll(self, request: _Message) -> _Message:
        name = request["name"]
        if name not in self._servers:
            return {"error": f"{name} was never started"}
        return {"returncode": self._returncodes.get(name)}

    def _detach(self, request: _Message) -> _Message:
        if self._owner_pidfd is not None:
            self._selector.unregister(self._owner_pidfd)
        self._selector.unregister(self._owner.connection)
        self._listen()
        return {}

    def _listen(self) -> None:
        """Take requests at ``control.sock`` from now on.

        The path goes through a file descriptor of the folder, because a socket's path may have at most 107 bytes.
        """
        listener, folder = socket.socket(socket.AF_UNIX), os.open(self._folder, os.O_DIRECTORY)
        try:
            path = Path(f"/proc/self/fd/{folder}") / _CONTROL
            path.unlink(missing_ok=True)
            mask = os.umask(0o077)
            try:
                listener.bind(str(path))
            finally:
                os.umask(mask)
        finally:
            os.close(folder)
        listener.listen()
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        channel = _Channel(listener.accept()[0], self._answer)

        def serve() -> None:
            if not channel.serve():
                self._selector.unregister(channel.connection)
                channel.connection.close()

        self._selector.register(channel.connection, selectors.EVENT_READ, serve)

    def _shutdown(self, request: _Message) -> _Message:
        self._end_servers(request["grace_s"])
        self._stop(0)
        return {}

    def _alive(self, name: str) -> bool:
        return name in self._servers and name not in self._returncodes

    def _reap(self) -> None:
        """Collect dead children. A server's group is killed before the server's pid becomes free (hence WNOWAIT)."""
        while True:
            try:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if dead is None:
                return
            name = next((n for n, pid in self._servers.items() if pid == dead.si_pid and self._alive(n)), None)
            if name is not None:
                _kill_group(dead.si_pid)
            _, status = os.waitpid(dead.si_pid, 0)
            if name is not None:
                self._returncodes[name] = os.waitstatus_to_exitcode(status)
                self._kill_adopted()

    def _kill_adopted(self) -> None:
        servers = {pid for name, pid in self._servers.items() if self._alive(name)}
        for child in psutil.Process().children():
            if child.pid not in servers:
                _kill_tree(child)

    def _end_servers(self, grace_s: float) -> None:
        """Send SIGTERM to each server, and SIGKILL to all processes that are left after ``grace_s`` seconds.

        Waits for their end.
        """
        if grace_s > 0:
            for name in self._servers:
                self._signal({"name": name, "signal": signal.SIGTERM})
            deadline = time.monotonic() + grace_s
            while time.monotonic() < deadline and any(self._alive(name) for name in self._servers):
                time.sleep(0.05)
                self._reap()
        for name, pid in self._servers.items():
            if self._alive(name):
                _kill_group(pid)
        deadline = time.monotonic() + _KILL_WAIT_S
        while (children := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
            for child in children:
                _kill_tree(child)
            time.sleep(0.02)
            self._reap()


def _die_with_parent(parent: int) -> Callable[[], None]:
    def in_child() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died between fork and prctl
            os._exit(1)

    return in_child


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _kill_group(pgid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # nobody but the zombie itself is in it
        os.killpg(pgid, signal.SIGKILL)


def _kill_tree(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):  # children of a process that is gone are adopted, and killed in the next round
        for member in [process, *process.children(recursive=True)]:
            member.kill()


def main() -> None:
    """Parse the command line, and supervise until the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--channel-fd", type=int, required=True)
    parser.add_argument("--owner-pid", type=int, required=True)
    parser.add_argument("--sandbox", required=True, help="the sandbox's folder")
    parser.add_argument("--remove-folder", action="store_true", help="remove the folder at the end")
    options = parser.parse_args()
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    os.set_inheritable(options.channel_fd, False)
    folder = Path(options.sandbox)
    Supervisor(socket.socket(fileno=options.channel_fd), options.owner_pid, folder).run()
    with suppress(OSError):
        (folder / _CONTROL).unlink()
    if options.remove_folder:
        shutil.rmtree(options.sandbox, ignore_errors=True)


if __name__ == "__main__":
    main()
