"""A data topic in Spark: raw rows by the data source `cassandra_cdc`, typed rows, the current table.

spark_bridge.register(spark)
spark_bridge.current_table(spark, {"serviceUrl": ..., "adminUrl": ..., "topic": ...}).show()

And an archive of commit log segments, by the data source `cassandra_commitlog`: its changes, the history of cells, a
table at a moment.

spark_bridge.as_of(spark, {"archiveUrl": ..., "table": "shop.orders"}, "2026-11-23T12:00:00Z").show()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_bridge.commitlog.sources import commit_log, register
    from spark_bridge.commitlog.views import as_of, cell_history, latest_cells
    from spark_bridge.jobs.fresh_table import fresh_table
    from spark_bridge.jobs.resolved import mirror_resolved_timestamp, resolved_timestamp, wait_until_complete
    from spark_bridge.jobs.resync import resync
    from spark_bridge.reading.readers import raw_batch, raw_stream
    from spark_bridge.rows.current_table import changes, current_table, typed
    from spark_bridge.session import session_builder

__all__ = [
    "as_of",
    "cell_history",
    "changes",
    "commit_log",
    "current_table",
    "fresh_table",
    "latest_cells",
    "mirror_resolved_timestamp",
    "raw_batch",
    "raw_stream",
    "register",
    "resolved_timestamp",
    "resync",
    "session_builder",
    "typed",
    "wait_until_complete",
]

# Imported on first use: Spark starts Python processes for each read, and these need the data source only.
_HOMES = {
    **dict.fromkeys(("raw_batch", "raw_stream"), "spark_bridge.reading.readers"),
    **dict.fromkeys(("changes", "current_table", "typed"), "spark_bridge.rows.current_table"),
    "fresh_table": "spark_bridge.jobs.fresh_table",
    **dict.fromkeys(
        ("mirror_resolved_timestamp", "resolved_timestamp", "wait_until_complete"), "spark_bridge.jobs.resolved"
    ),
    "resync": "spark_bridge.jobs.resync",
    "session_builder": "spark_bridge.session",
    **dict.fromkeys(("commit_log", "register"), "spark_bridge.commitlog.sources"),
    **dict.fromkeys(("as_of", "cell_history", "latest_cells"), "spark_bridge.commitlog.views"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
