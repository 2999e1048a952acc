"""A small text that a job keeps in a folder. It is replaced completely or not at all, on any file system that Spark
can write.

Each state is a separate file, named by its number, that appears by a rename. The newest file counts. This needs no
Spark job; a table of one row would need several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from pyspark.sql import SparkSession

from spark_bridge.errors import DamagedStateError, StateFileError
from spark_bridge.reading.folders import Folder, HadoopFolder

__all__ = ["StateFile", "newest_state", "understood"]

_State = TypeVar("_State")
_NOT_UNDERSTOOD: Final = (ValueError, KeyError, TypeError, AttributeError, IndexError)

_KEPT = 2
"""How many states are kept: the newest, and one that a slow reader may have chosen just before."""


class StateFile:
    """The newest state in a folder, which need not exist. One writer at a time. Raises StateFileError."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._place = folder
        try:
            self._folder = HadoopFolder(spark, folder)
        except OSError as error:
            raise StateFileError(folder, str(error)) from None

    def read(self) -> str | None:
        """The newest state; None before the first."""
        try:
            return newest_state(self._folder)
        except OSError as error:
            raise StateFileError(self._place, str(error)) from None

    def write(self, text: str) -> None:
        """Make this the newest state."""
        try:
            numbers = _numbers(self._folder)
            self._folder.put(f"{numbers[-1] + 1 if numbers else 1}.json", text)
            for number in numbers[: -(_KEPT - 1)]:
                self._folder.delete(f"{number}.json")
        except OSError as error:
            raise StateFileError(self._place, str(error)) from None


def newest_state(folder: Folder) -> str | None:
    """The content of a `StateFile` in this folder. Raises OSError.

    If the newest file disappears before it is opened, a writer has written newer ones, and the newest of them is read.
    """
    numbers = _numbers(folder)
    while numbers:
        try:
            return folder.text(f"{numbers[-1]}.json")
        except OSError:
            chosen, numbers = numbers[-1], _numbers(folder)
            if numbers and numbers[-1] == chosen:
                raise
    return None


def understood(folder: str, stored: str, parse: Callable[[str], _State], remedy: str) -> _State:
    """The newest state of a folder, parsed by `parse`. Raises DamagedStateError with the remedy if `parse` fails."""
    try:
        return parse(stored)
    except _NOT_UNDERSTOOD as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        reason = f"the newest file is damaged, or a later version wrote it ({why}); {remedy}"
        raise DamagedStateError(folder, reason) from error


def _numbers(folder: Folder) -> list[int]:
    names = [name.removesuffix(".json") for name in folder.names()]
    return sorted(int(name) for name in names if name.isdecimal())
