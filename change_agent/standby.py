"""Standby: a second agent for a node waits until the first one has ended. Until then it changes nothing."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from pathlib import Path
from typing import Final

from change_agent.configuration.config import AgentConfig
from change_agent.metrics import AgentMetrics
from change_agent.reporting.http_endpoint import HttpEndpoint
from change_agent.reporting.prometheus import CONTENT_TYPE, MetricsPage
from change_agent.signal_request import SignalRequest
from schemas.errors import ConfigError

__all__ = ["FolderLock", "NodeClaim", "not_ready", "only_agent", "stop_signals"]

_log: Final = logging.getLogger(__name__)
_LOOK_S: Final = 0.5


class NodeClaim(Enum):
    """Result of the wait for other agents of the same node."""

    ALONE = auto()
    """This agent has the lock: no other agent of this machine reads cdc_raw while this one runs."""
    UNKNOWN = auto()
    """The folder cannot be locked: another agent may be reading it."""
    GIVEN_UP = auto()
    """The agent was asked to stop while it waited for the other agent."""


class FolderLock:
    """Lets only one agent at a time read a node's `cdc_raw`, wherever its working directory is.

    The lock is on the folder itself (flock), so it adds no file that Cassandra would count, and read permission for the
    folder is enough. It is held from a `take` that returned True until `release`, or the end of the process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Take the lock. False if another process has it. Raises OSError on a file system without such locks (NFS)."""
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return False
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Release the lock, so that another agent can take it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@contextmanager
def only_agent(config: AgentConfig, is_over: Callable[[], bool]) -> Iterator[NodeClaim]:
    """Wait until no other agent reads the node's cdc_raw. Keep other agents out until the context ends.

    SIGTERM and SIGINT end the wait, and so does `is_over` when it returns True; it is called every half second.
    """
    lock = FolderLock(config.cdc_raw_directory)
    try:
        yield _claim(lock, config, is_over)
    finally:
        lock.release()


def _claim(lock: FolderLock, config: AgentConfig, is_over: Callable[[], bool]) -> NodeClaim:
    folder = config.cdc_raw_directory
    try:
        if lock.take():
            return NodeClaim.ALONE
    except OSError as error:
        _log.warning(
            "%s cannot be locked (%s): a second agent for this node would not be kept out; see to it that there is none",
            folder,
            error.strerror,
        )
        return NodeClaim.UNKNOWN
    reason = (
        f"another agent reads {folder}: this one waits until that has ended, and changes nothing;"
        f" `fuser -v {folder}` names it"
    )
    _log.warning("%s", reason)
    with stop_signals() as stop_request, not_ready(config, reason, AgentMetrics(standby=1)):
        while not (stop_request.wait(_LOOK_S) or is_over()):
            with suppress(OSError):  # the folder may be missing for a moment while the other agent still runs
                if lock.take():
                    _log.info("the other agent has ended; this one continues")
                    return NodeClaim.ALONE
    return NodeClaim.GIVEN_UP


@contextmanager
def stop_signals() -> Iterator[SignalRequest]:
    """A request that SIGTERM and SIGINT send. At the end the previous handlers are restored."""
    request = SignalRequest()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda signum, frame: request.send()) for number in numbers]
    try:
        yield request
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _body(status: str, problems: list[str]) -> bytes:
    return json.dumps({"status": status, "problems": problems}).encode() + b"\n"


@contextmanager
def not_ready(config: AgentConfig, reason: str, metrics: AgentMetrics) -> Iterator[None]:
    """Answer over HTTP that this agent is alive but not ready, for this reason.

    If another agent has the port, only the log says so.
    """
    endpoint = None
    page = MetricsPage(metrics, dict)
    if config.http_port is not None:
        with suppress(ConfigError):
            endpoint = HttpEndpoint(
                config.http_address,
                config.http_port,
                {
                    "/metrics": lambda: (True, page.render(), CONTENT_TYPE),
                    "/healthz": lambda: (True, _body("ok", []), "application/json"),
                    "/readyz": lambda: (False, _body("failing", [reason]), "application/json"),
                },
            )
    if endpoint is not None:
        endpoint.start()
    try:
        yield
    finally:
        if endpoint is not None:
            endpoint.stop()
