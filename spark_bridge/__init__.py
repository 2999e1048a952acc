"""A data topic in Spark: raw rows by the data source `cassandra_cdc`, typed rows, the current table.

spark_bridge.register(spark)
spark_bridge.current_table(spark, {"serviceUrl": ..., "adminUrl": ..., "topic": ...}).show()
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from spark_bridge.data_source import CassandraCdcDataSource

__all__ = ["CassandraCdcDataSource", "register"]


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("cassandra_cdc")` known to a session."""
    spark.dataSource.register(CassandraCdcDataSource)
