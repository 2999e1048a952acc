"""Iceberg tables in one folder, by a Hadoop catalog for this folder: no catalog service is needed. No state.

The file system must have an atomic rename (HDFS, a local disk, ADLS). One job at a time writes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from spark_bridge.java_classes import java_class
from spark_bridge.jobs.lake_table import SMALL_FILE_BYTES, LakeTable, name_key_of
from spark_bridge.rows.sql_columns import quoted

__all__ = ["IcebergTable", "has_iceberg"]

_CATALOG: Final = "org.apache.iceberg.spark.SparkCatalog"

_PROPERTIES: Final = {
    # a few rows of a file are noted as replaced, and the file is not rewritten
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
    # each commit writes a new metadata file with the list of all snapshots
    "write.metadata.delete-after-commit.enabled": "true",
}
_COMPACTED: Final = {
    "min-file-size-bytes": f"{SMALL_FILE_BYTES}",
    "target-file-size-bytes": f"{8 * SMALL_FILE_BYTES}",
    "max-file-size-bytes": f"{1 << 50}",
    "min-input-files": "2",
    "delete-ratio-threshold": "0.3",
}
"""Options of `rewrite_data_files`: it rewrites small files, and files with many deleted rows."""

_DONE: Final = {"insert": "inserted", "update": "updated", "delete": "deleted"}


def has_iceberg(spark: SparkSession) -> bool:
    """Return True if the session's JVM has Iceberg on its class path."""
    jvm = spark.sparkContext._jvm  # noqa: SLF001  (PySpark cannot tell)
    assert jvm is not None
    return bool(java_class(jvm, "org.apache.spark.util.Utils").classIsLoadable(_CATALOG))


