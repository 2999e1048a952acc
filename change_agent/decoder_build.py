"""Compiles the decoder, or other modules: mypyc makes C of their sources, and the C compiler makes modules that Python loads.

Where a compiler is missing nothing is lost but speed; :func:`obstacle` says what to install.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from change_agent.decoder import GROUP, compiled_folder
from schemas.compiled_modules import CompiledGroup
from schemas.errors import CdcError

__all__ = ["DecoderBuildError", "build_decoder", "build_modules", "obstacle"]

_ROOT: Final = Path(__file__).parent.parent
_SHOWN_LINES: Final = 20

# The group makes one library of all modules, so that they call each other as C functions do.
_SETUP: Final = """\
import sys
from setuptools import setup
from mypyc.build import mypycify
setup(
    name={group!r},
    packages=[],
    ext_modules=mypycify(
        ["--ignore-missing-imports", "--explicit-package-bases", *{files!r}], group_name={group!r}, opt_level="3"
    ),
)
"""


class DecoderBuildError(CdcError):
    """The decoder could not be compiled: what the compiler said last."""


def obstacle() -> str | None:
    """Why the decoder cannot be compiled here, and what to install; None when it can."""
    compiler = os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler.split()[0]) is None:
        return "there is no C compiler (on Debian: apt install gcc python3-dev)"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return f"Python's headers are missing for {sys.executable} (on Debian: apt install python3-dev)"
    for module, package in (("mypyc", "mypy"), ("setuptools", "setuptools")):
        if find_spec(module) is None:
            return f"{package} is not installed (pip install 'cassandra-cdc[compile]')"
    return None


def build_decoder(target: Path | None = None) -> Path:
    """Compile the sources as they are now, into the folder that they are loaded from, or `target`. Raises DecoderBuildError.

    The folder appears at once, whole, and older ones of the same interpreter go: a process that runs keeps its own.
    """
    found = compiled_folder() if target is None else target
    build_modules(GROUP, found)
    return found


def build_modules(group: CompiledGroup, target: Path) -> None:
    """Compile a group's modules, unless `target` is there already. Raises DecoderBuildError."""
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
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", "out", "--build-temp", "temp"],
        cwd=work, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONPATH": "", "MYPYPATH": "", "MYPY_CACHE_DIR": str(work / "cache")},
    )  # fmt: skip
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
