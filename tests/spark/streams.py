"""Queries over streams, started again where Spark did not wait for their Python process."""

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


# Spark gives a stream's Python process 10 seconds to start, which no setting changes: too few on a busy machine. Before it runs
# there is no micro-batch.
_again_without_worker = tenacity.retry(
    retry=tenacity.retry_if_exception(_is_lost), stop=tenacity.stop_after_attempt(5), reraise=True
)


@_again_without_worker
def run_to_its_end(stream: DataStreamWriter) -> StreamingQuery:
    """The query, which is over. Its trigger ends it."""
    query = stream.start()
    assert query.awaitTermination(_WITHIN_S)
    return query


@_again_without_worker
def started(stream: DataStreamWriter) -> StreamingQuery:
    """The query, which runs and has done all that there was. One into memory must have no checkpoint: Spark would not go on from it."""
    query = stream.start()
    query.processAllAvailable()
    return query
