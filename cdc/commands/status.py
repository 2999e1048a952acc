"""`cdc status`: one screen about the whole pipeline."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import click

from cdc.commands.given_options import refuse_without
from cdc.commands.option_types import LONGEST_S, FiniteRange
from cdc.health.findings import Level, Section, level_of
from cdc.health.line_status import line_status
from cdc.health.screen import console, print_sections, verdict
from cdc.health.this_line import line_of, line_option, with_hint

__all__ = ["report", "status"]


@click.command(name="status")
@line_option
@click.option("--watch", is_flag=True, help="Repeat the screen until Ctrl-C.")
@click.option(
    "--interval",
    default=5.0,
    show_default=True,
    type=FiniteRange(0.5, LONGEST_S),
    help="With --watch: seconds between two screens.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
@click.pass_context
def status(context: click.Context, path: Path | None, watch: bool, interval: float, as_json: bool) -> None:
    """Show the state of the whole pipeline: servers, agents, sources, tables, dead letters, gaps, mirrors, and remedies.

    Exit code 0: no failure, at most warnings; 1: a failure; 2: wrong configuration.

    \b
    cdc status
    cdc status --config line.yaml --watch
    """
    if not watch:
        refuse_without("--watch", "interval")
    config = line_of(path)
    while True:
        sections = with_hint(line_status(config), path)
        if watch and not as_json:
            click.clear()
        report(sections, as_json=as_json)
        if not watch:
            break
        time.sleep(interval)
        config = line_of(path)  # agents of this machine come and go
    context.exit(int(level_of(each for section in sections for each in section.findings) is Level.FAILURE))


def report(sections: list[Section], *, as_json: bool) -> None:
    """Print the verdict and the time, then all sections."""
    every = [each for section in sections for each in section.findings]
    moment = datetime.now(UTC)
    if as_json:
        listed = [
            {"title": section.title, "findings": [each.as_object() for each in section.findings]}
            for section in sections
        ]
        click.echo(
            json.dumps(
                {"time": moment.isoformat(timespec="seconds"), "level": level_of(every).value, "sections": listed}
            )
        )
        return
    target = console()
    target.print(verdict(every).append(f"  ({moment:%Y-%m-%d %H:%M:%S} UTC)", style="dim"))
    target.print()
    print_sections(target, sections)
