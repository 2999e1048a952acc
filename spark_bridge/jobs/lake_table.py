"""The operations of the jobs on a lakehouse table: Delta Lake (default) or Apache Iceberg."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar, Final, Literal

from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "LISTED_AT_ONCE",
    "MERGE_OP",
    "SMALL_FILE_BYTES",
    "LakeTable",
    "TableFormat",
    "is_listed",
    "key_is_listed",
    "name_key_of",
    "quoted",
    "ranged",
    "same_key",
    "update_and_insert",
]

# More values in a condition would take longer to plan than they save.
_MOST_LISTED: Final = 5_000

MERGE_OP: Final = "_cdc_op"
"""The column of a `MERGE`'s source that says what becomes of a row. A table may have a column `op`."""

SMALL_FILE_BYTES: Final = 16 << 20
"""Only smaller files are compacted. Larger ones would be written again each time."""

LISTED_AT_ONCE: Final = 128
"""Spark makes a chain of comparisons of a list, to find the pages of a file that may have one of its values. Parquet descends the
chain by recursion: a thousand values overflow the stack."""

TableFormat = Literal["delta", "iceberg"]


class LakeTable(ABC):
    """One table; it need not exist yet. Spark's own errors come out of every method."""

    finds_pages: ClassVar[bool]
    """Whether keys are looked up by the statistics of pages. Else a file's rows are read where it may have one of the keys."""

    def __init__(self, spark: SparkSession, path: str, name: str) -> None:
        self._spark = spark
        self.path = path
        # as Spark SQL takes it
        self._name = name
        self._is_read = False
        self._found: DataFrame | None = None

    def read(self) -> DataFrame | None:
        """The table; None when it does not exist. What others write after the first call is seen by a new object only."""
        if not self._is_read:
            self._found, self._is_read = self._read(), True
        return self._found

    def size_bytes(self) -> int:
        """Of its files, by the table's own log; 0 when it does not exist."""
        found = self.read()
        # what Spark's planner goes by, which PySpark does not show
        return 0 if found is None else int(found._jdf.queryExecution().analyzed().stats().sizeInBytes())  # noqa: SLF001

    def _written(self) -> None:
        """The table is another one now: every method that writes says so."""
        self._is_read, self._found = False, None

    @abstractmethod
    def _read(self) -> DataFrame | None: ...

    @abstractmethod
    def create(self, rows: DataFrame) -> None:
        """Make the table, which does not exist, with these rows, in one commit: it is there with all of them or not at all."""

    @abstractmethod
    def ensure(self, rows: DataFrame) -> None:
        """Create the table, empty, if it does not exist; add the columns of `rows` that it lacks."""

    @abstractmethod
    def append(self, rows: DataFrame, *, writer: str, epoch: int) -> None:
        """Add rows, once for each `epoch` of a writer; new columns are added to the table."""

    @abstractmethod
    def merge(self, source: DataFrame, on: str, *actions: str) -> Mapping[str, int]:
        """`MERGE` of `source` (s) into the table (t); fields that its structs lack are added.

        How many rows it inserted, updated and deleted (`insert`, `update`, `delete`). On PySpark 3.5, Iceberg counts nothing.
        """

    @abstractmethod
    def compact(self) -> None:
        """Files that are smaller than SMALL_FILE_BYTES become few."""

    def bring_up_to_date(self) -> None:  # noqa: B027  (most formats have nothing to do)
        """Give a table of an earlier version what new ones have, where that takes no rewriting."""

    def drop_columns(self, names: Sequence[str]) -> None:
        """`ALTER TABLE DROP COLUMNS`."""
        if names:
            self._spark.sql(f"ALTER TABLE {self._name} DROP COLUMNS ({', '.join(map(quoted, names))})")
            self._written()

    def rename_column(self, old: str, new: str) -> None:
        """`ALTER TABLE RENAME COLUMN`."""
        self._spark.sql(f"ALTER TABLE {self._name} RENAME COLUMN {quoted(old)} TO {quoted(new)}")
        self._written()

    def delete(self, condition: str) -> None:
        """`DELETE FROM`."""
        self._spark.sql(f"DELETE FROM {self._name} WHERE {condition}")
        self._written()

    def update(self, assignments: str, condition: str) -> None:
        """`UPDATE`."""
        self._spark.sql(f"UPDATE {self._name} SET {assignments} WHERE {condition}")
        self._written()


def quoted(name: str) -> str:
    """A column or table name as Spark SQL takes it."""
    return "`" + name.replace("`", "``") + "`"


def name_key_of(spark: SparkSession) -> Callable[[str], str]:
    """A function that gives the same key for names that Spark takes for one column: it ignores case by default."""
    return str if str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true" else str.lower


def ranged(rows: DataFrame, column: str) -> DataFrame:
    """So that each file has a range of the column's values, sorted, and a value is later looked up in few pages."""
    return rows.repartitionByRange(column).sortWithinPartitions(column)


def same_key(column: str, source: DataFrame, *, is_large: bool) -> str:
    """The condition of a `MERGE` by one column of text. Of a large table, it names the source's values if they are few."""
    values = [row[0] for row in source.select(column).limit(_MOST_LISTED + 1).collect()] if is_large else []
    return key_is_listed(column, values, is_sparse=False)


def key_is_listed(column: str, values: Sequence[str], *, is_sparse: bool) -> str:
    """The condition of a `MERGE` by one column of text, which names the source's values where there are some, and few.

    With deletion vectors a table's other rows are then only read: what is not listed goes into no join.
    """
    same = f"t.{quoted(column)} = s.{quoted(column)}"
    listed = is_listed(f"t.{quoted(column)}", values, is_sparse=is_sparse)
    return same if listed is None else f"{same} AND {listed}"


def is_listed(column: str, values: Collection[str], *, is_sparse: bool) -> str | None:
    """The condition that a column of text has one of these values; None where there are none, or too many.

    `is_sparse`: few of the table's pages have any of them. Then Spark is to find these pages, by lists that are short enough.
    """
    if not values or len(values) > _MOST_LISTED:
        return None
    ordered, size = sorted(values), LISTED_AT_ONCE if is_sparse else _MOST_LISTED
    parts = [ordered[at : at + size] for at in range(0, len(ordered), size)]
    lists = [f"{column} IN ({', '.join(map(_literal, part))})" for part in parts]
    return f"({' OR '.join(lists)})"


def _literal(text: str) -> str:
    """A text as Spark SQL takes it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def update_and_insert(names: Sequence[str]) -> tuple[str, str]:
    """The parts `UPDATE SET ...` and `INSERT (...) VALUES (...)` for columns of the source."""
    columns = [quoted(each) for each in names]
    assignments = ", ".join(f"t.{each} = s.{each}" for each in columns)
    return (
        f"UPDATE SET {assignments}",
        f"INSERT ({', '.join(columns)}) VALUES ({', '.join(f's.{each}' for each in columns)})",
    )
