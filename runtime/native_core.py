"""The native core: a Rust module with the agent's decoder and the connector's rows. Without it, Python does the work.

`cdc compile` builds it where there is cargo, into a folder of `_compiled` beside this file. The folder is named by
:func:`runtime.compiled_modules.build_key`, so a core that was built from other sources, or for another Python, is not
loaded. `change_agent.decoder` and `source_connector.compiled` decide if a process loads it.
"""

from __future__ import annotations

from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

from runtime.compiled_modules import abi, build_key
from schemas.errors import ConfigError

__all__ = ["NATIVE_MODULE", "NATIVE_SOURCES", "choose_native", "native_folder"]

NATIVE_MODULE: Final = "cassandra_cdc_native"
"""Name of the module."""
NATIVE_SOURCES: Final = Path(__file__).parent / "native"
"""Folder of the Rust crate."""
_CHOICES: Final = ("auto", "compiled", "native", "python")


def native_folder() -> Path:
    """Folder for the native core of these sources and this interpreter; it may not exist."""
    files = [NATIVE_SOURCES / "Cargo.toml", NATIVE_SOURCES / "Cargo.lock", *sorted(NATIVE_SOURCES.glob("src/*.rs"))]
    key = build_key((path.name, path.read_bytes()) for path in files if path.is_file())
    return NATIVE_SOURCES.parent / "_compiled" / f"native-{key}"


def choose_native(option: str, choice: str) -> tuple[ModuleType | None, str | None]:
    """The module if the choice includes it, and the reason if it is included and cannot be loaded.

    `option` is the environment variable with the choice: `auto`, `native`, `compiled` (without the core) or `python`.
    Raises ConfigError for another choice, and for `native` without a core.
    """
    if choice not in _CHOICES:
        raise ConfigError.of(option, f"{choice!r} is not one of {', '.join(_CHOICES)}")
    module, missing = _load_native() if choice in {"auto", "native"} else (None, None)
    if choice == "native" and missing is not None:
        raise ConfigError.of(option, f"there is no native core: {missing}; run `cdc compile` where there is cargo")
    return module, missing


@cache  # a process can initialize the module only once
def _load_native() -> tuple[ModuleType | None, str | None]:
    """The module and None, or None and the reason why the module cannot be loaded."""
    folder = native_folder()
    file = folder / f"{NATIVE_MODULE}.abi3.so"
    if not file.is_file():
        was_built = any(folder.parent.glob(f"native-{abi()}-*"))
        return None, "its sources changed since it was built" if was_built else "not built"
    try:
        spec = spec_from_file_location(NATIVE_MODULE, file, loader=ExtensionFileLoader(NATIVE_MODULE, str(file)))
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        return None, f"{file} cannot be loaded ({error})"
    return module, None
