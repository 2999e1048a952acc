"""Starts streaming queries, and starts them again if Spark did not wait for their Python process."""

from __future__ import annotations

from typing import Final

import tenacity
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["run_to_its_end", "started"]

_WITHIN_S: Final = 300


def _is_lost(error: BaseException) -> bool:
    return isinstance(error, PySparkException) and "Python worker failed to connect back" in str(error)


# Spark gives a stream's Python process 10 seconds to start, which no setting changes and which is too short on a busy
# machine. No micro-batch has run before that, so a query can be started again.
_again_without_worker = tenacity.retry(
    retry=tenacity.retry_if_exception(_is_lost), stop=tenacity.stop_after_attempt(5), reraise=True
)


@_again_without_worker
def run_to_its_end(stream: DataStreamWriter) -> StreamingQuery:
    """Run a query whose trigger ends it, and return it when it has ended."""
    query = stream.start()
    assert query.awaitTermination(_WITHIN_S)
    return query


@_again_without_worker
def started(stream: DataStreamWriter) -> StreamingQuery:
    """Start a query, and return it, running, when it has processed all available records.

    A query to memory must have no checkpoint, because Spark cannot continue it from one.
    """
    query = stream.start()
    query.processAllAvailable()
    return query
