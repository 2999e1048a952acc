"""The agent's native core with libFuzzer's counters, so that fuzzing follows the branches of its Rust code.

Only the core's own crate gets the counters, by rustc's flags for LLVM's SanitizerCoverage, as cargo-fuzz sets them. The
library has no functions for them: those of atheris are found if its modules are loaded with global symbols.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Final, cast

from change_agent.native_core import NativeCore
from runtime.native_core import NATIVE_MODULE, NATIVE_SOURCES

__all__ = ["build_instrumented_core", "load_instrumented_core"]

_COUNTERS: Final = (
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
)
_HOST: Final = re.compile(r"^host: (\S+)$", re.MULTILINE)


def build_instrumented_core(folder: Path) -> Path | None:
    """Build the core in this folder, and return the library; None if there is no cargo.

    Cargo builds again only what has changed. Raises subprocess.CalledProcessError; the compiler's output is printed.
    """
    cargo = shutil.which(os.environ.get("CARGO") or "cargo")
    if cargo is None:
        return None
    rustc = subprocess.run(["rustc", "-vV"], check=True, stdout=subprocess.PIPE, text=True, cwd=NATIVE_SOURCES)
    host = _HOST.search(rustc.stdout)
    assert host is not None, rustc.stdout
    command = [cargo, "rustc", "--quiet", "--release", "--locked", "--lib", "--crate-type", "cdylib"]
    # With a target, the flags are not those of build scripts, which would miss the counters' functions. Optimization of the
    # linked program would come after the counters, and remove their order.
    command += ["--target", host[1], "--target-dir", str(folder.resolve()), "--", *_COUNTERS]
    subprocess.run(
        command,
        check=True,
        cwd=NATIVE_SOURCES,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYO3_PYTHON": sys.executable, "CARGO_PROFILE_RELEASE_LTO": "off"},
    )
    (library,) = (folder / host[1] / "release").resolve().glob(f"lib{NATIVE_MODULE}.[sd][oy]*")
    return library


def load_instrumented_core(library: Path) -> NativeCore:
    """Load the library, after atheris. Raises ImportError if atheris' functions are not found."""
    loader = ExtensionFileLoader(NATIVE_MODULE, str(library))
    spec = spec_from_file_location(NATIVE_MODULE, library, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return cast(NativeCore, module)
