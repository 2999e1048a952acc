"""A small text that a job keeps in a folder: replaced whole or not at all, on any file system that Spark can write.

Each state is a file of its own, named by its number, that appears by a rename (Hadoop's FileSystem); the newest one
counts. That costs no Spark job, where a table of one row would cost several.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

__all__ = ["StateFile"]

_KEPT = 2
"""The newest, and one that a slow reader may have chosen just before."""


class StateFile:
    """The newest state in a folder, which need not exist. One writer at a time. Raises what py4j raises."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        jvm, session = spark.sparkContext._jvm, spark._jsparkSession  # noqa: SLF001  (PySpark has no file system of its own)
        assert jvm is not None
        self._path = jvm.org.apache.hadoop.fs.Path
        self._folder = self._path(folder)
        self._files = self._folder.getFileSystem(session.sessionState().newHadoopConf())
        self._lines = jvm.org.apache.commons.io.IOUtils

    def read(self) -> str | None:
        """The newest state; None before the first."""
        numbers = self._numbers()
        if not numbers:
            return None
        stream = self._files.open(self._file(numbers[-1]))
        try:
            return str(self._lines.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, text: str) -> None:
        """Make this the newest state."""
        numbers = self._numbers()
        unfinished = self._path(self._folder, "_unfinished")
        stream = self._files.create(unfinished, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        target = self._file(numbers[-1] + 1 if numbers else 1)
        if not self._files.rename(unfinished, target):
            raise OSError(f"{self._folder.toString()}: no new state can be put there")
        for number in numbers[: -(_KEPT - 1)]:
            self._files.delete(self._file(number), False)

    def _numbers(self) -> list[int]:
        if not self._files.exists(self._folder):
            return []
        names = [str(each.getPath().getName()) for each in self._files.listStatus(self._folder)]
        return sorted(int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdigit())

    def _file(self, number: int) -> object:
        return self._path(self._folder, f"{number}.json")
