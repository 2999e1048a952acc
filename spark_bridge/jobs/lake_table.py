"""The operations of the jobs on a lakehouse table: Delta Lake (default) or Apache Iceberg."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar, Final, Literal

from pyspark.sql import DataFrame, SparkSession

from spark_bridge.rows.sql_columns import quoted

__all__ = [
    "LISTED_AT_ONCE",
    "MERGE_OP",
    "SMALL_FILE_BYTES",
    "LakeTable",
    "TableFormat",
    "is_listed",
    "key_is_listed",
    "name_key_of",
    "ranged",
    "same_key",
    "update_and_insert",
]

# With more values, planning a condition takes longer than the condition saves.
_MOST_LISTED: Final = 5_000

MERGE_OP: Final = "_cdc_op"
"""The column of a `MERGE`'s source with the action for a row. It is not `op`: a table may have such a column."""

SMALL_FILE_BYTES: Final = 16 << 20
"""Only smaller files are compacted: larger ones would be written again each time."""

LISTED_AT_ONCE: Final = 128
"""The limit for a list of values by which pages are found. To find a file's pages that may have one of the values,
Spark makes a chain of comparisons. Parquet walks it by recursion: a thousand values overflow the stack."""

TableFormat = Literal["delta", "iceberg"]


class LakeTable(ABC):
    """One table, which need not exist yet. Every method may raise Spark's errors."""

    finds_pages: ClassVar[bool]
    """True if keys are looked up by the statistics of pages. Else a file that may have one of the keys is read
    whole."""

    def __init__(self, spark: SparkSession, path: str, name: str) -> None:
        self._spark = spark
        self.path = path
        # for Spark SQL
        self._name = name
        self._is_read = False
        self._found: DataFrame | None = None

    def read(self) -> DataFrame | None:
        """The table; None when it does not exist. Only a new object sees what others write after the first call."""
        if not self._is_read:
            self._found, self._is_read = self._read(), True
        return self._found

    def size_bytes(self) -> int:
        """The size of the table's files, by its own log; 0 when it does not exist."""
        found = self.read()
        # the estimate of Spark's planner, which PySpark does not show
        return 0 if found is None else int(found._jdf.queryExecution().analyzed().stats().sizeInBytes())  # noqa: SLF001

    def _written(self) -> None:
        """Forget the table that was read. Every method that writes calls this."""
        self._is_read, self._found = False, None

    @abstractmethod
    def _read(self) -> DataFrame | None: ...

    @abstractmethod
    def create(self, rows: DataFrame) -> None:
        """Create the table, which does not exist, with these rows, in one commit: with all of them or not at all."""

    @abstractmethod
    def ensure(self, rows: DataFrame) -> None:
        """Create the table, empty, if it does not exist; add the columns of `rows` that it lacks."""

    @abstractmethod
    def append(self, rows: DataFrame, *, writer: str, epoch: int) -> None:
        """Add rows, once for each `epoch` of a writer; new columns are added to the table."""

    @abstractmethod
    def merge(self, source: DataFrame, on: str, *actions: str) -> Mapping[str, int]:
        """`MERGE` of `source` (s) into the table (t); fields that its structs lack are added.

        Return the numbers of inserted, updated and deleted rows (`insert`, `update`, `delete`). Iceberg has them only
        with Spark 4.1 or later.
        """

    @abstractmethod
    def compact(self) -> None:
        """Merge files that are smaller than SMALL_FILE_BYTES."""

    def bring_up_to_date(self) -> None:  # noqa: B027  (most formats have nothing to do)
        """Give a table of an earlier version the settings of new ones, if no data must be rewritten for that."""

    def drop_columns(self, names: Sequence[str]) -> None:
        """`ALTER TABLE DROP COLUMNS`."""
        if names:
            self._spark.sql(f"ALTER TABLE {self._name} DROP COLUMNS ({', '.join(map(quoted, names))})")
            self._written()

    def rename_column(self, old: str, new: str, path: str | None = None) -> None:
        """`ALTER TABLE RENAME COLUMN`: of a column, or of a field of the struct at `path` inside a column."""
        place = quoted(old) if path is None else f"{path}.{quoted(old)}"
        self._spark.sql(f"ALTER TABLE {self._name} RENAME COLUMN {place} TO {quoted(new)}")
        self._written()

    def delete(self, condition: str) -> None:
        """`DELETE FROM`."""
        self._spark.sql(f"DELETE FROM {self._name} WHERE {condition}")
        self._written()

    def update(self, assignments: str, condition: str) -> None:
        """`UPDATE`."""
        self._spark.sql(f"UPDATE {self._name} SET {assignments} WHERE {condition}")
        self._written()


def name_key_of(spark: SparkSession) -> Callable[[str], str]:
    """A function that gives names the same key if Spark takes them for one column. By default Spark ignores case."""
    return str if str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true" else str.lower


def ranged(rows: DataFrame, column: str) -> DataFrame:
    """The rows in sorted ranges of the column, one for each file: so a later look-up of a value reads few pages."""
    return rows.repartitionByRange(column).sortWithinPartitions(column)


def same_key(column: str, source: DataFrame, *, is_large: bool) -> str:
    """The condition of a `MERGE` by one column of text.

    For a large table it lists the source's values, if they are few.
    """
    values = [row[0] for row in source.select(column).limit(_MOST_LISTED + 1).collect()] if is_large else []
    return key_is_listed(column, values, is_sparse=False)


def key_is_listed(column: str, values: Sequence[str], *, is_sparse: bool) -> str:
    """The condition of a `MERGE` by one column of text. It lists `values`, if there are any and they are few.

    With deletion vectors, rows whose value is not listed are then read, but not joined.
    """
    same = f"t.{quoted(column)} = s.{quoted(column)}"
    listed = is_listed(f"t.{quoted(column)}", values, is_sparse=is_sparse)
    return same if listed is None else f"{same} AND {listed}"


def is_listed(column: str, values: Collection[str], *, is_sparse: bool) -> str | None:
    """The condition that a column of text has one of these values; None if there are none, or too many.

    `is_sparse`: few of the table's pages have one of the values, so the lists are short enough for Spark to find them.
    For the session of a micro-batch (`spark_bridge.jobs.batch_session.pin_session`).
    """
    if not values or len(values) > _MOST_LISTED:
        return None
    ordered, size = sorted(values), LISTED_AT_ONCE if is_sparse else _MOST_LISTED
    parts = [ordered[at : at + size] for at in range(0, len(ordered), size)]
    lists = [f"{column} IN ({', '.join(map(_listed_literal, part))})" for part in parts]
    return f"({' OR '.join(lists)})"


def _listed_literal(text: str) -> str:
    """A text as a literal. Only a literal, and no expression, is compared with the statistics of files and pages."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def update_and_insert(names: Sequence[str]) -> tuple[str, str]:
    """The parts `UPDATE SET ...` and `INSERT (...) VALUES (...)` for columns of the source."""
    columns = [quoted(each) for each in names]
    assignments = ", ".join(f"t.{each} = s.{each}" for each in columns)
    return (
        f"UPDATE SET {assignments}",
        f"INSERT ({', '.join(columns)}) VALUES ({', '.join(f's.{each}' for each in columns)})",
    )
