"""`cdc nar`: build the connector's archive from the installed package."""

from __future__ import annotations

from pathlib import Path

import click

from schemas.errors import ConfigError

__all__ = ["nar"]


@click.command(name="nar")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Folder of the archive and of the files that are fetched for it; by default the current one.",
)
@click.option(
    "--fetch-only", is_flag=True, help="Only fetch the libraries of the archive, so that a later build takes less time."
)
def nar(out: Path, fetch_only: bool) -> None:
    """Build the connector's archive for Pulsar, and print its path.

    Needs a JDK 17 and Maven. The archive runs on the Python version and the platform that built it, and contains the
    compiled row path if `cdc compile` has made it.

    \b
    cdc nar --out build
    """
    from source_connector.nar_build import build_nar, fetch_parts

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        text = f"{out} cannot be made ({error.strerror}); name a folder in which you may write"
        raise ConfigError.of("--out", text) from error
    if fetch_only:
        fetch_parts(out.resolve())
        click.echo("the libraries of the archive are fetched")
        return
    click.echo(build_nar(out.resolve()))
