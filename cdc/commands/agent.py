"""`cdc agent`: run the change agent of one node; its subcommands inspect an agent, or send it requests."""

from __future__ import annotations

from pathlib import Path

import click

import change_agent.lean_imports  # noqa: F401  # first: what follows imports the libraries
from cdc.commands.agent_options import config_option
from cdc.commands.agent_progress import resume_progress
from cdc.commands.agent_reprocess import reprocess
from cdc.commands.agent_status import status
from cdc.helpful_group import HelpfulGroup
from change_agent.__main__ import leave, run_agent
from change_agent.configuration.config import AgentConfig

__all__ = ["agent"]


@click.group(name="agent", cls=HelpfulGroup, invoke_without_command=True)
@config_option
@click.option("--parent", type=int, hidden=True, help="Stop when this process is not the parent any more.")
@click.option("--check", is_flag=True, help="Check the configuration, report its errors, and start nothing.")
@click.option(
    "--connect", is_flag=True, help="With --check: also connect to Cassandra and Pulsar with its credentials."
)
@click.pass_context
def agent(context: click.Context, path: Path | None, parent: int | None, check: bool, connect: bool) -> None:
    """Read a node's cdc_raw and publish its changes to Pulsar, until SIGTERM or Ctrl-C (docs/agent.md).

    \b
    cdc agent --config agent.yaml
    cdc agent --config agent.yaml --check --connect
    """
    if context.invoked_subcommand is not None:
        if check or connect:
            raise click.UsageError(f"--check and --connect do not go with '{context.invoked_subcommand}'", context)
        return
    if connect and not check:
        raise click.UsageError("--connect goes with --check only; without both, the agent starts", context)
    config = AgentConfig.load(path)
    if check:
        for note in config.notes:
            click.echo(f"cdc: {note}")
        click.echo(f"{path or 'environment'}: no problems found")
        if connect:
            _connect(config)
        return
    run_agent(config, path=path, parent=parent)
    leave(0)


def _connect(config: AgentConfig) -> None:
    from cdc.health.doctor import agent_checks
    from cdc.health.findings import Level, level_of
    from cdc.health.screen import console, print_sections

    sections = agent_checks(config)
    print_sections(console(), sections)
    if level_of(each for section in sections for each in section.findings) is Level.FAILURE:
        raise click.exceptions.Exit(1)


agent.add_command(status)
agent.add_command(reprocess)
agent.add_command(resume_progress)
