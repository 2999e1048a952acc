"""`cdc doctor`: checks every connection and setting of a pipeline, with a remedy for each problem."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from cdc.commands.status import report
from cdc.health.doctor import doctor as look
from cdc.health.findings import Level, level_of
from cdc.health.pulsar_service import PulsarService
from cdc.health.source_keeper import SourceKeeper
from cdc.health.this_line import line_of, line_option, with_hint
from cdc.health.turns import Turns

__all__ = ["doctor"]

# A start takes 5 to 15 s. After this time, the worker has given up a source that does not run.
_START_S: Final = 20.0


@click.command(name="doctor")
@line_option
@click.option("--fix", is_flag=True, help="Restart sources that the functions worker has given up, once.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
@click.pass_context
def doctor(context: click.Context, path: Path | None, fix: bool, as_json: bool) -> None:
    """Check servers, rights, tables, topics, sources, clocks and disks. Nothing is changed without --fix.

    Exit code 0: no failure, 1: a failure, 2: wrong configuration.

    \b
    cdc doctor --config line.yaml
    cdc doctor --config line.yaml --fix
    """
    config = line_of(path)
    if fix:
        with PulsarService(config) as service:
            for line in SourceKeeper(service, Turns(config).turn, patience_s=_START_S).check_once():
                click.echo(line, err=as_json)
    sections = with_hint(look(config), path)
    report(sections, as_json=as_json)
    context.exit(int(level_of(each for section in sections for each in section.findings) is Level.FAILURE))