class IcebergTable(LakeTable):
    """One table, which need not exist yet."""

    finds_pages: ClassVar[bool] = False

    def __init__(self, spark: SparkSession, path: str) -> None:
        folder = path.rpartition("/")[0]
        self._catalog = f"cdc_{zlib.crc32(folder.encode()):08x}"
        # The table is named by its path: the catalog takes the name `history` for a metadata table of another table.
        super().__init__(spark, path, f"{self._catalog}.{quoted(path)}")
        settings = {
            "": _CATALOG,
            ".type": "hadoop",
            ".warehouse": folder,
            ".cache-enabled": "false",  # a micro-batch reads what the one before wrote by another session
        }
        for name, value in settings.items():
            spark.conf.set(f"spark.sql.catalog.{self._catalog}{name}", value)

    def _read(self) -> DataFrame | None:
        return self._spark.table(self._name) if self._spark.catalog.tableExists(self._name) else None

    def create(self, rows: DataFrame) -> None:
        """Create the table, which does not exist, with these rows, in one commit: with all of them or not at all."""
        # Not `write.spark.accept-any-schema`: with it Spark leaves the columns of a MERGE unresolved.
        writer = rows.writeTo(self._name).using("iceberg").tableProperty("format-version", "2")
        for name, value in _PROPERTIES.items():
            writer = writer.tableProperty(name, value)
        writer.create()
        self._written()

    def ensure(self, rows: DataFrame) -> None:
        """Create the table, empty, if it does not exist; add the columns, and fields of structs, that it lacks."""
        found = self.read()
        if found is None:
            self.create(rows.limit(0))
            return
        named = _lacking(found.schema, rows.schema, name_key_of(self._spark))
        lacking = [f"{name} {kind.simpleString()}" for name, kind in named]
        if lacking:
            self._spark.sql(f"ALTER TABLE {self._name} ADD COLUMNS ({', '.join(lacking)})")
            self._written()

    def append(self, rows: DataFrame, *, writer: str, epoch: int) -> None:
        """Add rows, which have a column `epoch`, once for each epoch; new columns are added to the table."""
        if self.read() is None:
            self.create(rows)
            return
        self.ensure(rows)
        found = self.read()
        assert found is not None
        if found.where(F.col("epoch") >= epoch).isEmpty():
            # Columns and fields that were dropped are null: the table still has them, and these rows do not.
            found.limit(0).unionByName(rows, allowMissingColumns=True).writeTo(self._name).append()
            self._written()

    def merge(self, source: DataFrame, on: str, *actions: str) -> Mapping[str, int]:
        """`MERGE` of `source` (s) into the table (t), which `ensure` has made ready for its columns."""
        view = f"cdc_merge_{zlib.crc32(self.path.encode()):08x}"
        source.createOrReplaceTempView(view)
        known = self._snapshot_id()
        self._spark.sql(f"MERGE INTO {self._name} t USING {view} s ON {on} {' '.join(actions)}")
        self._spark.catalog.dropTempView(view)
        self._written()
        return next((found for each in self._summaries_since(known) if (found := _merged(each))), {})

    def compact(self) -> None:
        """`rewrite_data_files`; other files stay as they are. By Java, since the SQL of Spark 3.5 has no `CALL`.

        Delete files of data files that no longer exist are removed, too. Iceberg alone would keep them while another
        data file stays. Rows do not change, so the new snapshots have the resolved timestamp of the snapshot before
        them.
        """
        table = self._table()
        found = table.currentSnapshot()
        if found is None:
            return
        jvm, session = self._java()
        actions = java_class(jvm, "org.apache.iceberg.spark.actions.SparkActions").get(session)
        rewrite = actions.rewriteDataFiles(table)
        for name, value in _COMPACTED.items():
            rewrite = rewrite.option(name, value)
        own = {name: value for name, value in found.summary().items() if name.startswith("cdc.")}
        for action in (rewrite, actions.removeDanglingDeleteFiles(table)):
            for name, value in own.items():
                action.snapshotProperty(name, value)
            action.execute()
        self._written()

    def bring_up_to_date(self) -> None:
        """Set the properties that a table of an earlier version lacks. A property that is set already stays."""
        if self.read() is None:
            return
        known = self._table().properties()
        lacking = {name: value for name, value in _PROPERTIES.items() if name not in known}
        if lacking:
            properties = ", ".join(f"'{name}' = '{value}'" for name, value in lacking.items())
            self._spark.sql(f"ALTER TABLE {self._name} SET TBLPROPERTIES ({properties})")
            self._written()

    def _summaries_since(self, known: int | None) -> Iterator[Mapping[str, str]]:
        """Summaries of this application's snapshots after the known one, the newest first."""
        table = self._table()
        found = table.currentSnapshot()
        while found is not None and found.snapshotId() != known:
            if found.summary().get("spark.app.id") == self._spark.sparkContext.applicationId:
                yield found.summary()
            parent = found.parentId()
            found = None if parent is None else table.snapshot(parent)

    def _snapshot_id(self) -> int | None:
        found = self._table().currentSnapshot()
        return None if found is None else int(found.snapshotId())

    def _table(self) -> Any:
        """Iceberg's `Table` in Java, as it is now. It gives without a Spark job what SQL needs one for."""
        jvm, session = self._java()
        return java_class(jvm, "org.apache.iceberg.spark.Spark3Util").loadIcebergTable(session, self._name)

    def _java(self) -> tuple[Any, Any]:
        """The JVM, and the session in it."""
        jvm = self._spark.sparkContext._jvm  # noqa: SLF001  (PySpark has no other way to Iceberg's classes)
        assert jvm is not None
        return jvm, self._spark._jsparkSession  # noqa: SLF001


def _merged(summary: Mapping[str, str]) -> dict[str, int]:
    """The counts of a `MERGE`: Spark 4.1 counts rows, and Iceberg stores the counts in the snapshot.

    Empty before Spark 4.1.
    """
    counted = {op: summary.get(f"spark.merge-into.num-target-rows-{done}") for op, done in _DONE.items()}
    return {op: int(rows) for op, rows in counted.items() if rows is not None}


def _lacking(
    found: StructType, wanted: StructType, name_key: Callable[[str], str], path: str = ""
) -> Iterator[tuple[str, DataType]]:
    """Columns, and fields of structs at any depth, that `wanted` has and `found` lacks, with their types."""
    there = {name_key(each.name): each.dataType for each in found}
    for each in wanted:
        name = f"{path}{quoted(each.name)}"
        if name_key(each.name) not in there:
            yield name, each.dataType
        else:
            yield from _lacking_inside(there[name_key(each.name)], each.dataType, name_key, name)


def _lacking_inside(
    found: DataType, wanted: DataType, name_key: Callable[[str], str], name: str
) -> Iterator[tuple[str, DataType]]:
    if isinstance(found, StructType) and isinstance(wanted, StructType):
        yield from _lacking(found, wanted, name_key, f"{name}.")
    elif isinstance(found, ArrayType) and isinstance(wanted, ArrayType):
        yield from _lacking_inside(found.elementType, wanted.elementType, name_key, f"{name}.element")
    elif isinstance(found, MapType) and isinstance(wanted, MapType):
        yield from _lacking_inside(found.valueType, wanted.valueType, name_key, f"{name}.value")
