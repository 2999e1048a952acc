"""The client of the supervisor: starts it, and sends it requests. ``supervisor.py`` describes its guarantees."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from cdc.sandbox.errors import SandboxError

__all__ = ["Launch", "Supervised", "SupervisorChannel", "attach"]

_SCRIPT: Final = Path(__file__).with_name("supervisor.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A command, its complete environment, and its working directory."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path


class Supervised:
    """Sends requests about servers to their supervisor. Safe for threads."""

    def __init__(self, channel: socket.socket, log: Path) -> None:
        self._channel = channel
        self._log = log
        self._lock = threading.Lock()
        self._replies = channel.makefile("rb")

    def spawn(self, name: str, argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> int:
        """Start a server process, and return its pid. Its output is appended to ``log``."""
        reply = self._request(op="spawn", name=name, argv=list(argv), env=dict(env), cwd=str(cwd), log=str(log))
        pid = reply["pid"]
        assert isinstance(pid, int)
        return pid

    def launch(self, name: str) -> Launch:
        """The launch of a server's last start. Raises SandboxError if it was never started."""
        reply: dict[str, Any] = self._request(op="launch", name=name)
        return Launch(argv=reply["argv"], env=reply["env"], cwd=Path(reply["cwd"]))

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a server. Nothing happens if it has ended."""
        self._request(op="signal", name=name, signal=int(number))

    def returncode(self, name: str) -> int | None:
        """The exit code of a server, negative for a signal; None while it runs."""
        code = self._request(op="poll", name=name)["returncode"]
        assert code is None or isinstance(code, int)
        return code

    def close(self) -> None:
        """Close the channel. If it is the owner's channel, and the owner has not detached, this ends the servers."""
        self._replies.close()
        self._channel.close()

    def _request(self, **request: object) -> dict[str, object]:
        with self._lock:
            try:
                self._channel.sendall(json.dumps(request).encode() + b"\n")
                line = self._replies.readline()
            except OSError as error:
                raise SandboxError(
                    f"the sandbox's supervisor is gone ({error}); its output is in {self._log}"
                ) from error
        if not line:
            raise SandboxError(f"the sandbox's supervisor ended unexpectedly; its output is in {self._log}")
        reply: dict[str, object] = json.loads(line)
        if "error" in reply:
            raise SandboxError(f"the supervisor could not {request['op']} {request.get('name', '')}: {reply['error']}")
        return reply


class SupervisorChannel(Supervised):
    """Starts a supervisor, which ends with this process, and sends it requests.

    ``held``: locks and sockets that the supervisor keeps open until its end; they are closed in this process.
    With ``remove_folder`` the supervisor removes the sandbox's folder at its end.
    """

    def __init__(self, folder: Path, *, held: Sequence[BinaryIO | socket.socket], remove_folder: bool) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(ours, folder / "logs" / "supervisor.log")
        handles = [theirs, *held]
        command = [sys.executable, "-P", str(_SCRIPT), f"--channel-fd={theirs.fileno()}"]
        command += [f"--owner-pid={os.getpid()}", f"--sandbox={folder}"]
        if remove_folder:
            command.append("--remove-folder")
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                pass_fds=[handle.fileno() for handle in handles],
                start_new_session=True,  # Ctrl-C in the owner's terminal must not reach it
            )
        for handle in handles:
            handle.close()

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self._process.pid

    def detach(self) -> None:
        """Let the supervisor and its servers run after the end of this process.

        The channel cannot be used afterwards.
        """
        self._request(op="detach")
        self.close()

    def shutdown(self, grace_s: float) -> None:
        """End all servers, first by SIGTERM if ``grace_s`` is more than 0, and then the supervisor."""
        try:
            self._request(op="shutdown", grace_s=grace_s)
        finally:
            self.close()
            self._process.wait()


def attach(folder: Path) -> Supervised:
    """A channel to the supervisor of a detached sandbox.

    Raises SandboxError if no sandbox runs in the folder, or if it is the sandbox of another user.
    """
    channel, opened = socket.socket(socket.AF_UNIX), -1
    try:
        opened = os.open(folder, os.O_DIRECTORY)
        channel.connect(f"/proc/self/fd/{opened}/control.sock")
    except PermissionError as error:
        channel.close()
        raise SandboxError(f"the sandbox in {folder} is of another user; use the one who started it") from error
    except OSError as error:
        channel.close()
        raise SandboxError(f"no sandbox runs in {folder}; start it with `cdc sandbox up --dir {folder}`") from error
    finally:
        if opened >= 0:
            os.close(opened)
    return Supervised(channel, folder / "logs" / "supervisor.log")
