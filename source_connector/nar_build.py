"""Builds the connector's archive, cassandra-cdc-source-<version>.nar: the work of `cdc nar`.

    META-INF/services/pulsar-io.yaml      what Pulsar starts
    META-INF/bundled-dependencies/*.jar   the Java host
    python/                               schemas, runtime, clients, source_connector, the unpacked wheels they need,
                                          and the compiled row path and the native core, if `cdc compile` has made
                                          them of these sources
    python/__main__.py                    refuses an interpreter of another kind, starts the application
    python/ABI                            the kind of Python the wheels are for

The wheels are those of the Python that builds, in the versions and with the hashes of `nar/requirements.lock`. Needs
`java`/`javac` 17 and `mvn`; the host's class path comes from Maven Central by `nar/pom.xml`.
"""

from __future__ import annotations

import compileall
import fcntl
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Final

from runtime.compiled_modules import abi
from runtime.native_core import native_folder
from runtime.short_java import SHORT_RUN, short_java
from schemas.errors import CdcError
from source_connector.compiled import compiled_folder

__all__ = ["WHEELS", "WHEELS_LOCK", "NarBuildError", "build_nar", "fetch_parts", "install_wheels"]

_PACKAGE: Final = Path(__file__).resolve().parent
_ROOT: Final = _PACKAGE.parent
_JAVA: Final = _PACKAGE / "nar"
WHEELS: Final = (
    "annotated-types",
    "cachetools",
    "cassandra-driver",
    "certifi",
    "cffi",
    "cryptography",
    "fastavro",
    "pulsar-client",
    "pycparser",
    "pydantic",
    "pydantic-core",
    "tenacity",
    "typing-extensions",
    "typing-inspection",
)
"""The packages that the application imports, and their dependencies. No other installed package is included."""

WHEELS_LOCK: Final = _JAVA / "requirements.lock"
"""The file with versions and hashes of the wheels. `make lock` writes it."""
_LEFT_OUT: Final = ("__pycache__", "*.c", "*.cpp", "*.h", "*.pxd", "*.pyx", "*.pyi", "bin", "tests")
_EARLIEST_ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)


class NarBuildError(CdcError):
    """A step of the build failed. The text has the end of its output."""


def build_nar(out_dir: Path) -> Path:
    """Build the archive into `out_dir` and return its path. The same input gives the same bytes.

    Raises NarBuildError.
    """
    archive = out_dir / f"cassandra-cdc-source-{version('cassandra-cdc')}.nar"
    with _work_folder(out_dir) as folder:
        class_path, wheels = _fetched(out_dir, folder)
        tree = folder / "tree"
        _host(tree, folder, class_path)
        _application(tree / "python", wheels)
        unfinished = folder / "archive"
        _zip(tree, unfinished)
        unfinished.replace(archive)
    return archive


def fetch_parts(out_dir: Path) -> None:
    """Fetch into `out_dir` what a build takes from elsewhere, unless it is there. It does not depend on our sources.

    Raises NarBuildError.
    """
    with _work_folder(out_dir) as folder:
        _fetched(out_dir, folder)


@contextmanager
def _work_folder(out_dir: Path) -> Iterator[Path]:
    """A temporary folder in `out_dir`, for one build at a time, because builds share what was fetched."""
    out_dir.mkdir(parents=True, exist_ok=True)
    with (
        (out_dir / "nar.lock").open("w") as file,
        tempfile.TemporaryDirectory(prefix="nar-", dir=out_dir) as folder,
    ):
        fcntl.flock(file, fcntl.LOCK_EX)
        yield Path(folder)


def _fetched(out_dir: Path, scratch: Path) -> tuple[Path, Path]:
    """The folders of the host's class path and of the wheels, which are filled once (the wheels: once per lock)."""
    class_path, wheels = out_dir / "nar-class-path", out_dir / "nar-wheels"
    if not class_path.is_dir():
        jars = scratch / "class-path"
        _run("mvn", "-q", "-B", "-f", _JAVA / "pom.xml", "dependency:copy-dependencies", f"-DoutputDirectory={jars}")
        jars.replace(class_path)
    stamp = wheels / "requirements.txt"
    wanted = WHEELS_LOCK.read_text(encoding="utf-8") + abi()
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(wheels, ignore_errors=True)
        install_wheels(WHEELS_LOCK, wheels)
        stamp.write_text(wanted, encoding="utf-8")
    return class_path, wheels


def _host(tree: Path, scratch: Path, class_path: Path) -> None:
    """The Java host as a jar inside the tree, and the descriptor that names its class."""
    classes = scratch / "classes"
    sources = sorted(_JAVA.glob("*.java"))
    jars = ":".join(str(jar) for jar in sorted(class_path.glob("*.jar")))
    _run(
        "javac", f"-J{SHORT_RUN}", "-Xlint:all,-try", "-Werror", "--release", "17", "-cp", jars, "-d", classes, *sources
    )
    bundled = tree / "META-INF" / "bundled-dependencies"
    bundled.mkdir(parents=True)
    _zip(classes, bundled / "cassandra-cdc-source-host.jar")
    services = tree / "META-INF" / "services"
    services.mkdir()
    shutil.copy(_JAVA / "pulsar-io.yaml", services)


def _application(target: Path, wheels: Path) -> None:
    """The Python side: wheels, then our packages."""
    shutil.copytree(wheels, target, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    left_out = shutil.ignore_patterns(*_LEFT_OUT, "nar", "nar_*", "_compiled", "target")
    for package in ("schemas", "runtime", "clients", "source_connector"):
        shutil.copytree(_ROOT / package, target / package, ignore=left_out)
    for made in (compiled_folder(), native_folder()):
        if made.is_dir():
            shutil.copytree(made, target / made.relative_to(_ROOT))
    shutil.copy(_PACKAGE / "nar_start.py", target / "__main__.py")
    (target / "ABI").write_text(abi() + "\n")
    # Not checked against source times, because the times in an archive are not reliable.
    compiled = compileall.compile_dir(
        target, quiet=1, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH, stripdir=str(target), workers=1
    )
    if not compiled:
        raise NarBuildError("nar: a module could not be compiled; see its message above")


def install_wheels(lock: Path, target: Path) -> None:
    """Install the wheels of a lock, and no other files, into a folder. Raises NarBuildError."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
    _run(*pip, "--no-deps", "--require-hashes", "--only-binary=:all:", "--target", target, "-r", lock)


def _zip(tree: Path, archive: Path) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as out:
        for path in sorted(tree.rglob("*")):
            # Directories, too: without an entry for bundled-dependencies Pulsar treats the archive as a jar.
            name = path.relative_to(tree).as_posix() + ("/" if path.is_dir() else "")
            entry = zipfile.ZipInfo(name, _EARLIEST_ZIP_TIME)
            entry.external_attr = (0o40755 << 16 | 0x10) if path.is_dir() else 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            out.writestr(entry, b"" if path.is_dir() else path.read_bytes())


def _run(*command: str | Path) -> None:
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            [str(each) for each in command],
            env=short_java("MAVEN_OPTS"),
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise NarBuildError(f"nar: {name} was not found; a JDK 17 and Maven are needed to build the archive") from error
    if done.returncode != 0:
        tail = (done.stdout + done.stderr).strip()[-2000:]
        raise NarBuildError(f"nar: {name} ended with exit code {done.returncode}: {tail}")
