"""Iceberg tables in one folder, by a Hadoop catalog of the folder's own: no catalog service is needed. No state.

The file system must rename in one step (HDFS, a local disk, ADLS); one job at a time writes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from spark_bridge.jobs.lake_table import LakeTable, quoted

__all__ = ["IcebergTable", "has_iceberg"]

_CATALOG: Final = "org.apache.iceberg.spark.SparkCatalog"


def has_iceberg(spark: SparkSession) -> bool:
    """Whether the session's JVM has Iceberg on its class path."""
    jvm = spark.sparkContext._jvm  # noqa: SLF001  (PySpark cannot tell)
    assert jvm is not None
    return bool(jvm.org.apache.spark.util.Utils.classIsLoadable(_CATALOG))


class IcebergTable(LakeTable):
    """One table; it need not exist yet."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        folder = path.rpartition("/")[0]
        self._catalog = f"cdc_{zlib.crc32(folder.encode()):08x}"
        # by its path: the catalog takes a table `history` for a view of another table's snapshots
        super().__init__(spark, path, f"{self._catalog}.{quoted(path)}")
        settings = {
            "": _CATALOG,
            ".type": "hadoop",
            ".warehouse": folder,
            ".cache-enabled": "false",  # a micro-batch writes by one session what the next reads by another
        }
        for name, value in settings.items():
            spark.conf.set(f"spark.sql.catalog.{self._catalog}{name}", value)

    def _read(self) -> DataFrame | None:
        return self._spark.table(self._name) if self._spark.catalog.tableExists(self._name) else None

    def create(self, rows: DataFrame) -> None:
        """Make the table, which does not exist, with these rows, in one commit: it is there with all of them or not at all."""
        # Not `write.spark.accept-any-schema`: with it Spark leaves the columns of a MERGE unresolved.
        rows.writeTo(self._name).using("iceberg").tableProperty("format-version", "2").create()
        self._written()

    def ensure(self, rows: DataFrame) -> None:
        """Create the table, empty, if it does not exist; add the columns, and fields of structs, that it lacks."""
        found = self.read()
        if found is None:
            self.create(rows.limit(0))
            return
        lacking = [f"{name} {kind.simpleString()}" for name, kind in _lacking(found.schema, rows.schema)]
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
            # with null for what the table has and these rows lack, at any depth: columns that were dropped
            found.limit(0).unionByName(rows, allowMissingColumns=True).writeTo(self._name).append()
            self._written()

    def merge(self, source: DataFrame, on: str, *actions: str) -> Mapping[str, int]:
        """`MERGE` of `source` (s) into the table (t), which `ensure` has made ready for its columns."""
        view = f"cdc_merge_{zlib.crc32(self.path.encode()):08x}"
        source.createOrReplaceTempView(view)
        self._spark.sql(f"MERGE INTO {self._name} t USING {view} s ON {on} {' '.join(actions)}")
        self._spark.catalog.dropTempView(view)
        self._written()
        return {}

    def compact(self) -> None:
        """`rewrite_data_files`: many small files become few."""
        path = quoted(self.path).replace("'", "\\'")
        self._spark.sql(f"CALL {self._catalog}.system.rewrite_data_files(table => '{path}')")
        self._written()


def _lacking(found: StructType, wanted: StructType, path: str = "") -> Iterator[tuple[str, DataType]]:
    """Columns, and fields of structs at any depth, that are wanted and not there, with their types."""
    there = {each.name: each.dataType for each in found}
    for each in wanted:
        name = f"{path}{quoted(each.name)}"
        if each.name not in there:
            yield name, each.dataType
        else:
            yield from _lacking_inside(there[each.name], each.dataType, name)


def _lacking_inside(found: DataType, wanted: DataType, name: str) -> Iterator[tuple[str, DataType]]:
    if isinstance(found, StructType) and isinstance(wanted, StructType):
        yield from _lacking(found, wanted, f"{name}.")
    elif isinstance(found, ArrayType) and isinstance(wanted, ArrayType):
        yield from _lacking_inside(found.elementType, wanted.elementType, f"{name}.element")
    elif isinstance(found, MapType) and isinstance(wanted, MapType):
        yield from _lacking_inside(found.valueType, wanted.valueType, f"{name}.value")
