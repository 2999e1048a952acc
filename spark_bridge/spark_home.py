"""The Spark home with which the JVM of a local master is started: one from which it and its Python processes start fast.

- The JVM puts `python/lib/pyspark.zip` of its home before all other modules of the Python processes that it starts (Spark's
  `PythonUtils.sparkPythonPath`). The zip has sources alone, so each process compiles PySpark again, which takes a second; a
  run that reads a topic starts five, one after the other. A PySpark that pip has installed stands beside it, compiled.
- The JVM shares an archive of loaded classes (CDS, JEP 350) only if it starts with the class path of the JVM that wrote it.
  Jars that Spark is given later (`spark.jars`) are not on it; a home has its jars there, behind Spark's own, and a place for
  the archive.

Where Spark has a configuration from elsewhere it starts as that says: such a file may name another master, jars or options
of Java, and Spark has no way to add to them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark
from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home

from runtime.cache_folder import cache_dir

__all__ = ["SparkHome", "configured_elsewhere", "spark_home"]

_HOME: Final = "SPARK_HOME"
# Spark's scripts put it behind Spark's own jars.
_MORE_JARS: Final = "SPARK_DIST_CLASSPATH"
_CONFIGURATION: Final = (
    _HOME,
    _MORE_JARS,
    "HADOOP_CONF_DIR",
    "MASTER",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONF_DIR",
    "SPARK_REMOTE",
    "YARN_CONF_DIR",
)
_INTERPRETERS: Final = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
_ZIP: Final = "python/lib/pyspark.zip"
_JARS: Final = "jars"
_NEEDED: Final = ("bin", "sbin", _JARS)


@dataclass(frozen=True, slots=True)
class SparkHome:
    """A folder below the cache folder, of links to an installed PySpark, for sessions with some more jars."""

    folder: Path

    @property
    def archive(self) -> Path | None:
        """Where the archive of classes is, or would be, for the Java that Spark would start; None: there is no Java."""
        java = _java()
        if java is None:
            return None
        state = java.stat()
        return self.folder / f"classes-{_digest(java, state.st_size, int(state.st_mtime))}.jsa"

    @property
    def jvm_options(self) -> tuple[str, ...]:
        """What makes the JVM use the archive; none if it is not there. A JVM that cannot use it starts without."""
        archive = self.archive
        if archive is None or not archive.is_file():
            return ()
        return (f'"-XX:SharedArchiveFile={archive}"', "-Xshare:auto", "-Xlog:cds*=off")

    def other_archives(self) -> list[Path]:
        """Those of the same place of PySpark (of other jars, another Java, an earlier PySpark), and of a PySpark that is gone."""
        place = self.folder.name.split("-")[0]
        homes = [
            each
            for each in self.folder.parent.iterdir()
            if each.name.startswith(f"{place}-") or not (each / _NEEDED[0]).exists()
        ]
        return [each for home in homes for each in home.glob("classes-*") if each != self.archive]


def configured_elsewhere() -> str | None:
    """The variable or folder from which Spark takes a configuration that is not the session's; None: there is none."""
    named = next((each for each in _CONFIGURATION if each in os.environ), None)
    if named is not None:
        return named
    found = Path(_find_spark_home())  # type: ignore[no-untyped-call]
    if not found.samefile(_installed()):
        return str(found)
    configuration = found / "conf"
    return str(configuration) if configuration.exists() else None


@contextmanager
def spark_home(jars: Sequence[Path]) -> Iterator[SparkHome | None]:
    """While the JVM of a local master is started: a home, with `jars` behind Spark's own; None: all stays as it is.

    It stays where a JVM runs already, where Spark is configured elsewhere, where this PySpark was not installed by pip,
    where its processes run by another interpreter, which may have no PySpark, and where the cache folder cannot be
    written.
    """
    home = _home(jars) if _is_ours_to_choose() else None
    if home is None:
        yield None
        return
    os.environ[_HOME] = str(home.folder)
    os.environ[_MORE_JARS] = os.pathsep.join(str(each.absolute()) for each in jars)
    try:
        yield home
    finally:
        for name in (_HOME, _MORE_JARS):
            os.environ.pop(name, None)  # other processes of this one may have another Spark


def _installed() -> Path:
    return Path(pyspark.__file__).parent


def _is_ours_to_choose() -> bool:
    others = [name for name in _INTERPRETERS if os.environ.get(name, sys.executable) != sys.executable]
    found = _installed()
    is_installed_by_pip = (found / _ZIP).is_file() and all((found / name).is_dir() for name in _NEEDED)
    is_running = SparkContext._gateway is not None  # noqa: SLF001  (PySpark names its JVM nowhere else)
    return configured_elsewhere() is None and not others and is_installed_by_pip and not is_running


def _home(jars: Sequence[Path]) -> SparkHome | None:
    installed = _installed()
    try:
        # Another PySpark in the same place has other jars, and the same file of a jar may be another jar. In whole seconds:
        # images of containers have no others.
        state = _digest(pyspark.__version__, int((installed / _JARS).stat().st_mtime))
        files = [(each.absolute(), each.stat().st_size, int(each.stat().st_mtime)) for each in jars]
        home = cache_dir() / "spark-homes" / f"{_digest(installed)}-{state}-{_digest(*files)}"
        if not home.is_dir():
            _make(home, installed)
        return SparkHome(home) if os.access(home, os.R_OK | os.X_OK) else None
    except OSError:
        return None


def _make(home: Path, installed: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{home.name}.", dir=home.parent))
    try:
        for name in _NEEDED:
            (made / name).symlink_to(installed / name)
        made.chmod(0o755)  # mkdtemp makes it private
        # It appears with all of its links; of two processes the first one makes it.
        made.rename(home)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not home.is_dir():
            raise


def _java() -> Path | None:
    """The one that Spark's scripts start (`bin/spark-class`)."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    return None if found is None else Path(found).resolve()


def _digest(*parts: object) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:12]
