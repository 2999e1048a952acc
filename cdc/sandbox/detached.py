"""DetachedServer: one server of a sandbox that `cdc sandbox up` left running, for `cdc sandbox start | stop | kill`."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from cdc.sandbox.pulsar_standalone import PULSAR_START_ATTEMPTS, why_pulsar_is_hopeless
from cdc.sandbox.running import answers
from cdc.sandbox.server import Server
from cdc.sandbox.state import SandboxState, ServerState, lock_now, read_state, write_state
from cdc.sandbox.supervision import Launch, Supervised, attach
from schemas.errors import ConfigError

__all__ = ["PULSAR", "DetachedServer", "detached_server"]

PULSAR: Final = "pulsar"
"""The name of the sandbox's Pulsar."""


class DetachedServer(Server):
    """Starts with the command of the last start.

    Its configuration files, which a user may have edited, are not rewritten.
    """

    def __init__(self, folder: Path, state: ServerState, supervisor: Supervised) -> None:
        super().__init__(state.name, Path(state.log), supervisor)
        self._folder: Final = folder
        self._state: Final = state
        self._process = state.process
        self.on_start = self._write_state
        if self.name == PULSAR:
            self.start_attempts = PULSAR_START_ATTEMPTS

    @property
    def version(self) -> str:
        """The release."""
        return self._state.version

    @property
    def details(self) -> dict[str, str]:
        """The server's URLs and paths, by name."""
        return dict(self._state.details)

    @property
    def ready(self) -> bool:
        """True if the server serves clients now."""
        return answers(self._state)

    @contextmanager
    def only_start(self) -> Iterator[None]:
        """A context in which no other command starts this server, with its process of the last start.

        Raises SandboxError if another command starts it now. The lock is on the server's log, so that there is no
        further file.
        """
        with self.log.open("ab") as log:
            lock_now(
                log,
                f"another command starts {self.name} now; wait until `cdc sandbox status --dir {self._folder}` says that it is"
                " ready",
            )
            servers = self._read_state().servers
            self._process = next(each.process for each in servers if each.name == self.name)
            yield

    def _read_state(self) -> SandboxState:
        state = read_state(self._folder)
        assert state is not None, "a server that was found there"
        return state

    def _launch(self) -> Launch:
        return self._supervisor.launch(self.name)

    def _why_not_ready(self) -> str | None:
        return None if self.ready else "it does not answer"

    def _why_hopeless(self, log_start: int) -> str | None:
        return why_pulsar_is_hopeless(self.log, log_start) if self.name == PULSAR else None

    def _write_state(self) -> None:
        """Replace this server's part of the state. Other commands may start other servers at the same time."""
        folder = os.open(self._folder, os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            state = self._read_state()
            servers = [
                replace(each, process=self._process) if each.name == self.name else each for each in state.servers
            ]
            write_state(self._folder, replace(state, servers=tuple(servers)))
        finally:
            os.close(folder)


@contextmanager
def detached_server(folder: Path, name: str) -> Iterator[DetachedServer]:
    """A context with the server of this name.

    Raises SandboxError if no sandbox runs in the folder, ConfigError if it has no server of this name.
    """
    with closing(attach(folder)) as supervisor:
        state = read_state(folder)
        servers = {each.name: each for each in state.servers} if state is not None else {}
        if name not in servers:
            raise ConfigError.of("NAME", f"{name!r} is no server of this sandbox; it has {', '.join(servers)}")
        yield DetachedServer(folder, servers[name], supervisor)
