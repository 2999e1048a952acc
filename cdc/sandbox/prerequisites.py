"""Finds the programs that the sandbox needs from this machine: a Java 17 and Maven."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from schemas.errors import ConfigError

__all__ = ["JAVA_MAJOR", "java_home", "maven", "require_linux"]

JAVA_MAJOR: Final = 17
_VERSION_LINE: Final = re.compile(r'version "(?:1\.)?(\d+)')


@cache
def java_home() -> Path:
    """The home of a Java 17: ``JAVA_HOME``, else the ``java`` on the PATH, else one below /usr/lib/jvm.

    Raises ConfigError with the other versions that were found, and how to install Java 17. The servers run only on
    Java 17: Pulsar needs it, and Cassandra up to 5.0 does not start on 21.
    """
    seen = []
    for origin, home in _java_candidates():
        major = _java_major(home)
        if major == JAVA_MAJOR:
            return home
        seen.append(f"{origin} is {f'Java {major}' if major else 'no Java'}")
    found = f" ({', '.join(seen)})" if seen else ""
    raise ConfigError.of(
        "java",
        f"no Java {JAVA_MAJOR} found{found}; install a JDK {JAVA_MAJOR}, for example with "
        f"`apt-get install openjdk-{JAVA_MAJOR}-jdk-headless`, or set JAVA_HOME to one",
    )


def require_linux() -> None:
    """Raise ConfigError if this is not Linux: the sandbox needs 127.0.0.0/8, pidfds and parent-death signals."""
    if sys.platform != "linux":
        raise ConfigError.of("sandbox", f"it runs on Linux only, not on {sys.platform}; use docker-compose.yml there")


def maven() -> Path:
    """The ``mvn`` program, which is only needed while an artifact is not in the cache.

    Raises ConfigError with the way to install it.
    """
    program = shutil.which("mvn")
    if program is None:
        raise ConfigError.of(
            "mvn", "Maven fetches the servers and is not on the PATH; install it, e.g. `apt-get install maven`"
        )
    return Path(program)


def _java_candidates() -> Iterator[tuple[str, Path]]:
    if os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(os.environ["JAVA_HOME"])
    on_path = shutil.which("java")
    if on_path is not None:
        yield "the java on the PATH", Path(on_path).resolve().parent.parent
    for home in sorted(Path("/usr/lib/jvm").glob(f"*{JAVA_MAJOR}*")):
        yield str(home), home


def _java_major(home: Path) -> int | None:
    try:
        run = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    match = _VERSION_LINE.search(run.stderr)
    return int(match.group(1)) if match else None
