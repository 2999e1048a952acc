"""Which decoder runs: the sources of the decoder compiled by mypyc, or the same sources as they are.

`cdc compile` puts the compiled modules into `_compiled/<key>/` beside this file. Python does not look there by itself, so they
never stand in the way of a source. The key is a hash of the sources and the interpreter's ABI: what was compiled from
other sources, or for another Python, is not loaded, and :func:`running` says that it is stale. All of them are loaded or
none: compiled modules call each other without asking Python which module is meant.

`CDC_DECODER` chooses: `auto` (compiled where it was compiled), `compiled` (or an error, never something else), `python`.

`change_agent/__init__.py` calls :func:`choose` before any other module of the package can be imported.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

from schemas.errors import ConfigError

__all__ = ["COMPILED_MODULES", "GROUP", "INTERFACES", "RunningDecoder", "choose", "compiled_folder", "running"]

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
    "change_agent.publishing.outgoing",
)
"""They are compiled together."""

INTERFACES: Final = (
    "change_agent.commitlog.compression",
    "change_agent.commitlog.descriptor",
    "change_agent.commitlog.section_decoder",
    "change_agent.errors",
    "change_agent.format_version",
    "schemas.avro_names",
    "schemas.cql_type",
    "schemas.cql_value",
    "schemas.mutation_event",
    "schemas.row_record",
    "schemas.table_metadata",
    "schemas.topics",
)
"""Our modules that compiled ones import: the compiler works their types and constants in."""

GROUP: Final = "change_agent_decoder"
_ROOT: Final = Path(__file__).parent.parent
_CHOICES: Final = ("auto", "compiled", "python")
_HOW: Final = "`make compile` or `cdc compile` makes it several times as fast"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningDecoder:
    """What this process decodes with; `description` says it to a person, and why when it is not the compiled one."""

    is_compiled: bool
    description: str


def running() -> RunningDecoder:
    """What this process decodes with."""
    assert _running is not None
    return _running


def choose(choice: str) -> None:
    """Let the modules of the decoder come from where `choice` says; called once. Raises ConfigError."""
    global _running  # noqa: PLW0603  # a process has one decoder
    if choice not in _CHOICES:
        raise ConfigError.of("CDC_DECODER", f"{choice!r} is not one of {', '.join(_CHOICES)}")
    folder = compiled_folder()
    if choice == "python":
        _running = RunningDecoder(is_compiled=False, description="plain Python (CDC_DECODER=python)")
    elif folder.is_dir():
        sys.meta_path.insert(0, _CompiledModules(folder))
        _running = RunningDecoder(is_compiled=True, description="compiled")
    else:
        why = "the sources changed since it was compiled" if _was_compiled(folder) else "not compiled"
        if choice == "compiled":
            raise ConfigError.of("CDC_DECODER", f"there is no compiled decoder: {why}; run `cdc compile`")
        _running = RunningDecoder(is_compiled=False, description=f"plain Python ({why}; {_HOW})")


def compiled_folder() -> Path:
    """Where the compiled modules of these sources, for this interpreter, are or would be."""
    digest = hashlib.sha256()
    for name in (*COMPILED_MODULES, *INTERFACES):
        digest.update(name.encode() + b"\0" + _source(name).read_bytes() + b"\0")
    return _ROOT / "change_agent" / "_compiled" / f"{_abi()}-{digest.hexdigest()[:16]}"


_running: RunningDecoder | None = None


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


def _source(module: str) -> Path:
    return _ROOT.joinpath(*module.split(".")).with_suffix(".py")


def _abi() -> str:
    return str(sysconfig.get_config_var("SOABI"))


def _was_compiled(folder: Path) -> bool:
    return any(folder.parent.glob(f"{_abi()}-*"))
