"""Measures time, CPU and memory of Spark's work: of the driver, its JVM and the Python workers together.

It imports no test library and no server of ours, because it also runs in the environment of PySpark 3.5.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

import psutil
from pyspark.sql import DataFrame, SparkSession

__all__ = ["Measured", "Traffic", "scan", "timed"]

_LOOK_S: Final = 0.5
_LISTENERS_MS: Final = 600_000


def timed(stage: str, rows: int, work: Callable[[], object]) -> Measured:
    """Do the work once and measure it."""
    with Meter(stage, rows) as meter:
        work()
    assert meter.measured is not None
    return meter.measured


def scan(frame: DataFrame) -> None:
    """Compute every column of every row, and drop the rows."""
    frame.write.format("noop").mode("overwrite").save()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The figures of one measurement. `cpu_us_per_row` is of driver, JVM and workers together."""

    stage: str
    rows: int
    seconds: float
    cpu_us_per_row: float
    peak_pss_bytes: int
    load_average_1_min: float
    spark_jobs: int | None = None
    """The number of Spark jobs; None if they were not counted."""
    read_bytes: int | None = None
    read_rows: int | None = None
    written_bytes: int | None = None
    """Like `read_bytes` and `read_rows`: of files, by Spark's own metrics; None if they were not counted."""

    @property
    def line(self) -> str:
        """The figures as a text line."""
        return (
            f"{self.stage:<34}{self.rows:>11,} rows{self.seconds:>8.1f} s{self.rows / self.seconds:>10,.0f} rows/s"
            f"{self.cpu_us_per_row:>8.1f} us CPU each{self.peak_pss_bytes / 2**20:>7,.0f} MiB PSS   load {self.load_average_1_min:.1f}"
            + ("" if self.spark_jobs is None else f"{self.spark_jobs:>5} jobs")
            + ("" if self.read_bytes is None else f"{self.read_bytes / 1e6:>9.1f} MB and {self.read_rows:,} rows read")
            + ("" if self.written_bytes is None else f"{self.written_bytes / 1e6:>9.1f} MB written")
        )


class Traffic:
    """Counts what Spark's stages read from files and write to files while a `with` block runs."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.read_bytes = self.read_rows = self.written_bytes = 0

    def __enter__(self) -> Self:
        self._last = max((each.stageId() for each in self._stages()), default=-1)
        return self

    def __exit__(self, *raised: object) -> None:
        new = [each for each in self._stages() if each.stageId() > self._last]
        self.read_bytes = sum(each.inputBytes() for each in new)
        self.read_rows = sum(each.inputRecords() for each in new)
        self.written_bytes = sum(each.outputBytes() for each in new)

    def _stages(self) -> list[Any]:
        context = self._spark.sparkContext
        assert context._gateway is not None and context._jvm is not None  # noqa: SLF001  (PySpark shows the numbers of tasks only)
        # A thread of Spark fills the status store some time after a query has ended.
        context._jsc.sc().listenerBus().waitUntilEmpty(_LISTENERS_MS)  # noqa: SLF001
        store = context._jsc.sc().statusStore()  # noqa: SLF001
        quantiles = context._gateway.new_array(context._jvm.double, 0)  # noqa: SLF001
        found = store.stageList(None, False, False, quantiles, None)
        return [found.apply(at) for at in range(found.size())]


class Meter:
    """Measures CPU and memory of this process and Spark's processes below it while a `with` block runs."""

    def __init__(self, stage: str, rows: int) -> None:
        self._stage = stage
        self._rows = rows
        self._ends = threading.Event()
        self._peak = 0
        self._thread = threading.Thread(target=self._look)
        self.measured: Measured | None = None

    def __enter__(self) -> Self:
        self._cpu, self._started = _cpu_s(), time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        seconds, cpu = time.monotonic() - self._started, _cpu_s() - self._cpu
        self._ends.set()
        self._thread.join()
        self.measured = Measured(
            stage=self._stage,
            rows=self._rows,
            seconds=seconds,
            cpu_us_per_row=cpu / self._rows * 1e6,
            peak_pss_bytes=self._peak,
            load_average_1_min=os.getloadavg()[0],
        )

    def _look(self) -> None:
        while not self._ends.wait(_LOOK_S):
            self._peak = max(self._peak, sum(_pss(each) for each in _family()))


def _family() -> list[psutil.Process]:
    """This process and Spark's processes, without the servers, which belong to the sandbox's supervisor, and the
    writer."""
    me = psutil.Process()
    spark = [each for each in me.children() if "SparkSubmit" in " ".join(_command(each))]
    return [me, *spark, *[below for each in spark for below in each.children(recursive=True)]]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def _cpu_s() -> float:
    total = 0.0
    for each in _family():
        try:
            times = each.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total
