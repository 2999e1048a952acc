"""`cdc agent resume-progress`: continues the progress of tables, which stopped because changes may be lost."""

from __future__ import annotations

from pathlib import Path

import click

from cdc.commands.agent_options import config_option
from change_agent.configuration.config import AgentConfig
from change_agent.positions.stops import read_stops, remove_stops
from schemas.errors import ConfigError

__all__ = ["resume_progress"]


@click.command(name="resume-progress")
@click.argument("table", metavar="[KEYSPACE.TABLE]", required=False)
@config_option
@click.option("--working-dir", type=click.Path(path_type=Path), help="The agent's cdcWorkingDir, instead of --config.")
@click.option(
    "--list",
    "only_list",
    is_flag=True,
    help="Print the tables whose timestamp stands still, with the reasons; change nothing.",
)
def resume_progress(table: str | None, path: Path | None, working_dir: Path | None, only_list: bool) -> None:
    """Let the resolved timestamp of a table, or of all tables, continue after changes may have been lost.

    Compare the tables with Cassandra first (`cdc spark verify --repair`). The agent may be running.

    \b
    cdc agent resume-progress --list --config agent.yaml
    cdc agent resume-progress shop.orders --config agent.yaml
    """
    directory = AgentConfig.load(path).cdc_working_dir if working_dir is None else working_dir
    if not directory.is_dir():
        raise ConfigError.of("--working-dir", f"{directory} is no folder: no agent ever ran with it")
    if table is not None and not all(table.partition(".")[::2]):
        raise ConfigError.of("TABLE", f"{table!r} is not KEYSPACE.TABLE")
    found = read_stops(directory) if only_list else remove_stops(directory, table)
    for name, reason in sorted(found.items()):
        click.echo(f"{'all tables' if name == '*' else name}: {reason}")
    if not found:
        click.echo(
            "nothing stands still"
            if table is None or only_list
            else f"{table} does not stand still; --list shows what does"
        )
