"""`cdc agent`: run the change agent of one node."""

from __future__ import annotations

from pathlib import Path

import click

from change_agent.__main__ import leave, run_agent
from change_agent.config import AgentConfig

__all__ = ["agent"]


@click.command(name="agent")
@click.option("--config", "path", required=True, type=click.Path(path_type=Path), help="The agent's YAML file.")
@click.option("--parent", type=int, hidden=True, help="Stop when this process is not the parent any more.")
@click.option("--check", is_flag=True, help="Check the file, say what is wrong, and start nothing.")
def agent(path: Path, parent: int | None, check: bool) -> None:
    """Read a node's cdc_raw and publish its changes to Pulsar, until SIGTERM or Ctrl-C (docs/agent.md)."""
    config = AgentConfig.load(path)
    if check:
        for note in config.notes:
            click.echo(f"cdc: {note}")
        click.echo(f"{path}: no problems found")
        return
    run_agent(config, parent=parent)
    leave(0)
