"""Groups of modules that mypyc compiles, and when Python loads them instead of their sources.

`cdc compile` puts a group's modules into a folder that is named by :func:`build_key`. Python does not search there by
itself, so the compiled modules never hide a source. The key has a hash of the sources and the interpreter's ABI:
modules that were compiled from other sources, or for another Python, are not loaded. All modules of a group are loaded,
or none: compiled modules call each other directly, without Python's import system.

The products decide which sources count, where the folder is, and what they report: `change_agent.decoder` and
`source_connector.compiled`. This module reads no file.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Final

from schemas.errors import ConfigError

__all__ = ["CompiledGroup", "abi", "build_key"]

_CHOICES: Final = ("auto", "compiled", "python")


def abi() -> str:
    """The ABI of this Python, as in the names of its compiled modules: `cpython-311-x86_64-linux-gnu`."""
    return str(sysconfig.get_config_var("SOABI"))


def build_key(sources: Iterable[tuple[str, bytes]]) -> str:
    """Name of the folder for modules compiled from these sources: the ABI, and a hash of their names and contents."""
    digest = hashlib.sha256()
    for name, content in sources:
        digest.update(name.encode() + b"\0" + content + b"\0")
    return f"{abi()}-{digest.hexdigest()[:16]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledGroup:
    """Modules that are compiled together.

    `name` is the name of the library that mypyc makes of them. `option` is the environment variable that chooses:
    `auto` (the compiled modules if there are any), `compiled` (an error without them), `python`.
    """

    name: str
    option: str
    modules: tuple[str, ...]

    def load(self, choice: str, folder: str, missing: str | None) -> bool:
        """Let Python load the modules as `choice` says.

        Called once, before one of them is imported. True for compiled ones. `missing` is the reason why `folder` does
        not exist; None if it exists. Raises ConfigError.
        """
        if choice not in _CHOICES:
            raise ConfigError.of(self.option, f"{choice!r} is not one of {', '.join(_CHOICES)}")
        if choice == "compiled" and missing is not None:
            raise ConfigError.of(self.option, f"{missing}; run `cdc compile`")
        if choice == "python" or missing is not None:
            return False
        sys.meta_path.insert(0, _CompiledModules(self, folder))
        return True


class _CompiledModules(MetaPathFinder):
    """Finds a group's compiled modules in their folder, before Python finds the sources."""

    def __init__(self, group: CompiledGroup, folder: str) -> None:
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        self._files: Final[Mapping[str, str]] = {
            name: f"{folder}/{name.replace('.', '/')}{suffix}" for name in (*group.modules, f"{group.name}__mypyc")
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        if file is None:
            return None
        return spec_from_file_location(fullname, file, loader=ExtensionFileLoader(fullname, file))
