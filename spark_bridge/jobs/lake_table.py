"""What the jobs ask of a table in the lakehouse: Delta Lake (default) or Apache Iceberg."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from pyspark.sql import DataFrame

__all__ = ["LakeTable", "TableFormat", "quoted", "update_and_insert"]

TableFormat = Literal["delta", "iceberg"]


class LakeTable(Protocol):
    """One table; it need not exist yet. Spark's own errors come out of every method."""

    path: str

    def read(self) -> DataFrame | None:
        """The table now; None when it does not exist."""

    def ensure(self, rows: DataFrame) -> None:
        """Create the table, empty, if it does not exist; add the columns of `rows` that it lacks."""

    def append(self, rows: DataFrame, *, writer: str, epoch: int) -> None:
        """Add rows, once for each `epoch` of a writer; new columns are added to the table."""

    def drop_columns(self, names: Sequence[str]) -> None:
        """`ALTER TABLE DROP COLUMNS`."""

    def rename_column(self, old: str, new: str) -> None:
        """`ALTER TABLE RENAME COLUMN`."""

    def merge(self, source: DataFrame, on: str, *actions: str) -> None:
        """`MERGE` of `source` (s) into the table (t); fields that its structs lack are added."""

    def delete(self, condition: str) -> None:
        """`DELETE FROM`."""

    def compact(self) -> None:
        """Many small files become few."""


def quoted(name: str) -> str:
    """A column or table name as Spark SQL takes it."""
    return "`" + name.replace("`", "``") + "`"


def update_and_insert(names: Sequence[str]) -> tuple[str, str]:
    """The parts `UPDATE SET ...` and `INSERT (...) VALUES (...)` for columns of the source."""
    columns = [quoted(each) for each in names]
    assignments = ", ".join(f"t.{each} = s.{each}" for each in columns)
    return (
        f"UPDATE SET {assignments}",
        f"INSERT ({', '.join(columns)}) VALUES ({', '.join(f's.{each}' for each in columns)})",
    )
