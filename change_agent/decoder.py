"""Choice of the decoder: the native core, the decoder's modules compiled by mypyc, or the same modules as plain Python.

`cdc compile` puts the compiled modules into `_compiled/<key>/` beside this file; `runtime.compiled_modules` says when
they are loaded. Modules that were compiled from other sources are not loaded, and :func:`running` says that they are
stale. The native core, with its sources in `native/`, has a folder of its own in `_compiled`. In an agent it decodes
most entries (change_agent.native_core). The Python modules read the entries that the core refuses, and all entries
outside an agent.

The variable `CDC_DECODER` chooses: `auto` takes the fastest decoder that is there; `native` and `compiled` raise an
error if theirs is missing; `python` takes the plain sources.

`change_agent/__init__.py` calls :func:`choose` before any other module of the package can be imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from runtime.compiled_modules import CompiledGroup, abi, build_key
from runtime.native_core import choose_native

__all__ = [
    "COMPILED_MODULES",
    "GROUP",
    "INTERFACES",
    "RunningDecoder",
    "choose",
    "compiled_folder",
    "native_module",
    "running",
]

COMPILED_MODULES: Final = (
    "change_agent.data_input",
    "change_agent.db.values",
    "change_agent.db.clustering",
    "change_agent.db.marshal",
    "change_agent.db.serialization_header",
    "change_agent.db.rows",
    "change_agent.db.mutation",
    "change_agent.commitlog.entry",
    "change_agent.commitlog.segment",
    "change_agent.commitlog.section_source",
    "change_agent.commitlog.reader",
    "change_agent.events.avro_key",
    "change_agent.events.digest",
    "change_agent.events.mutation_events",
    "change_agent.events.events_writer",
    "change_agent.positions.accounts",
    "change_agent.publishing.outgoing",
    "change_agent.publishing.event_batch",
)
"""Modules that mypyc compiles together into one library."""

INTERFACES: Final = (
    "change_agent.cdc_raw.segment_key",
    "change_agent.commitlog.compression",
    "change_agent.commitlog.descriptor",
    "change_agent.commitlog.section_decoder",
    "change_agent.errors",
    "change_agent.events.mutation_interpreter",
    "change_agent.format_version",
    "change_agent.metrics",
    "change_agent.native_core",
    "change_agent.positions.inflight",
    "schemas.avro_forms",
    "schemas.avro_names",
    "schemas.cql_type",
    "schemas.cql_value",
    "schemas.mutation_event",
    "schemas.native_codec",
    "schemas.row_record",
    "schemas.table_metadata",
    "schemas.topics",
)
"""Modules that the compiled ones import.

The compiler builds in their types and constants, so they are part of the key.
"""

GROUP: Final = CompiledGroup(name="change_agent_decoder", option="CDC_DECODER", modules=COMPILED_MODULES)
_ROOT: Final = Path(__file__).parent.parent
_HOW: Final = "`make compile` or `cdc compile` makes it several times as fast"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningDecoder:
    """The decoder of this process.

    `description` is for a person, and has the reason if it is not the fastest decoder. `modules` describes the Python
    modules, which decode without the native core: for `cdc decode`, for archives, and for entries that the core
    refuses.
    """

    is_native: bool
    is_compiled: bool
    description: str
    modules: str


def running() -> RunningDecoder:
    """The decoder of this process."""
    assert _running is not None
    return _running


def choose(choice: str) -> None:
    """Load the native core, and let Python find the decoder's modules, as `choice` says.

    Called once. Raises ConfigError.
    """
    global _running, _native  # noqa: PLW0603  # a process has one decoder
    _native, no_core = choose_native(GROUP.option, choice)
    folder = compiled_folder()
    why = None
    if not folder.is_dir():
        why = "the sources changed since it was compiled" if _was_compiled(folder) else "not compiled"
    missing = None if why is None else f"there is no compiled decoder: {why}"
    is_compiled = GROUP.load("auto" if choice == "native" else choice, str(folder), missing)
    plain = "CDC_DECODER=python" if choice == "python" else f"{why}; {_HOW}"
    modules = described = "compiled" if is_compiled else f"plain Python ({plain})"
    if _native is not None:
        described = "native" if is_compiled else f"native; refused entries: {modules}"
    elif is_compiled and choice != "compiled":
        described = f"compiled (no native core: {no_core})"
    _running = RunningDecoder(
        is_native=_native is not None, is_compiled=is_compiled, description=described, modules=modules
    )


def compiled_folder() -> Path:
    """Folder for the compiled modules of these sources and this interpreter; it may not exist."""
    key = build_key((name, _source(name).read_bytes()) for name in (*COMPILED_MODULES, *INTERFACES))
    return _ROOT / "change_agent" / "_compiled" / key


def native_module() -> ModuleType | None:
    """The module of the native core; None if it was not loaded."""
    return _native


_running: RunningDecoder | None = None
_native: ModuleType | None = None


def _source(module: str) -> Path:
    return _ROOT.joinpath(*module.split(".")).with_suffix(".py")


def _was_compiled(folder: Path) -> bool:
    return any(folder.parent.glob(f"{abi()}-*"))
