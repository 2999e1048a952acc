"""`cdc agent reprocess`: gives an agent segments again: those that it has set aside, or archived ones."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from cdc.commands.agent_options import config_option
from change_agent.archive.segment_archive import ArchiveError, fetch_segment
from change_agent.cdc_raw.archiver import REASON_SUFFIX
from change_agent.configuration.config import AgentConfig
from change_agent.private_files import give_to_owner_of, make_private_folder
from schemas.errors import ConfigError

__all__ = ["reprocess"]

_SEGMENTS: Final = "CommitLog-*.log"


@click.command(name="reprocess")
@click.argument("segments", metavar="[SEGMENT]...", nargs=-1)
@config_option
@click.option("--working-dir", type=click.Path(path_type=Path), help="The agent's cdcWorkingDir, instead of --config.")
def reprocess(segments: tuple[str, ...], path: Path | None, working_dir: Path | None) -> None:
    """Publish everything in SEGMENTs again, whether it was published before or not.

    A SEGMENT is the name of a segment in the agent's folder error/, or the path or URL of an archived one (.log or
    .log.zst). By default, all segments in error/ are published. The agent reads them when it runs; it may be running now.
    A segment that cannot be read in full goes back to error/. The others are deleted; archived segments stay in the archive.

    \b
    cdc agent reprocess CommitLog-7-1795219249195.log --config agent.yaml
    """
    directory = AgentConfig.load(path).cdc_working_dir if working_dir is None else working_dir
    if not directory.is_dir():
        raise ConfigError.of("--working-dir", f"{directory} is no folder: no agent ever ran with it")
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
