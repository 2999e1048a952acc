"""The servers' files: fetched once from Maven Central through the poms in ``poms/`` into a per-user cache folder.

A set of files is named after its pom. Its folder in the cache carries a hash of the pom, so that another version is
another folder; it appears by one rename, complete or not at all, and is never written again. A file lock keeps two
callers from fetching the same set. Once it is there neither Maven nor a network is needed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
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
"""Every name that :func:`ensure` takes."""


def ensure(name: str) -> list[Path]:
    """The files of an artifact set, sorted by name: jars, or for ``pulsar`` the top of the unpacked distribution.

    Fetches them first if the cache does not have them. Raises ConfigError when java or mvn is missing or the name is
    unknown, ArtifactError when Maven fails.
    """
    if name not in ARTIFACT_SETS:
        raise ConfigError.of("artifact set", f"{name!r} is unknown; it is one of {', '.join(ARTIFACT_SETS)}")
    return sorted(_folder(name).iterdir())


def is_fetched(name: str) -> bool:
    """Whether the cache has an artifact set."""
    return _place(name).is_dir()


def cassandra_class_path(line: str) -> list[Path]:
    """The jars that make up Cassandra of a line such as ``5.0``: cassandra-all and everything it needs."""
    return ensure(f"cassandra-{line}")


def pulsar_distribution() -> Path:
    """The home of the unpacked Pulsar distribution (bin, conf, lib, instances); read-only by agreement."""
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
    for left_over in folder.parent.glob(f"{prefix}*"):  # of a fetch that was killed; the lock says that none runs
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
    environment = {**os.environ, "JAVA_HOME": str(java_home())}
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
