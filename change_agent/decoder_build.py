"""Compiles the decoder or other modules with mypyc and a C compiler, and builds the native core with cargo.

Without a compiler everything works, but slower. :func:`obstacle` and :func:`native_obstacle` say what to install.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from change_agent.decoder import GROUP, compiled_folder
from runtime.compiled_modules import CompiledGroup
from runtime.native_core import NATIVE_MODULE, NATIVE_SOURCES, native_folder
from schemas.errors import CdcError

__all__ = ["DecoderBuildError", "build_decoder", "build_modules", "build_native", "native_obstacle", "obstacle"]

_ROOT: Final = Path(__file__).parent.parent
_SHOWN_LINES: Final = 20
_NO_COMPILER: Final = "there is no C compiler (on Debian: apt install gcc python3-dev)"

# With a group name, mypyc makes one library of all modules, so that they call each other as C functions. Installed packages
# are not read: with the tests' packages installed, mypy would read IPython and matplotlib, which takes most of its time.
_SETUP: Final = """\
import sys
from setuptools import setup
from mypyc.build import mypycify
setup(
    name={group!r},
    packages=[],
    ext_modules=mypycify(
        ["--no-site-packages", "--ignore-missing-imports", "--explicit-package-bases", *{files!r}],
        group_name={group!r},
        opt_level="3",
    ),
)
"""


class DecoderBuildError(CdcError):
    """The decoder could not be compiled. The text has lines of the compiler's output."""


def native_obstacle() -> str | None:
    """The reason why the native core cannot be built here, with what to install; None if it can be built."""
    if shutil.which(_cargo()) is None:
        return "there is no cargo (https://rustup.rs, or on Debian: apt install cargo)"
    return _NO_COMPILER if _has_no_compiler() else None


def obstacle() -> str | None:
    """The reason why the decoder cannot be compiled here, with what to install; None if it can be compiled."""
    if _has_no_compiler():
        return _NO_COMPILER
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return f"Python's headers are missing for {sys.executable} (on Debian: apt install python3-dev)"
    for module, package in (("mypyc", "mypy"), ("setuptools", "setuptools")):
        if find_spec(module) is None:
            return f"{package} is not installed (pip install 'cassandra-cdc[compile]')"
    return None


def _has_no_compiler() -> bool:
    compiler = os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "cc")
    return shutil.which(compiler.split()[0]) is None


def _cargo() -> str:
    return os.environ.get("CARGO") or "cargo"


def build_native() -> Path:
    """Build the native core from the present sources, unless it is built already.

    Raises DecoderBuildError with a text of one line. Cargo downloads the crates that `Cargo.lock` names, unless it has
    them.
    """
    target = native_folder()
    if target.is_dir():
        return target
    with tempfile.TemporaryDirectory(prefix="cdc-native-") as folder:
        work = Path(folder)
        sources = work / "native"
        shutil.copytree(NATIVE_SOURCES, sources, ignore=shutil.ignore_patterns("target"))
        command = [_cargo(), "build", "--release", "--locked", "--target-dir", str(work / "target")]
        retries = {"CARGO_NET_RETRY": "1", "CARGO_HTTP_TIMEOUT": "20"}
        done = _run(command, sources, {**retries, **os.environ, "PYO3_PYTHON": sys.executable})
        if done.returncode:
            raise DecoderBuildError(f"cargo: {_first_error(done.stdout)}")
        (library,) = (work / "target" / "release").glob(f"lib{NATIVE_MODULE}.[sd][oy]*")
        (work / "out").mkdir()
        shutil.copyfile(library, work / "out" / f"{NATIVE_MODULE}.abi3.so")
        _move(work / "out", target)
    return target


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a compiler to its end. Its errors are in `stdout`, too."""
    return subprocess.run(
        command,
        cwd=folder,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def _first_error(said: str) -> str:
    """The first error in cargo's output, with its last cause."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error")]
    causes = [line for line in lines if line.startswith("[")] or lines[-1:]
    return f"{errors[0]} ({causes[-1]})" if errors else "; ".join(causes)


def build_decoder(target: Path | None = None) -> Path:
    """Compile the present sources into the folder that they are loaded from, or into `target`.

    Raises DecoderBuildError. The complete folder appears in one step. Older folders of the same interpreter are
    removed; a running process keeps the modules that it has loaded.
    """
    found = compiled_folder() if target is None else target
    build_modules(GROUP, found)
    return found


def build_modules(group: CompiledGroup, target: Path) -> None:
    """Compile a group's modules, unless `target` exists. Raises DecoderBuildError."""
    if target.is_dir():
        return
    with tempfile.TemporaryDirectory(prefix="cdc-compile-") as folder:
        work = Path(folder)
        _compile(work, group)
        _move(work / "out", target)


def _compile(work: Path, group: CompiledGroup) -> None:
    for package in dict.fromkeys(("schemas", *(name.partition(".")[0] for name in group.modules))):
        shutil.copytree(_ROOT / package, work / package, ignore=shutil.ignore_patterns("_compiled", "__pycache__"))
    files = [f"{name.replace('.', '/')}.py" for name in group.modules]
    (work / "setup.py").write_text(_SETUP.format(group=group.name, files=files))
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", "out", "--build-temp", "temp"]
    own = {"PYTHONPATH": "", "MYPYPATH": "", "MYPY_CACHE_DIR": str(work / "cache")}
    done = _run(command, work, {**os.environ, **own})
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-_SHOWN_LINES:])
        raise DecoderBuildError(f"{group.name} could not be compiled, and runs as plain Python:\n{last}")


def _move(built: Path, target: Path) -> None:
    stale = [each for each in target.parent.glob(f"{target.name.rpartition('-')[0]}-*") if each != target]
    arriving = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(built, arriving)
        arriving.rename(target)
    except OSError as error:
        shutil.rmtree(arriving, ignore_errors=True)
        if not target.is_dir():  # else another process was faster
            raise DecoderBuildError(f"cannot write {target}: {error.strerror}") from error
    for folder in stale:
        shutil.rmtree(folder, ignore_errors=True)
