"""The Spark session of a benchmark. It imports no server of ours, because it also runs in PySpark 3.5's environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from spark_bridge import session_builder

__all__ = ["bench_session"]

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
}


@contextmanager
def bench_session(jars: Sequence[Path], folder: Path, *, cores: int = 2, delta: bool = False) -> Iterator[SparkSession]:
    """A session on this machine, which logs nothing. `folder`: for Spark's temporary files."""
    builder = session_builder(jars, delta=delta).master(f"local[{cores}]").config("spark.local.dir", str(folder))
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
