"""`python -m change_agent --config agent.yaml`, and the process behind `cdc agent`: signals, log, exit codes."""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

import change_agent.lean_imports  # noqa: F401  # first: what follows imports the libraries
from change_agent.agent import ChangeAgent
from change_agent.configuration.config import AgentConfig
from change_agent.decoder import running
from change_agent.raw_folder import check_raw_folder
from change_agent.reporting.logs import set_up_log
from change_agent.signal_request import SignalRequest
from change_agent.standby import NodeClaim, only_agent
from schemas.errors import CdcError, ConfigError

__all__ = ["main", "run_agent"]

_log: Final = logging.getLogger(__name__)


def run_agent(config: AgentConfig, *, path: Path | None = None, parent: int | None = None) -> None:
    """Run an agent until SIGTERM or SIGINT, then stop it in order. Raises CdcError when it fails.

    It waits while another agent reads the same cdc_raw. At SIGHUP it reads `path` and the environment again. With
    `parent`, the agent also stops when that process is no longer its parent.
    """
    _keep_private()
    set_up_log(config.log_level, config.log_format)
    _log.info("decoder: %s", running().description)

    def is_orphan() -> bool:
        return parent is not None and os.getppid() != parent

    # From the beginning, because SIGHUP would end an agent that still waits. It reads the file again when it runs.
    reload_request = SignalRequest()
    signal.signal(signal.SIGHUP, lambda signum, frame: reload_request.send())
    with only_agent(config, is_orphan) as claim:
        if claim is not NodeClaim.GIVEN_UP and check_raw_folder(config, is_orphan):
            _run(config, path, claim, is_orphan, reload_request)


def _run(
    config: AgentConfig,
    path: Path | None,
    claim: NodeClaim,
    is_orphan: Callable[[], bool],
    reload_request: SignalRequest,
) -> None:
    agent = ChangeAgent(config)
    agent.metrics.cdc_raw_unlocked = int(claim is NodeClaim.UNKNOWN)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, frame: agent.ask_to_stop())

    def look() -> bool:
        if reload_request.take():
            _reload(agent, path)
        return is_orphan()

    try:
        agent.start()
        # Events have no reference cycles, so reference counting frees them. Searching them for cycles costs a fifth of
        # the time.
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        agent.wait(until=look)
    finally:
        agent.stop()


def _keep_private() -> None:
    """Protect the row data and credentials of this process: make its files private, and write no core files."""
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _reload(agent: ChangeAgent, path: Path | None) -> None:
    try:
        agent.reload(AgentConfig.load(path))
    except ConfigError as error:
        for problem in error.problems:
            _log.error("configuration not read again: %s", problem)


@click.command(name="change_agent")
@click.option("--config", "path", type=click.Path(path_type=Path), envvar="CDC_CONFIG", help="The agent's YAML file.")
def main(path: Path | None) -> None:
    """Read a node's cdc_raw and publish its changes."""
    try:
        run_agent(AgentConfig.load(path), path=path)
    except CdcError as error:
        for line in str(error).splitlines():
            click.echo(f"change_agent: {line}", err=True)
        leave(2 if isinstance(error, ConfigError) else 1)
    leave(0)


def leave(code: int) -> None:
    """End the process now. A client's thread that still waits for an unavailable server must not delay the end."""
    logging.shutdown()
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
