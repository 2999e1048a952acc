"""Which decoder runs: the sources of the decoder compiled by mypyc, or the same sources as they are.

`cdc compile` puts the compiled modules into `_compiled/<key>/` beside this file; `schemas.compiled_modules` says when they are
loaded. What was compiled from other sources is not, and :func:`running` says that it is stale. `CDC_DECODER` chooses: `auto`,
`compiled` or `python`.

`change_agent/__init__.py` calls :func:`choose` before any other module of the package can be imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from schemas.compiled_modules import CompiledGroup, abi, build_key

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
    "change_agent.positions.accounts",
    "change_agent.publishing.outgoing",
)
"""They are compiled together."""

INTERFACES: Final = (
    "change_agent.commitlog.compression",
    "change_agent.commitlog.descriptor",
    "change_agent.commitlog.section_decoder",
    "change_agent.errors",
    "change_agent.format_version",
    "schemas.avro_forms",
    "schemas.avro_names",
    "schemas.cql_type",
    "schemas.cql_value",
    "schemas.mutation_event",
    "schemas.row_record",
    "schemas.table_metadata",
    "schemas.topics",
)
"""Our modules that compiled ones import: the compiler works their types and constants in."""

GROUP: Final = CompiledGroup(name="change_agent_decoder", option="CDC_DECODER", modules=COMPILED_MODULES)
_ROOT: Final = Path(__file__).parent.parent
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
    folder = compiled_folder()
    why = None
    if not folder.is_dir():
        why = "the sources changed since it was compiled" if _was_compiled(folder) else "not compiled"
    missing = None if why is None else f"there is no compiled decoder: {why}"
    is_compiled = GROUP.load(choice, str(folder), missing)
    plain = "CDC_DECODER=python" if choice == "python" else f"{why}; {_HOW}"
    _running = RunningDecoder(
        is_compiled=is_compiled, description="compiled" if is_compiled else f"plain Python ({plain})"
    )


def compiled_folder() -> Path:
    """Where the compiled modules of these sources, for this interpreter, are or would be."""
    key = build_key((name, _source(name).read_bytes()) for name in (*COMPILED_MODULES, *INTERFACES))
    return _ROOT / "change_agent" / "_compiled" / key


_running: RunningDecoder | None = None


def _source(module: str) -> Path:
    return _ROOT.joinpath(*module.split(".")).with_suffix(".py")


def _was_compiled(folder: Path) -> bool:
    return any(folder.parent.glob(f"{abi()}-*"))
