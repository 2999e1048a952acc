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

__all__ = ["NATIVE_MODULE", "NATIVE_SOURCES", "load_native", "native_folder"]

NATIVE_MODULE: Final = "cassandra_cdc_native"
"""Name of the module."""
NATIVE_SOURCES: Final = Path(__file__).parent / "native"
"""Folder of the Rust crate."""


def native_folder() -> Path:
    """Folder for the native core of these sources and this interpreter; it may not exist."""
    files = [NATIVE_SOURCES / "Cargo.toml", NATIVE_SOURCES / "Cargo.lock", *sorted(NATIVE_SOURCES.glob("src/*.rs"))]
    key = build_key((path.name, path.read_bytes()) for path in files if path.is_file())
    return NATIVE_SOURCES.parent / "_compiled" / f"native-{key}"


@cache  # a process can initialize the module only once
def load_native() -> tuple[ModuleType | None, str | None]:
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
