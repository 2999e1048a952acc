"""`cdc compile`: compile the decoder and the connector's row path for this machine's Python."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from change_agent.decoder import compiled_folder
from change_agent.decoder_build import build_decoder, build_modules, obstacle
from source_connector import compiled as row_path

__all__ = ["compile_decoder"]


@click.command(name="compile")
@click.option("--if-possible", is_flag=True, help="If it is not possible, only say what is missing, and exit with 0.")
def compile_decoder(if_possible: bool) -> None:
    """Compile the commit log decoder and the connector's row path, which then run several times as fast.

    Needs a C compiler, Python's headers, mypy and setuptools. Everything works without: the same sources then run as plain
    Python. After a change of them they have to be compiled again, and the connector's archive built again.
    """
    missing = obstacle()
    _compile("decoder", compiled_folder().is_dir(), missing, build_decoder)
    rows = row_path.compiled_folder()
    _compile("row path", rows.is_dir(), missing, lambda: build_modules(row_path.GROUP, rows))
    if missing is not None and not (compiled_folder().is_dir() and rows.is_dir()):
        sys.exit(0 if if_possible else 1)


def _compile(name: str, is_there: bool, missing: str | None, build: Callable[[], object]) -> None:
    if not is_there and missing is not None:
        click.echo(f"{name}: runs uncompiled, which is slower: {missing}", err=True)
        return
    if not is_there:
        click.echo(f"{name}: compiling (once, about a minute)", err=True)
        build()
    click.echo(f"{name}: compiled")
