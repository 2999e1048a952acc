"""Which row path runs: the modules that every row passes, compiled by mypyc, or the same sources as they are.

`cdc compile` puts the compiled modules into `_compiled/<key>/` beside this file, and the archive takes them along. Python does
not look there by itself, so they never stand in the way of a source. The key is a hash of the application's sources and the
interpreter's ABI: what was compiled from other sources, or for another Python, is not loaded. All of them are loaded or none:
compiled modules call each other without asking Python which module is meant.

`CDC_CONNECTOR` chooses: `auto` (compiled where they were compiled), `compiled` (or an error, never something else), `python`.

`source_connector/__init__.py` calls :func:`choose` before any other module of the package can be imported.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

from schemas.errors import ConfigError

__all__ = ["COMPILED_MODULES", "GROUP", "choose", "compiled_folder", "row_path"]

COMPILED_MODULES: Final = tuple(
    f"source_connector.{name}"
    for name in (
        "events.events_message",
        "events.events_reader",
        "events.guessed_events",
        "host.outbox",
        "host.publication",
        "host.record_frame",
        "rows.avro_transcoder",
        "rows.partition_lanes",
        "rows.raw_page",
        "rows.read_groups",
        "rows.row_fetcher",
        "rows.row_task",
        "rows.scope_task",
        "rows.table_life",
        "source",
        "table_line",
    )
)
"""They are compiled together."""

GROUP: Final = "source_connector_rows"
_PACKAGE: Final = Path(__file__).parent
_PACKAGES: Final = ("schemas", "source_connector")
# Not part of the application: the archive does not hold it.
_OF_THE_BUILD: Final = "nar_"
_CHOICES: Final = ("auto", "compiled", "python")


def row_path() -> str:
    """What this process runs, and why, for its log."""
    return _running


def choose(choice: str) -> None:
    """Let the modules of the row path come from where `choice` says; called once. Raises ConfigError."""
    global _running  # noqa: PLW0603  # a process has one row path
    if choice not in _CHOICES:
        raise ConfigError.of("CDC_CONNECTOR", f"{choice!r} is not one of {', '.join(_CHOICES)}")
    folder = compiled_folder()
    if choice == "python":
        _running = "plain Python (CDC_CONNECTOR=python)"
    elif folder.is_dir():
        sys.meta_path.insert(0, _CompiledModules(folder))
        _running = "compiled"
    elif choice == "compiled":
        raise ConfigError.of("CDC_CONNECTOR", "the sources as they are were not compiled; run `cdc compile`")
    else:
        _running = (
            "plain Python, which costs about twice the CPU; `cdc compile` before the archive is built changes that"
        )


def compiled_folder() -> Path:
    """Where the compiled modules of these sources, for this interpreter, are or would be."""
    digest = hashlib.sha256()
    root = _PACKAGE.parent
    for package in _PACKAGES:
        for source in sorted((root / package).rglob("*.py")):
            if not source.name.startswith(_OF_THE_BUILD):
                digest.update(f"{source.relative_to(root).as_posix()}\0".encode() + source.read_bytes() + b"\0")
    abi = sysconfig.get_config_var("SOABI")
    return _PACKAGE / "_compiled" / f"{abi}-{digest.hexdigest()[:16]}"


_running = ""


class _CompiledModules(MetaPathFinder):
    """Finds the compiled modules in their folder, before Python finds the sources."""

    def __init__(self, folder: Path) -> None:
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        names = (*COMPILED_MODULES, f"{GROUP}__mypyc")
        self._files: Final[Mapping[str, Path]] = {
            name: folder.joinpath(*name.split(".")[:-1], f"{name.rpartition('.')[2]}{suffix}") for name in names
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        if file is None:
            return None
        return spec_from_file_location(fullname, file, loader=ExtensionFileLoader(fullname, os.fspath(file)))
