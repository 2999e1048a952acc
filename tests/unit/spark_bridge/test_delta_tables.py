"""How Delta tables handle errors of Delta; the session only records statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import cast

import pytest
from py4j.java_gateway import JavaPackage
from pyspark.sql import DataFrame, SparkSession

from spark_bridge.jobs.delta_tables import DeltaTable
from spark_bridge.spark_line import LINE

_DELTA = "io.delta.tables.DeltaTable"


class Session:
    """A session with one table of these columns. `sent` has the settings of each statement, by its first word.

    Its JVM has no Delta.
    """

    def __init__(self, *columns: str) -> None:
        self.settings: dict[str, str] = {}
        self.sent: dict[str, Mapping[str, str]] = {}
        self.conf = self.read = self.catalog = self.sparkContext = self
        self._jvm, self._jsparkSession = SimpleNamespace(**{_DELTA: JavaPackage(_DELTA, None)}), None
        self.columns = columns

    def format(self, name: str) -> Session:
        return self

    def load(self, path: str) -> Session:
        return self

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value

    def sql(self, statement: str) -> Session:
        self.sent[statement.split(maxsplit=1)[0]] = dict(self.settings)
        return self

    def collect(self) -> Sequence[SimpleNamespace]:
        return [SimpleNamespace(num_inserted_rows=0, num_updated_rows=0, num_deleted_rows=0)]

    def createOrReplaceTempView(self, name: str) -> None:  # noqa: N802  (PySpark's name)
        pass

    def dropTempView(self, name: str) -> None:  # noqa: N802  (PySpark's name)
        pass


@pytest.mark.parametrize(
    ("column", "avoids"),
    [("filepath", True), ("filePath", True), ("deletionvectorid", True), ("paths", False), ("path", LINE == "3.5")],
)
def test_a_table_with_a_column_that_delta_adds_itself_has_no_deletion_vectors(column: str, avoids: bool) -> None:
    """Delta ends each such statement with AMBIGUOUS_REFERENCE; 3.3.2 for Spark 3.5 also does so for a column `path`."""
    for kind in ("MERGE", "DELETE", "UPDATE"):
        session = Session("id", column)
        table = DeltaTable(cast(SparkSession, session), "/lake/t/rows")
        if kind == "MERGE":
            table.merge(cast(DataFrame, session), "t.id = s.id", "WHEN MATCHED THEN DELETE")
        elif kind == "DELETE":
            table.delete("id = 1")
        else:
            table.update("id = 2", "id = 1")
        setting = session.sent[kind].get(f"spark.databricks.delta.{kind.lower()}.deletionVectors.persistent")
        assert setting == ("false" if avoids else None)


def test_without_the_jar_of_delta_spark_says_what_is_missing() -> None:
    """Py4J takes the name of a missing class for a package, whose methods cannot be called: it was a traceback."""
    session = Session("id")
    assert DeltaTable(cast(SparkSession, session), "/lake/t/rows").read() is cast(DataFrame, session)
