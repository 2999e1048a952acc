"""The Spark session of a micro-batch, or of a table's read: settings for its size, and steps that run at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, TypeVar, overload

from pyspark.sql import DataFrame, SparkSession

from spark_bridge.jobs.lake_table import LISTED_AT_ONCE, SMALL_FILE_BYTES
from spark_bridge.session import SMALL_RUNS

__all__ = [
    "FEW_RECORDS",
    "PAGE_ROWS",
    "at_once",
    "fit_session",
    "in_few_tasks",
    "is_large",
    "is_sparse",
    "own_session",
    "pin_session",
    "session_of_its_own",
]

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")

FEW_RECORDS: Final = 100_000
"""A smaller micro-batch is work for one core, and Spark's preparations cost more than the work."""

_LARGE_BYTES: Final = 24 << 20
_SPARSE_BYTES: Final = 128 << 10
"""The least size of tables for each look-up of a key in a file; below it they are read as a whole. A look-up reads a
page of each column, which costs as much as to read a thousand rows."""

PAGE_ROWS: Final = 500
"""The number of rows that are read for a key that is looked up: a page of a file is read as a whole."""

_PINNED: Final = {
    # for the literals of our SQL
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.variable.substitute": "false",
    # for data that is stored, or compared as text
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.jsonGenerator.ignoreNullFields": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    # for data that is published
    "spark.sql.avro.datetimeRebaseModeInWrite": "CORRECTED",
}
"""Settings that affect the data which a mirror stores, publishes and looks up. The user's session may have others."""

_DESCRIPTION: Final = "spark.sql.ui.explainMode"
_TASK_RECORDS: Final = 25_000
_TASK_BYTES: Final = 16 << 20
"""Bytes of a table's files for one task: ten times as much in memory."""


def is_large(kept_bytes: int) -> bool:
    """Return True if tables of this size note a few changes in deletion vectors.

    For smaller ones it costs less to rewrite them.
    """
    return kept_bytes >= _LARGE_BYTES


def is_sparse(lookups: int, kept_bytes: int) -> bool:
    """Return True if this number of look-ups (of a key in a file) costs less than to read tables of this size."""
    return is_large(kept_bytes) and lookups * _SPARSE_BYTES <= kept_bytes


def fit_session(session: SparkSession, records: int, kept_bytes: int, *, is_local: bool = False) -> None:
    """Set up a separate session, as a micro-batch has one, for this number of records, and for tables of `kept_bytes`.

    `is_local`: the tables are on a local file system.
    """
    pin_session(session)
    for name, value in SMALL_RUNS.items():
        if session.conf.get(name, None) is None:
            session.conf.set(name, value)
    # Spark describes each query for its user interface. Its default description costs more than to plan a small query.
    if session.conf.get(_DESCRIPTION, None) is None:
        session.conf.set(_DESCRIPTION, "simple")
    # The sources of our merges are checkpoints, which do not change: Delta need not copy them.
    session.conf.set("spark.databricks.delta.merge.materializeSource", "none")
    session.conf.set("spark.databricks.delta.merge.deletionVectors.persistent", str(is_large(kept_bytes)).lower())
    # The mirror compacts its tables itself. Delta would do it once in each process, too, even without small files.
    session.conf.set("spark.databricks.delta.autoCompact.enabled", "false")
    session.conf.set("spark.databricks.delta.optimize.minFileSize", str(SMALL_FILE_BYTES))
    if records >= FEW_RECORDS or is_large(kept_bytes):
        _fit_lookups(session, is_local=is_local)
    # Adaptive execution runs a Spark job for each stage. Code for whole stages is compiled before it runs, and is too
    # large for wide tables, which Spark logs as an error. For few records, both cost more than the work itself.
    for costly in ("spark.sql.adaptive.enabled", "spark.sql.codegen.wholeStage"):
        session.conf.set(costly, str(records >= FEW_RECORDS).lower())
    parallelism = session.sparkContext.defaultParallelism
    if records >= FEW_RECORDS:
        tasks = max(parallelism, records // FEW_RECORDS)
        session.conf.unset("spark.sql.files.minPartitionNum")
    else:
        # Every task generates the code of its expressions again, and finds it compiled: few tasks for little work.
        tasks = min(parallelism, 1 + records // _TASK_RECORDS + kept_bytes // _TASK_BYTES)
        session.conf.set("spark.sql.files.minPartitionNum", str(tasks))
    # the same number of tasks for rows that come from the driver
    session.conf.set("spark.sql.leafNodeDefaultParallelism", str(tasks))
    session.conf.set("spark.sql.shuffle.partitions", str(tasks))


def pin_session(session: SparkSession) -> None:
    """Set up a separate session so that stored data does not depend on the user's settings.

    `fit_session` includes this.
    """
    for name, value in _PINNED.items():
        session.conf.set(name, value)


def _fit_lookups(session: SparkSession, *, is_local: bool) -> None:
    """Set up look-ups of keys by the statistics of pages: small pages, and conditions that list each key."""
    session.conf.set("parquet.page.row.count.limit", str(PAGE_ROWS))
    session.conf.set("spark.sql.parquet.pushdown.inFilterThreshold", str(LISTED_AT_ONCE))
    if is_local:
        # With vectored reads, Hadoop starts a thread for each piece of a local file.
        session.conf.set("parquet.hadoop.vectored.io.enabled", "false")


def in_few_tasks(rows: DataFrame) -> DataFrame:
    """The rows in at most as many tasks as `fit_session` gave their session."""
    tasks = rows.sparkSession.conf.get("spark.sql.shuffle.partitions")
    assert tasks is not None
    return rows.coalesce(int(tasks))


def session_of_its_own(spark: SparkSession) -> SparkSession:
    """A copy of the session, as Spark makes one for micro-batches.

    Later settings of one are not settings of the other.
    """
    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())  # noqa: SLF001  (PySpark has no other way)


@contextmanager
def own_session(spark: SparkSession) -> Iterator[SparkSession]:
    """A copy as of `session_of_its_own`, for this context. Afterwards the given session is the active one again."""
    try:
        yield session_of_its_own(spark)
    finally:
        spark.createDataFrame([], "nothing int")  # PySpark makes the session that does this the active one


@overload
def at_once(session: SparkSession, first: Callable[[], A], second: Callable[[], B], /) -> tuple[A, B]: ...
@overload
def at_once(
    session: SparkSession, first: Callable[[], A], second: Callable[[], B], third: Callable[[], C], /
) -> tuple[A, B, C]: ...
@overload
def at_once(session: SparkSession, *steps: Callable[[], object]) -> tuple[object, ...]: ...
def at_once(session: SparkSession, *steps: Callable[[], object]) -> tuple[object, ...]:
    """Run steps at once, because a small job mostly waits. Return their results, in order.

    When all have ended, the error of the first step that failed is raised.
    """
    context = session.sparkContext._jsc.sc()  # noqa: SLF001  (PySpark's own way to it differs from version to version)
    given = context.getLocalProperties()

    def run(step: Callable[[], object], properties: object) -> object:
        context.setLocalProperties(properties)  # those of the query, so that Spark ends these jobs with the query
        return step()

    with ThreadPoolExecutor(len(steps)) as pool:
        # Each step has a copy: Spark notes a session's settings in the properties, and removes them when a job ends.
        running = [pool.submit(run, step, given.clone()) for step in steps]
        return tuple(each.result() for each in running)
