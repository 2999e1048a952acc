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
from cdc.sandbox.launch import Launch
from cdc.sandbox.prerequisites import java_home
from cdc.sandbox.state import ProcessId
from cdc.sandbox.supervision import Supervised

_log = logging.getLogger(__name__)

__all__ = ["SANDBOX_VARIABLE", "START_TIMEOUT_S", "Server", "server_environment"]

START_TIMEOUT_S: Final = 300.0
"""A start takes 5-30 s; a loaded machine gets its time before the sandbox gives up."""

SANDBOX_VARIABLE: Final = "CDC_SANDBOX"
"""Set in every process of a sandbox to its folder."""

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
    """The environment of a server. ``SANDBOX_VARIABLE`` marks it and all its offspring as belonging to this sandbox."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    java = java_home()
    # Pulsar starts function instances by the `java` of the PATH, and our connector its child by the `python3`: the archive
    # is built for the Python that runs the sandbox
    path = f"{java / 'bin'}:{Path(sys.executable).parent}:{kept.get('PATH', os.defpath)}"
    return {**kept, "PATH": path, "JAVA_HOME": str(java), SANDBOX_VARIABLE: str(sandbox)}


class Server(ABC):
    """One server process. Subclasses say how it is launched and when it is ready.

    The process belongs to the sandbox's supervisor; this object may be used from several threads.
    """

    start_attempts: int = 1
    """How often a start is tried when the server ends by itself before it is ready."""

    def __init__(self, name: str, log: Path, supervisor: Supervised) -> None:
        self.name = name
        self.log = log
        """The server's own output, of all its runs."""
        self._supervisor = supervisor
        self._process: ProcessId | None = None
        self.on_start: Callable[[], None] = lambda: None
        """Called each time the server got a process; the sandbox records it."""

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
        """Whether the process is there."""
        return self._process is not None and self._supervisor.returncode(self.name) is None

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Starts the server on its data and returns when it serves clients.

        A server that gives up by itself, or gets nowhere, is started again, ``start_attempts`` times in all, as a service
        manager or an operator would. Raises ServerStartError with the errors and the tail of the server's log when that
        does not help, or when it is not ready in time, in which case it is killed; SandboxError when it runs already.
        """
        attempt = 1
        while (failure := self._try_to_start(timeout_s)) is not None:
            if attempt == self.start_attempts:
                raise failure
            attempt += 1
            _log.warning("start %d of %d follows, for %s", attempt, self.start_attempts, failure)

    def _try_to_start(self, timeout_s: float) -> ServerStartError | None:
        """A problem that another start may solve; None when the server is ready."""
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
        """Ends the server the orderly way (SIGTERM), by SIGKILL after ``timeout_s``. Returns when it is gone."""
        self._supervisor.signal(self.name, signal.SIGTERM)
        if not self._wait_for_end(timeout_s):
            self.kill()

    def kill(self) -> None:
        """Ends the server at once (SIGKILL), and the processes that it started. Returns when it is gone."""
        self._supervisor.signal(self.name, signal.SIGKILL)
        if not self._wait_for_end(30.0):
            raise SandboxError(f"{self.name} (pid {self.pid}) survived SIGKILL for 30 s; it hangs in the kernel")

    def restart(self, *, graceful: bool = True) -> None:
        """Stops (or kills) the server and starts it again on the same data, addresses and ports."""
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
        # a server that shuts down in order buries its reason under the messages of its parts
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
        """The values with which a user or a program uses the server: URLs and paths by name."""

    @abstractmethod
    def _launch(self) -> Launch:
        """The process to start."""

    @abstractmethod
    def _why_not_ready(self) -> str | None:
        """The reason why the server does not serve clients yet; None when it does."""

    def _why_hopeless(self, log_start: int) -> str | None:
        """Why this start gets nowhere though the process runs, by its log from ``log_start`` on; None if it may get on."""
        return None


def _ending(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
