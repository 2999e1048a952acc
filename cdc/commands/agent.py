"""`cdc agent`: run the change agent of one node; its subcommands inspect an agent, or send it requests."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

import change_agent.lean_imports  # noqa: F401  # first: what follows imports the libraries
from cdc.commands.agent_options import config_option, working_dir_option
from cdc.commands.agent_status import status
from cdc.helpful_group import HelpfulGroup
from change_agent.__main__ import leave, run_agent
from change_agent.archive.segment_archive import ArchiveError, fetch_segment
from change_agent.cdc_raw.archiver import REASON_SUFFIX
from change_agent.configuration.config import AgentConfig
from change_agent.positions.stops import read_stops, remove_stops
from change_agent.private_files import give_to_owner_of, make_private_folder
from schemas.errors import ConfigError

__all__ = ["agent"]

_SEGMENTS: Final = "CommitLog-*.log"


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


def _working_dir(path: Path | None, given: Path | None) -> Path:
    directory = AgentConfig.load(path).cdc_working_dir if given is None else given
    if not directory.is_dir():
        raise ConfigError.of("--working-dir", f"{directory} is no folder: no agent ever ran with it")
    return directory


@agent.command(name="reprocess")
@click.argument("segments", metavar="[SEGMENT]...", nargs=-1)
@config_option
@working_dir_option
def reprocess(segments: tuple[str, ...], path: Path | None, working_dir: Path | None) -> None:
    """Publish everything in SEGMENTs again, whether it was published before or not.

    A SEGMENT is the name of a segment in the agent's folder error/, or the path or URL of an archived one (.log or
    .log.zst). By default, all segments in error/ are published. The agent reads them when it runs; it may be running now.
    A segment that cannot be read in full goes back to error/. The others are deleted; archived segments stay in the archive.

    \b
    cdc agent reprocess CommitLog-7-1795219249195.log --config agent.yaml
    """
    directory = _working_dir(path, working_dir)
    errors, again = directory / "error", directory / "reprocess"
    is_new = not again.is_dir()
    if is_new:
        make_private_folder(again)
        give_to_owner_of(directory, again)
    named = segments or tuple(sorted(each.name for each in errors.glob(_SEGMENTS)))
    failed = False
    for segment in named:
        try:
            _hand_over(segment, errors, again)
        except ArchiveError as error:
            failed = True
            click.echo(f"cdc: {error}", err=True)
    click.echo(f"{len(list(again.glob(_SEGMENTS)))} segments wait in {again}")
    if failed:
        if is_new and not any(again.iterdir()):
            again.rmdir()  # the folder may be no agent's
        raise click.exceptions.Exit(1)


def _hand_over(segment: str, errors: Path, again: Path) -> None:
    name = segment.rstrip("/").rpartition("/")[2].removesuffix(".zst")
    if (again / name).is_file():
        raise ArchiveError(
            f"{name} is queued already: try again when the agent has read it, and it is gone from {again}"
        )
    set_aside = errors / segment
    if "/" in segment or not set_aside.is_file():
        fetch_segment(segment, again)
        return
    # The copy is complete before the segment is deleted. If this process is killed in between, both remain, which does
    # no harm.
    fetch_segment(str(set_aside), again)
    set_aside.unlink()
    set_aside.with_name(segment + REASON_SUFFIX).unlink(missing_ok=True)


@agent.command(name="resume-progress")
@click.argument("table", metavar="[KEYSPACE.TABLE]", required=False)
@config_option
@working_dir_option
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
    directory = _working_dir(path, working_dir)
    if table is not None and not all(table.partition(".")[::2]):
        raise ConfigError.of("TABLE", f"{table!r} is not KEYSPACE.TABLE")
    if only_list and table is not None:
        raise ConfigError.of("--list", "prints the stops of all tables: leave TABLE out")
    found = read_stops(directory) if only_list else remove_stops(directory, table)
    for name, reason in sorted(found.items()):
        click.echo(f"{'all tables' if name == '*' else name}: {reason}")
    if not found:
        is_of_table = table is not None and not only_list
        click.echo(f"{table} has no stop of its own; --list shows all stops" if is_of_table else "nothing stands still")


agent.add_command(status)
