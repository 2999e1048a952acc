"""The common part of the sandbox's servers: a process under the supervisor, its log, and waiting for it."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cdc.sandbox.errors import SandboxError, ServerStartError
from cdc.sandbox.prerequisites import java_home
from cdc.sandbox.state import ProcessId
from cdc.sandbox.supervision import Launch, Supervised

_log = logging.getLogger(__name__)

__all__ = ["SANDBOX_VARIABLE", "START_TIMEOUT_S", "Server", "server_environment"]

START_TIMEOUT_S: Final = 300.0
"""A start takes 5-30 s, and much longer on a loaded machine."""

SANDBOX_VARIABLE: Final = "CDC_SANDBOX"
"""Environment variable with the sandbox's folder, in every process of a sandbox."""

_POLL_INTERVAL_S: Final = 0.1
_LOOK_INTERVAL_S: Final = 3.0
_TAIL_LINES: Final = 20
_TAIL_WIDTH: Final = 240
_ERROR_LINES: Final = 20
_ERROR: Final = re.compile(r"\b(ERROR|FATAL|Caused by)\b|^[\w.$]+(Exception|Error)\b")
# The variables that a server inherits from the caller. Others (CLASSPATH, JAVA_TOOL_OPTIONS, PULSAR_MEM, secrets) would
# make a sandbox depend on the shell it was started from.
_KEPT_VARIABLES: Final = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")


def server_environment(sandbox: Path) -> dict[str, str]:
    """The environment of a server. ``SANDBOX_VARIABLE`` marks the server and its child processes as of this sandbox."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    java = java_home()
    # Pulsar starts function instances with the `java` of the PATH, and the connector starts its child process with the
    # `python3` of the PATH: the connector's archive is built for the Python that runs the sandbox
    path = f"{java / 'bin'}:{Path(sys.executable).parent}:{kept.get('PATH', os.defpath)}"
    return {**kept, "PATH": path, "JAVA_HOME": str(java), SANDBOX_VARIABLE: str(sandbox)}


class Server(ABC):
    """One server process. Subclasses define how it is launched and when it is ready.

    The process is a child of the sandbox's supervisor. Several threads may use this object.
    """

    start_attempts: int = 1
    """Number of attempts to start the server, if it ends by itself before it is ready, or cannot succeed."""

    def __init__(self, name: str, log: Path, supervisor: Supervised) -> None:
        self.name = name
        self.log = log
        """The file with the server's output of all its runs."""
        self._supervisor = supervisor
        self._process: ProcessId | None = None
        self.on_start: Callable[[], None] = lambda: None
        """Is called each time a process of the server was started; the sandbox records it."""

    @property
    def pid(self) -> int:
        """The server's process id; raises SandboxError before the first start."""
        if self._process is None:
            raise SandboxError(f"{self.name} was never started")
        return self._process.pid

    @property
    def process_id(self) -> ProcessId | None:
        """The server's last process, None before the first start."""
        return self._process

    @property
    def running(self) -> bool:
        """True while the process runs."""
        return self._process is not None and self._supervisor.returncode(self.name) is None

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start the server on its data, and return when it serves clients.

        If the server ends by itself, or its start cannot succeed, it is started again, at most ``start_attempts`` times
        in all, as a service manager or an operator would do. Raises ServerStartError, with the errors and the tail of
        the server's log, after the last attempt. It is also raised if the server is not ready in time; then the server
        is killed. Raises SandboxError if the server runs already.
        """
        attempt = 1
        while (failure := self._try_to_start(timeout_s)) is not None:
            if attempt == self.start_attempts:
                raise failure
            attempt += 1
            _log.warning("start %d of %d follows, for %s", attempt, self.start_attempts, failure)

    def _try_to_start(self, timeout_s: float) -> ServerStartError | None:
        """Return the error if another start may help, None if the server is ready.

        Raises ServerStartError otherwise.
        """
        log_start = self.log.stat().st_size if self.log.exists() else 0
        self._spawn()
        deadline = time.monotonic() + timeout_s
        next_look = 0.0
        while True:
            reason = self._why_not_ready()
            code = self._supervisor.returncode(self.name)
            if code is not None:
                return ServerStartError(self.name, f"it ended {_ending(code)}", self._log_tail(log_start))
            if reason is None or time.monotonic() > next_look:
                if (trouble := self._why_hopeless(log_start)) is not None:
                    self.stop()
                    return ServerStartError(self.name, trouble, self._log_tail(log_start))
                next_look = time.monotonic() + _LOOK_INTERVAL_S
            if reason is None:
                return None
            if time.monotonic() > deadline:
                self.kill()
                raise ServerStartError(
                    self.name, f"not ready after {timeout_s:g} s: {reason}", self._log_tail(log_start)
                )
            time.sleep(_POLL_INTERVAL_S)

    def _spawn(self) -> None:
        launch = self._launch()
        pid = self._supervisor.spawn(self.name, launch.argv, launch.env, launch.cwd, self.log)
        self._process = ProcessId.of(pid)
        self.on_start()

    def stop(self, *, timeout_s: float = 60.0) -> None:
        """End the server by SIGTERM, and after ``timeout_s`` by SIGKILL. Returns when it has ended."""
        self._supervisor.signal(self.name, signal.SIGTERM)
        if not self._wait_for_end(timeout_s):
            self.kill()

    def kill(self) -> None:
        """End the server at once (SIGKILL), and the processes that it started. Returns when it has ended."""
        self._supervisor.signal(self.name, signal.SIGKILL)
        if not self._wait_for_end(30.0):
            raise SandboxError(f"{self.name} (pid {self.pid}) survived SIGKILL for 30 s; it hangs in the kernel")

    def restart(self, *, graceful: bool = True) -> None:
        """Stop (or kill) the server, and start it again on the same data, addresses and ports."""
        if graceful:
            self.stop()
        else:
            self.kill()
        self.start()

    def _wait_for_end(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.running:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _log_tail(self, start: int) -> list[str]:
        with self.log.open("rb") as file:
            file.seek(start)
            every = file.read().decode(errors="replace").splitlines()
        # while a server shuts down, the messages of its parts follow the error that is the reason
        errors = [line for line in every[:-_TAIL_LINES] if _ERROR.search(line)]
        lines = [*errors[-_ERROR_LINES:], *every[-_TAIL_LINES:]]
        return [line if len(line) <= _TAIL_WIDTH else f"{line[:_TAIL_WIDTH]}..." for line in lines]

    @property
    @abstractmethod
    def version(self) -> str:
        """The release, such as ``5.0.9``."""

    @property
    @abstractmethod
    def details(self) -> dict[str, str]:
        """The URLs and paths with which a user or a program uses the server, by name."""

    @abstractmethod
    def _launch(self) -> Launch:
        """The process to start."""

    @abstractmethod
    def _why_not_ready(self) -> str | None:
        """The reason why the server does not serve clients yet; None when it does."""

    def _why_hopeless(self, log_start: int) -> str | None:
        """The reason why this start will not succeed although the process runs; None if it may succeed.

        ``log_start``: the offset in the log where this start begins.
        """
        return None


def _ending(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
