"""A data topic in Spark: raw rows by the data source `cassandra_cdc`, typed rows, the current table.

spark_bridge.register(spark)
spark_bridge.current_table(spark, {"serviceUrl": ..., "adminUrl": ..., "topic": ...}).show()
"""

from __future__ import annotations

from spark_bridge.current_table import changes, current_table, register, typed
from spark_bridge.data_source import CassandraCdcDataSource
from spark_bridge.session import session_builder

__all__ = ["CassandraCdcDataSource", "changes", "current_table", "register", "session_builder", "typed"]
