"""Chooses the row path: modules compiled by mypyc, or the same sources as plain Python.

`cdc compile` puts the compiled modules into `_compiled/<key>/` beside this file, and the archive contains them. The key
is a hash of all sources of the application. `runtime.compiled_modules` describes when they are loaded. The native core
(`runtime.native_core`) cuts the rows of answers and writes their records; without it, Python does that.

`CDC_CONNECTOR` chooses: `auto` takes what is there; `native` and `compiled` raise an error if theirs is missing; `python`
takes the plain sources.

`source_connector/__init__.py` calls :func:`choose` before any other module of the package can be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from runtime.compiled_modules import CompiledGroup, build_key
from runtime.native_core import choose_native

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_: bool) -> Callable[[type], type]:
        """Tell mypyc something about a class. Only the compiler reads it, and it is not installed where the code runs."""
        return lambda made: made


__all__ = ["COMPILED_MODULES", "GROUP", "choose", "compiled_folder", "mypyc_attr", "native_module", "row_path"]

COMPILED_MODULES: Final = tuple(
    f"source_connector.{name}"
    for name in (
        "tables.followed_table",
        "tables.schema_registration",
        "tables.table_clearings",
        "tables.table_tracker",
        "events.due_rows",
        "events.events_message",
        "events.events_reader",
        "tables.guessed_events",
        "events.mutation_cache",
        "events.reader_room",
        "rows.outbox",
        "rows.publication",
        "host.record",
        "host.record_frame",
        "metrics",
        "encoding.avro_transcoder",
        "encoding.native_rows",
        "rows.partition_lanes",
        "encoding.projection",
        "rows.group_limits",
        "rows.key_faults",
        "rows.raw_page",
        "rows.read_groups",
        "rows.read_lane",
        "rows.read_request",
        "rows.row_expiry",
        "rows.expiry_schedule",
        "rows.row_fetcher",
        "encoding.row_sizes",
        "encoding.selection",
        "rows.row_task",
        "rows.scope_task",
        "rows.task",
        "rows.table_life",
        "rows.timeouts",
        "rows.write_times",
        "attempts",
        "source",
        "table_line",
    )
)
"""They are compiled together."""

GROUP: Final = CompiledGroup(name="source_connector_rows", option="CDC_CONNECTOR", modules=COMPILED_MODULES)
_PACKAGE: Final = Path(__file__).parent
_PACKAGES: Final = ("schemas", "runtime", "clients", "source_connector")
# Prefix of modules that only build the archive. They are not in it.
_OF_THE_BUILD: Final = "nar_"


def row_path() -> str:
    """The row path of this process, with the reason if it is not the fastest, for its log."""
    return _running


def native_module() -> ModuleType | None:
    """The module of the native core; None if it was not loaded."""
    return _native


def choose(choice: str) -> None:
    """Choose where the modules of the row path are loaded from, and load the native core. Called once.

    Raises ConfigError.
    """
    global _running, _native  # noqa: PLW0603  # a process has one row path
    _native, no_core = choose_native(GROUP.option, choice)
    folder = compiled_folder()
    missing = None if folder.is_dir() else "the sources as they are were not compiled"
    is_compiled = GROUP.load("auto" if choice == "native" else choice, str(folder), missing)
    if choice == "python":
        _running = "plain Python (CDC_CONNECTOR=python)"
    elif not is_compiled:
        _running = (
            "plain Python, which costs about twice the CPU; `cdc compile` before the archive is built changes that"
        )
    elif _native is not None:
        _running = "compiled, with the native core"
    else:
        _running = "compiled" if no_core is None else f"compiled (no native core: {no_core})"


def compiled_folder() -> Path:
    """The folder for the compiled modules of these sources and this interpreter. It may not exist."""
    return _PACKAGE / "_compiled" / build_key(_sources())


def _sources() -> Iterator[tuple[str, bytes]]:
    root = _PACKAGE.parent
    for package in _PACKAGES:
        for source in sorted((root / package).rglob("*.py")):
            if not source.name.startswith(_OF_THE_BUILD):
                yield source.relative_to(root).as_posix(), source.read_bytes()


_running = ""
_native: ModuleType | None = None
