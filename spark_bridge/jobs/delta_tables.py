"""Delta tables by path: created from a DataFrame's schema, merged into, altered to follow a schema. No state.

Columns are mapped by name (`delta.columnMapping.mode`), so that columns of any name fit and can be dropped or renamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from schemas.errors import ConfigError
from spark_bridge.java_classes import is_class, java_class
from spark_bridge.jobs.lake_table import LakeTable
from spark_bridge.rows.sql_columns import quoted
from spark_bridge.spark_line import HAS_DATA_SOURCES, error_condition, line_jars

__all__ = ["DeltaTable"]

_PROPERTIES: Final = {
    "delta.columnMapping.mode": "name",
    # with these, a merge does not rewrite a file for a few of its rows
    "delta.enableDeletionVectors": "true",
}


_OWN_NAMES: Final = frozenset(
    ("filepath", "rowindexcol", "deletionvectorid", "dvfilepath" if HAS_DATA_SOURCES else "path")
)
"""Names of the columns that Delta adds to find the rows for deletion vectors, in lower case."""


class DeltaTable(LakeTable):
    """One table, which need not exist yet."""

    finds_pages: ClassVar[bool] = True

    def __init__(self, spark: SparkSession, path: str) -> None:
        super().__init__(spark, path, f"delta.{quoted(path)}")

    def _read(self) -> DataFrame | None:
        jvm, session = self._spark.sparkContext._jvm, self._spark._jsparkSession  # noqa: SLF001  (PySpark cannot tell)
        # Asked first: Spark makes a text of the failure to load, with all its causes, which takes longer than the rest.
        delta = java_class(jvm, "io.delta.tables.DeltaTable")
        # Without Delta's jar this is no class, and `load` fails.
        if is_class(delta) and not delta.isDeltaTable(session, self.path):
            return None
        try:
            return self._spark.read.format("delta").load(self.path)
        except (AnalysisException, Py4JJavaError) as error:
            if not is_class(delta):
                raise ConfigError.of(
                    "format",
                    f"{self.path} is to be read as a Delta table, and this session has no Delta Lake: give it {line_jars().delta} "
                    "(--jars with the file, spark-submit --packages, session_builder(delta=True)); a session that runs gets no "
                    "more jars, so stop it first",
                ) from None
            if isinstance(error, Py4JJavaError):
                raise
            if error_condition(error) in ("DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "PATH_NOT_FOUND"):
                return None
            raise

    def ensure(self, rows: DataFrame) -> None:
        """Create the table, empty, if it does not exist; add the columns of `rows` that it lacks."""
        found = self.read()
        if found is None:
            self.create(rows.limit(0))
            return
        lacking = [each for each in rows.schema.fields if each.name not in found.columns]
        if lacking:
            columns = ", ".join(f"{quoted(each.name)} {each.dataType.simpleString()}" for each in lacking)
            self._spark.sql(f"ALTER TABLE {self._name} ADD COLUMNS ({columns})")
            self._written()

    def create(self, rows: DataFrame) -> None:
        """Create the table, which does not exist, with these rows, in one commit: with all of them or not at all."""
        rows.write.format("delta").options(**_PROPERTIES).save(self.path)
        self._written()

    def append(self, rows: DataFrame, *, writer: str, epoch: int) -> None:
        """Add rows, once for each `epoch` of a writer; new columns are added to the table."""
        ready = rows.write.format("delta").mode("append").option("mergeSchema", "true")
        ready.option("txnAppId", writer).option("txnVersion", epoch).save(self.path)
        self._written()

    def merge(self, source: DataFrame, on: str, *actions: str) -> Mapping[str, int]:
        """`MERGE` of `source` (s) into the table (t); fields that its structs lack are added."""
        self._avoid_vectors()
        view = f"cdc_merge_{abs(hash(self.path))}"
        source.createOrReplaceTempView(view)
        if HAS_DATA_SOURCES:
            merge = "MERGE WITH SCHEMA EVOLUTION INTO"
        else:
            merge = "MERGE INTO"  # Spark 3.5 has no SQL for schema evolution, but Delta has a setting
            self._spark.conf.set("spark.databricks.delta.schema.autoMerge.enabled", "true")
        (done,) = self._spark.sql(f"{merge} {self._name} t USING {view} s ON {on} {' '.join(actions)}").collect()
        self._spark.catalog.dropTempView(view)
        self._written()
        return {"insert": done.num_inserted_rows, "update": done.num_updated_rows, "delete": done.num_deleted_rows}

    def rename_column(self, old: str, new: str, path: str | None = None) -> None:
        """See `LakeTable`. A change log has no mapping of columns until a field in it is renamed."""
        mode = "delta.columnMapping.mode"
        known = {row.key: row.value for row in self._spark.sql(f"SHOW TBLPROPERTIES {self._name}").collect()}
        if known.get(mode) != _PROPERTIES[mode]:
            self._spark.sql(f"ALTER TABLE {self._name} SET TBLPROPERTIES ('{mode}' = '{_PROPERTIES[mode]}')")
        super().rename_column(old, new, path)

    def delete(self, condition: str) -> None:
        """`DELETE FROM`."""
        self._avoid_vectors()
        super().delete(condition)

    def update(self, assignments: str, condition: str) -> None:
        """`UPDATE`."""
        self._avoid_vectors()
        super().update(assignments, condition)

    def _avoid_vectors(self) -> None:
        """Switch deletion vectors off for a table with a column of `_OWN_NAMES`: Delta fails to make them for it."""
        found = self.read()
        if found is None or _OWN_NAMES.isdisjoint(each.lower() for each in found.columns):
            return
        for each in ("merge", "delete", "update"):
            self._spark.conf.set(f"spark.databricks.delta.{each}.deletionVectors.persistent", "false")

    def compact(self) -> None:
        """`OPTIMIZE`, with the settings that `fit_session` gives the session."""
        self._spark.sql(f"OPTIMIZE {self._name}")
        self._written()
