"""`cdc compile`: compile the decoder for this machine's Python."""

from __future__ import annotations

import sys

import click

from change_agent.decoder import compiled_folder
from change_agent.decoder_build import build_decoder, obstacle

__all__ = ["compile_decoder"]


@click.command(name="compile")
@click.option("--if-possible", is_flag=True, help="Exit with 0 where it cannot be done, and only say what is missing.")
def compile_decoder(if_possible: bool) -> None:
    """Compile the commit log decoder, which then decodes several times as fast.

    Needs a C compiler, Python's headers, mypy and setuptools. Everything works without: the same decoder then runs as plain
    Python. After a change of its sources it has to be compiled again.
    """
    if compiled_folder().is_dir():
        click.echo("decoder: compiled")
        return
    missing = obstacle()
    if missing is not None:
        click.echo(f"decoder: runs uncompiled, which is slower: {missing}", err=True)
        sys.exit(0 if if_possible else 1)
    click.echo("decoder: compiling (once, about a minute)", err=True)
    build_decoder()
    click.echo("decoder: compiled")
