"""Runs CommitLogOracle.java: Cassandra's own reader, of the version that wrote the segments."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cdc.sandbox.artifacts import cassandra_class_path
from cdc.sandbox.cassandra_config import jvm_options
from cdc.sandbox.prerequisites import java_home
from schemas.errors import CdcError

__all__ = ["CommitLogOracle", "DamagedOutput", "OracleError", "OracleOutput"]

_HERE = Path(__file__).parent
_TIMEOUT_S = 600


class OracleError(CdcError):
    """Cassandra's own reader could not be run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleOutput:
    """What Cassandra reads: `lines` as `cdc decode` prints them, `errors` one a line."""

    lines: list[str]
    errors: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedOutput:
    """What Cassandra reads of a segment before its first error, and that error; None when it finds nothing wrong."""

    lines: list[str]
    error: str | None


class CommitLogOracle:
    """The judge of one Cassandra line (`5.0`), compiled below `work_dir`."""

    def __init__(self, line: str, work_dir: Path) -> None:
        self._jars = cassandra_class_path(line)
        self._classes = work_dir / f"oracle-{line}"
        self._classes.mkdir()
        names = _HERE / ("before4" if line.startswith("3.") else "since4") / "SchemaAccess.java"
        javac = [str(java_home() / "bin" / "javac"), "-nowarn", "-d", str(self._classes), "-cp", self._class_path()]
        subprocess.run([*javac, str(_HERE / "CommitLogOracle.java"), str(names)], check=True, timeout=_TIMEOUT_S)

    def read(self, segments: Sequence[Path], node_folder: Path) -> OracleOutput:
        """Read segments with the schema of a node that was stopped: its data directory must not be in use.

        Raises OracleError when the reader does not run.
        """
        done = self._run(node_folder, *map(str, segments))
        # What else stands on stderr are the complaints of old Cassandras about the JVM.
        errors = [text for text in done.stderr.splitlines() if text.startswith(("CommitLog-", "unknown table "))]
        if done.returncode != 0 and not errors:
            raise OracleError(f"Cassandra's reader ended with exit code {done.returncode}:\n{done.stderr[-2000:]}")
        return OracleOutput(lines=done.stdout.splitlines(), errors=errors)

    def read_damaged(self, segments: Sequence[Path], node_folder: Path) -> list[DamagedOutput]:
        """Read each of many segments up to its first error, in one JVM. `segments` are below one folder."""
        names = segments[0].parents[1] / "segments.txt"
        names.write_text("".join(f"{path}\n" for path in segments))
        done = self._run(node_folder, "--damaged", str(names))
        found: list[DamagedOutput] = []
        lines: list[str] = []
        for text in done.stdout.splitlines():
            if not text.startswith('{"end": '):
                lines.append(text)
                continue
            found.append(DamagedOutput(lines=lines, error=json.loads(text)["error"]))
            lines = []
        assert len(found) == len(segments), done.stderr
        return found

    def _run(self, node_folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        (jamm,) = (jar for jar in self._jars if jar.name.startswith("jamm-"))
        command = [
            str(java_home() / "bin" / "java"),
            "-enableassertions",
            *jvm_options(node_folder, heap_mb=256, jamm=jamm),
            f"-Dlogback.configurationFile={_HERE / 'logback.xml'}",
            *("-cp", self._class_path(), "CommitLogOracle"),
            *arguments,
        ]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S)

    def _class_path(self) -> str:
        return ":".join(map(str, [self._classes, *self._jars]))
