"""Updates a mirror of the ticks again and again while faults strike, and checks the mirror's tables after each run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdc.commands.spark_session import open_session
from schemas.errors import CdcError
from spark_bridge.jobs.mirror import mirror
from spark_bridge.jobs.resolved import mirror_resolved_ms
from tests.fault_kit.ticks import Ticks
from tests.servers.background import Background

__all__ = ["MirrorChecks", "MirrorReport"]

_PAUSE_S: Final = 1.0


@dataclass(slots=True, kw_only=True)
class MirrorReport:
    """`wrong` has a line for each value that was missing after a run. `sensitive`: how many checks would have found the
    run's resolved timestamp wrong if the table had been as the run before left it. `failed`: how many runs ended with an
    error; the next run repeats them."""

    checks: int = 0
    sensitive: int = 0
    failed: int = 0
    wrong: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The report as one line."""
        return (
            f"mirror: {self.checks} checks, {len(self.wrong)} wrong, {self.sensitive} would have found a"
            f" timestamp that comes a run too early; {self.failed} runs failed and were repeated"
        )


class MirrorChecks(Background):
    """Runs the mirror and its checks in a thread. Use it in a `with` block."""

    def __init__(self, options: dict[str, str], target: Path, ticks: Ticks, say: Callable[[str], None]) -> None:
        super().__init__("mirror")
        self._options: Final = options
        self._target: Final = str(target)
        self._ticks: Final = ticks
        self._say: Final = say
        self._values_before: dict[int, int] | None = None
        """What the table had after the run before; None before the first check."""
        self.report: Final = MirrorReport()

    def _run(self) -> None:
        session = open_session((), None)
        try:
            while not self._stop.wait(_PAUSE_S):
                try:
                    mirror(session, self._options, self._target)
                    self._check(session)
                except (CdcError, PySparkException) as error:
                    self.report.failed += 1
                    self._say(f"mirror: {str(error).splitlines()[0][:300]}")
        finally:
            session.stop()

    def _check(self, session: SparkSession) -> None:
        """Check that the table has every value that was acknowledged before the mirror's resolved timestamp."""
        resolved_ms = mirror_resolved_ms(self._target)
        if resolved_ms is None:
            return
        rows = session.read.format("delta").load(f"{self._target}/rows").select("pk", "tick").collect()
        values = {row["pk"]: row["tick"] for row in rows}
        self.report.checks += 1
        answered = self._ticks.last_before(resolved_ms)
        for row, value in answered.items():
            if values.get(row, 0) < value:
                self.report.wrong.append(
                    f"mirror, check {self.report.checks}: resolved {resolved_ms}: row {row} was answered as {value}, and the"
                    f" mirror has {values.get(row)}"
                )
        # A mirror runs for seconds, so its table is always seconds ahead of its timestamp. If a run stored its timestamp
        # too early, the timestamp would stand beside the table of the run before.
        before, self._values_before = self._values_before, values
        if before is not None:
            self.report.sensitive += any(before.get(row, 0) < value for row, value in answered.items())
        if self.report.checks % 10 == 0:
            self._say(self.report.text())
