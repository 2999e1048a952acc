"""Groups of modules that mypyc compiles, and when they run instead of their sources.

`cdc compile` puts a group's modules into a folder that is named by :func:`build_key`. Python does not look there by itself, so
they never stand in the way of a source. The key is a hash of sources and the interpreter's ABI: what was compiled from other
sources, or for another Python, is not loaded. All of a group are loaded or none: compiled modules call each other without
asking Python which module is meant.

Which sources count, where the folder is, and what is told of it, is the products' own: `change_agent.decoder` and
`source_connector.compiled`. No file is read here.
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
    """The kind of this Python, as the names of its compiled modules have it: `cpython-311-x86_64-linux-gnu`."""
    return str(sysconfig.get_config_var("SOABI"))


def build_key(sources: Iterable[tuple[str, bytes]]) -> str:
    """What the folder of modules compiled of these sources, names and contents in a fixed order, is called: ABI and hash."""
    digest = hashlib.sha256()
    for name, content in sources:
        digest.update(name.encode() + b"\0" + content + b"\0")
    return f"{abi()}-{digest.hexdigest()[:16]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledGroup:
    """Modules that are compiled together.

    `name` is that of the library which mypyc makes of them, `option` the variable of the environment that chooses: `auto`
    (compiled where they were compiled), `compiled` (or an error, never something else), `python`.
    """

    name: str
    option: str
    modules: tuple[str, ...]

    def load(self, choice: str, folder: str, missing: str | None) -> bool:
        """Let the modules come from where `choice` says; called once, before one of them is imported. True for compiled.

        `missing` says why `folder` does not exist; None if it does. Raises ConfigError.
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
    """Finds a group's modules in their folder, before Python finds the sources."""

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
