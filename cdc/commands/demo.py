"""`cdc demo`: runs the whole pipeline on the sandbox, and compares every row."""

from __future__ import annotations

import sys

import click

from cdc.demo.run import DemoOptions, run_demo
from cdc.progress import progress_display
from cdc.sandbox.versions import CASSANDRA_VERSIONS

__all__ = ["demo"]

_SHOWN_DIFFERENCES = 20


@click.command(name="demo")
@click.option(
    "--cassandra",
    type=click.Choice(list(CASSANDRA_VERSIONS)),
    default="5.0",
    show_default=True,
    help="Version of Cassandra.",
)
@click.option("--seed", default=1, show_default=True, help="Seed of the changes.")
@click.option(
    "--scale", default=1, show_default=True, type=click.IntRange(1, 1000), help="Multiply the number of changes."
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object, and nothing else.")
def demo(cassandra: str, seed: int, scale: int, as_json: bool) -> None:
    """Run changes through a real Cassandra, a real Pulsar and Spark, and compare every row.

    \b
    cdc demo
    cdc demo --cassandra 4.1 --scale 10
    """
    options = DemoOptions(cassandra=cassandra, seed=seed, scale=scale)
    with progress_display(quiet=as_json) as on_progress:
        report = run_demo(options, quiet=as_json, on_progress=on_progress)
    if as_json:
        click.echo(report.as_json())
    else:
        for stage, seconds in report.seconds.items():
            click.echo(f"{seconds:8.1f} s  {stage}")
        for difference in report.differences[:_SHOWN_DIFFERENCES]:
            click.echo(difference, err=True)
        click.echo(report.closing_line())
    sys.exit(1 if report.differences else 0)
