"""The Spark home with which the JVM of a local master is started. With it, the JVM and its Python processes start fast.

- The JVM puts `python/lib/pyspark.zip` of its home before all other modules of the Python processes that it starts
  (Spark's `PythonUtils.sparkPythonPath`). The zip has only sources, so each process compiles PySpark again, which takes
  a second. A run that reads a topic starts five processes, one after the other. This home has no such zip, so the
  processes import the PySpark that pip has installed and compiled.
- The JVM shares an archive of loaded classes (CDS, JEP 350) only if it starts with the class path of the JVM that wrote
  the archive. Jars that Spark gets later (`spark.jars`) are not on this class path. This home has its jars there, after
  Spark's own, and a place for the archive.

If Spark is configured elsewhere, it starts as configured: such a configuration may name another master, jars or Java
options, and Spark has no way to add to them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark
from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home

from runtime.cache_folder import cache_dir

__all__ = ["SparkHome", "configured_elsewhere", "prepared_jars", "spark_home"]

_HOME: Final = "SPARK_HOME"
# Spark's scripts add its jars to the class path, after Spark's own.
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
_HOMES: Final = "spark-homes"
_NEEDED: Final = ("bin", "sbin", _JARS)
# The paths of the jars of a home that has an archive.
_JAR_LIST: Final = "jars.json"


@dataclass(frozen=True, slots=True)
class SparkHome:
    """A folder below the cache folder, with links to an installed PySpark, for sessions with certain more jars."""

    folder: Path

    @property
    def archive(self) -> Path | None:
        """Path of the archive of classes for the Java that Spark would start; it need not exist.

        None: there is no Java.
        """
        java = _java()
        if java is None:
            return None
        state = java.stat()
        return self.folder / f"classes-{_digest(java, state.st_size, int(state.st_mtime))}.jsa"

    @property
    def jvm_options(self) -> tuple[str, ...]:
        """Options that make the JVM use the archive; none if the archive does not exist.

        A JVM that cannot use the archive starts without it.
        """
        archive = self.archive
        if archive is None or not archive.is_file():
            return ()
        return (f'"-XX:SharedArchiveFile={archive}"', "-Xshare:auto", "-Xlog:cds*=off")

    def note_jars(self, jars: Sequence[Path]) -> None:
        """Write down the jars of this home, so that sessions without jars of their own can use it. Raises OSError."""
        written = self.folder / f"{_JAR_LIST}.{os.getpid()}"
        written.write_text(json.dumps([str(each.absolute()) for each in jars]), encoding="utf-8")
        written.replace(self.folder / _JAR_LIST)

    @property
    def noted_jars(self) -> tuple[Path, ...]:
        """The jars that were written down; empty if there are none, or they cannot be read."""
        try:
            return tuple(map(Path, json.loads((self.folder / _JAR_LIST).read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError):
            return ()

    def other_archives(self) -> list[Path]:
        """All other archives for this location of PySpark, and archives whose PySpark is gone.

        The others are for other jars, another Java, or an earlier PySpark.
        """
        place = self.folder.name.split("-")[0]
        homes = [
            each
            for each in self.folder.parent.iterdir()
            if each.name.startswith(f"{place}-") or not (each / _NEEDED[0]).exists()
        ]
        return [each for home in homes for each in home.glob("classes-*") if each != self.archive]


def configured_elsewhere() -> str | None:
    """The environment variable or folder that configures Spark beside the session; None if there is none."""
    named = next((each for each in _CONFIGURATION if each in os.environ), None)
    if named is not None:
        return named
    found = Path(_find_spark_home())  # type: ignore[no-untyped-call]  # PySpark gives it no types
    if not found.samefile(_installed()):
        return str(found)
    configuration = found / "conf"
    return str(configuration) if configuration.exists() else None


@contextmanager
def spark_home(jars: Sequence[Path]) -> Iterator[SparkHome | None]:
    """Set the home for the start of a local master's JVM, with `jars` after Spark's own. None: nothing is set.

    Nothing is set if a JVM runs already, if Spark is configured elsewhere, if this PySpark was not installed by pip,
    if Spark's Python processes use another interpreter (which may have no PySpark), or if the cache folder cannot be
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
            os.environ.pop(name, None)  # other child processes may use another Spark


def prepared_jars(names: Collection[str]) -> tuple[Path, ...]:
    """The jars for which this PySpark and Java have an archive of classes (`cdc spark prepare`).

    Empty if files with these names are not among them, if there is no archive, or if Spark's home cannot be chosen
    here.
    """
    if not _is_ours_to_choose():
        return ()
    try:
        homes = [SparkHome(each) for each in (cache_dir() / _HOMES).glob(f"{_place()}-*")]
    except OSError:
        return ()
    return next((home.noted_jars for home in homes if home.jvm_options and _serves(home, names)), ())


def _serves(home: SparkHome, names: Collection[str]) -> bool:
    """True if files with these names are among the jars of the home, and the jars are still the same."""
    jars = home.noted_jars
    try:
        return {each.name for each in jars}.issuperset(names) and _folder(jars) == home.folder
    except OSError:
        return False


def _installed() -> Path:
    return Path(pyspark.__file__).parent


def _is_ours_to_choose() -> bool:
    others = [name for name in _INTERPRETERS if os.environ.get(name, sys.executable) != sys.executable]
    found = _installed()
    is_installed_by_pip = (found / _ZIP).is_file() and all((found / name).is_dir() for name in _NEEDED)
    is_running = SparkContext._gateway is not None  # noqa: SLF001  (PySpark names its JVM nowhere else)
    return configured_elsewhere() is None and not others and is_installed_by_pip and not is_running


def _home(jars: Sequence[Path]) -> SparkHome | None:
    try:
        home = _folder(jars)
        if not home.is_dir():
            _make(home, _installed())
        return SparkHome(home) if os.access(home, os.R_OK | os.X_OK) else None
    except OSError:
        return None


def _folder(jars: Sequence[Path]) -> Path:
    """Where the home of these jars is, if it exists. A replaced jar has another home. Raises OSError."""
    files = [(each.absolute(), each.stat().st_size, int(each.stat().st_mtime)) for each in jars]
    return cache_dir() / _HOMES / f"{_place()}-{_digest(*files)}"


def _place() -> str:
    """How the homes of this PySpark begin. Raises OSError.

    Another PySpark at the same location has other jars. Times are in whole seconds, because container images have no
    fractions.
    """
    installed = _installed()
    return f"{_digest(installed)}-{_digest(pyspark.__version__, int((installed / _JARS).stat().st_mtime))}"


def _make(home: Path, installed: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{home.name}.", dir=home.parent))
    try:
        for name in _NEEDED:
            (made / name).symlink_to(installed / name)
        made.chmod(0o755)  # mkdtemp makes it private
        # The home appears with all of its links. If two processes make it, that of the first one stays.
        made.rename(home)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not home.is_dir():
            raise


def _java() -> Path | None:
    """The Java that Spark's scripts start (`bin/spark-class`)."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    return None if found is None else Path(found).resolve()


def _digest(*parts: object) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:12]
