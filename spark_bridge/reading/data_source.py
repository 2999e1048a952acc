"""The Python Data Source `cassandra_cdc`: a data topic as a batch or a streaming DataFrame of raw columns.

Spark starts a process that makes this object and asks for its schema, and later the processes that plan and read. So
the readers, and the clients that they need, are imported where they are made.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from spark_bridge.reading.raw_columns import RAW_SCHEMA
from spark_bridge.spark_line import HAS_ADMISSION_CONTROL
from spark_bridge.topics.options import BridgeOptions, refuse_catalog_table

__all__ = ["CassandraCdcDataSource"]


class CassandraCdcDataSource(DataSource):
    """`spark.read.format("cassandra_cdc")` and `spark.readStream.format("cassandra_cdc")`; see docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "cassandra_cdc"

    def schema(self) -> StructType:
        """The raw contract, for any topic. `load()` calls this, so wrong options are found here. Raises ConfigError."""
        refuse_catalog_table(self.name(), self.options)
        BridgeOptions.from_mapping(self.options)
        return RAW_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch: from the starting to the ending offsets, by default to the end at planning time."""
        from spark_bridge.reading.source_readers import BatchReader

        return BatchReader(BridgeOptions.from_mapping(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """The reader of a stream: from the starting offsets, or those of the checkpoint."""
        options = BridgeOptions.from_mapping(self.options)
        if HAS_ADMISSION_CONTROL:
            from spark_bridge.reading.admission_control import AdmittedStreamReader

            return AdmittedStreamReader(options)
        from spark_bridge.reading.source_readers import StreamReader

        return StreamReader(options)
