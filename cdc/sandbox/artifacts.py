"""The servers' files: fetched once from Maven Central through the poms in ``poms/`` into a per-user cache folder.

A set of files is named after its pom. The name of its folder in the cache has a hash of the pom, so another version has
another folder. The folder is created by one rename, so it is always complete, and it is never written again. A file
lock keeps two callers from fetching the same set. Once the folder exists, neither Maven nor a network is needed.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cdc.sandbox.errors import ArtifactError
from cdc.sandbox.prerequisites import java_home, maven
from cdc.sandbox.versions import CASSANDRA_VERSIONS, PULSAR_VERSION
from runtime.cache_folder import cache_dir
from runtime.short_java import short_java
from schemas.errors import ConfigError

__all__ = ["ARTIFACT_SETS", "cassandra_class_path", "ensure", "is_fetched", "pulsar_distribution"]

_DEPENDENCY_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_POMS: Final = Path(__file__).parent / "poms"
ARTIFACT_SETS: Final = (
    *(f"cassandra-{line}" for line in CASSANDRA_VERSIONS),
    "jolokia",
    "pulsar",
    "pulsar-io-jdbc-sqlite",
    "spark-avro",
    "spark-delta",
    "spark-delta-4.2",
    "spark-iceberg",
    "spark35",
    "spark35-iceberg",
)
"""All names that :func:`ensure` takes."""


def ensure(name: str) -> list[Path]:
    """The files of an artifact set, sorted by name: jars, or for ``pulsar`` the folder of the unpacked distribution.

    Fetches the files first if they are not in the cache. Raises ConfigError if java or mvn is missing or the name is
    unknown, ArtifactError if Maven fails.
    """
    if name not in ARTIFACT_SETS:
        raise ConfigError.of("artifact set", f"{name!r} is unknown; it is one of {', '.join(ARTIFACT_SETS)}")
    return sorted(_folder(name).iterdir())


def is_fetched(name: str) -> bool:
    """Return True if the cache has the artifact set."""
    return _place(name).is_dir()


def cassandra_class_path(line: str) -> list[Path]:
    """The jars of a line of Cassandra such as ``5.0``: cassandra-all and its dependencies."""
    return ensure(f"cassandra-{line}")


def pulsar_distribution() -> Path:
    """The home of the unpacked Pulsar distribution (bin, conf, lib, instances). Callers must not write in it."""
    return _folder("pulsar") / f"apache-pulsar-{PULSAR_VERSION}"


def _pom(name: str) -> Path:
    return _POMS / f"{name}.xml"


def _place(name: str) -> Path:
    digest = hashlib.sha256(_pom(name).read_bytes()).hexdigest()[:12]
    return cache_dir() / "artifacts" / f"{name}-{digest}"


def _folder(name: str) -> Path:
    folder = _place(name)
    if not folder.is_dir():
        with _lock(folder.parent / f"{folder.name}.lock"):
            if not folder.is_dir():  # another caller may have fetched it while this one waited for the lock
                _fetch(name, _pom(name), folder)
    return folder


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(name: str, pom: Path, folder: Path) -> None:
    prefix = f".{folder.name}-"
    for left_over in folder.parent.glob(f"{prefix}*"):  # of a fetch that was killed: under the lock no other one runs
        shutil.rmtree(left_over)
    temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        _copy_dependencies(name, pom, temporary)
        for archive in temporary.glob("*.tar.gz"):
            with tarfile.open(archive) as tar:
                tar.extractall(temporary, filter="data")
            archive.unlink()
        if not any(temporary.iterdir()):
            raise ArtifactError(f"Maven brought no file for {name}; run `mvn -f {pom} dependency:tree` to see why")
        temporary.chmod(0o755)  # mkdtemp makes it private
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _copy_dependencies(name: str, pom: Path, target: Path) -> None:
    command = [
        str(maven()),
        "--batch-mode",
        "--quiet",
        "-Dstyle.color=never",
        "--strict-checksums",  # Maven's own default only warns
        f"--file={pom}",
        f"{_DEPENDENCY_PLUGIN}:copy-dependencies",
        f"-DoutputDirectory={target}",
        "-DincludeScope=runtime",
    ]
    environment = {**short_java("MAVEN_OPTS"), "JAVA_HOME": str(java_home())}
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, stdin=subprocess.DEVNULL
    )
    if run.returncode != 0:
        reason = _first_error(run.stdout) or f"exit code {run.returncode}"
        raise ArtifactError(
            f"Maven could not fetch {name}: {reason}; check the network, or set CDC_CACHE_DIR to a filled cache"
        )


def _first_error(output: str) -> str:
    for line in output.splitlines():
        _, mark, message = line.partition("[ERROR] ")
        if mark:
            return message.removesuffix(" -> [Help 1]")
    return ""
