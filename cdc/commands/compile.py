"""`cdc compile`: compile the decoder, the connector's row path and the native core of both for this machine's Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import click

from change_agent.decoder import compiled_folder
from change_agent.decoder_build import (
    DecoderBuildError,
    build_decoder,
    build_modules,
    build_native,
    native_obstacle,
    obstacle,
)
from runtime.native_core import native_folder
from source_connector import compiled as row_path

__all__ = ["compile_decoder"]


@click.command(name="compile")
@click.option("--if-possible", is_flag=True, help="If something is missing, only report it, and exit with 0.")
def compile_decoder(if_possible: bool) -> None:
    """Compile the commit log decoder and the connector's row path, which then run several times as fast.

    Needs a C compiler, Python's headers, mypy and setuptools, and cargo for the native core of both. Without them, the same
    sources run as plain Python. After a change of the sources, compile them again, and build the connector's archive again.

    \b
    cdc compile --if-possible
    """
    missing = obstacle()
    rows = row_path.compiled_folder()
    # Each build is a process that uses one core.
    with ThreadPoolExecutor() as beside:
        done = [
            beside.submit(_build_native),
            beside.submit(_compile, "decoder", compiled_folder().is_dir(), missing, build_decoder),
            beside.submit(_compile, "row path", rows.is_dir(), missing, lambda: build_modules(row_path.GROUP, rows)),
        ]
    for each in done:
        text, is_built = each.result()
        click.echo(text, err=not is_built)
    if missing is not None and not (compiled_folder().is_dir() and rows.is_dir()):
        sys.exit(0 if if_possible else 1)


def _build_native() -> tuple[str, bool]:
    """Build the native core. Return a text about the result, and True if it is built.

    Nothing fails without it: the compiled or the plain Python does its work.
    """
    missing = native_obstacle()
    if native_folder().is_dir():
        missing = None
    elif missing is None:
        click.echo("native core: building (once, a minute or two)", err=True)
        try:
            build_native()
        except DecoderBuildError as error:
            missing = str(error)
    if missing is None:
        return "native core: built", True
    return f"native core: not built, Python does its work: {missing}", False


def _compile(name: str, is_there: bool, missing: str | None, build: Callable[[], object]) -> tuple[str, bool]:
    """Compile a part, unless it is compiled. Return a text about the result, and True if the part is compiled."""
    if not is_there and missing is not None:
        return f"{name}: runs uncompiled, which is slower: {missing}", False
    if not is_there:
        click.echo(f"{name}: compiling (once, about a minute)", err=True)
        build()
    return f"{name}: compiled", True
