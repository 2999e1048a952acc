"""`python -m change_agent --config agent.yaml`, and the process behind `cdc agent`: signals, log, exit codes."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Final

import click

from change_agent.agent import ChangeAgent
from change_agent.config import AgentConfig
from change_agent.decoder import running
from schemas.errors import CdcError, ConfigError

__all__ = ["main", "run_agent"]

_log: Final = logging.getLogger(__name__)
_LOG_FORMAT: Final = "%(asctime)s %(levelname)-7s %(threadName)s: %(message)s"


def run_agent(config: AgentConfig, *, parent: int | None = None) -> None:
    """Run an agent until SIGTERM or SIGINT, then stop it in order. Raises CdcError when it fails.

    With `parent`, the agent also stops when that process is not its parent any more.
    """
    logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT, stream=sys.stderr)
    # What the driver says about a node that is away, we say in one line.
    logging.getLogger("cassandra").setLevel(logging.CRITICAL)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    _log.info("decoder: %s", running().description)
    agent = ChangeAgent(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, frame: agent.ask_to_stop())
    agent.start()
    # Events hold no cycles: reference counts free them, and looking for cycles among them costs a fifth of the time.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        agent.wait(until=lambda: parent is not None and os.getppid() != parent)
    finally:
        agent.stop()


@click.command(name="change_agent")
@click.option("--config", "path", required=True, type=click.Path(path_type=Path), help="The agent's YAML file.")
def main(path: Path) -> None:
    """Read a node's cdc_raw and publish its changes."""
    try:
        run_agent(AgentConfig.load(path))
    except CdcError as error:
        for line in str(error).splitlines():
            click.echo(f"change_agent: {line}", err=True)
        leave(2 if isinstance(error, ConfigError) else 1)
    leave(0)


def leave(code: int) -> None:
    """End the process now: a thread of a client may still wait for a server that is away."""
    logging.shutdown()
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
