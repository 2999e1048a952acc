"""A data topic in Spark: raw rows by the data source `cassandra_cdc`, typed rows, the current table.

spark_bridge.register(spark)
spark_bridge.current_table(spark, {"serviceUrl": ..., "adminUrl": ..., "topic": ...}).show()
"""

from __future__ import annotations

from spark_bridge.reading.readers import raw_batch, raw_stream, register
from spark_bridge.rows.current_table import changes, current_table, typed
from spark_bridge.session import session_builder

__all__ = ["changes", "current_table", "raw_batch", "raw_stream", "register", "session_builder", "typed"]
