"""The Spark session of a micro-batch, or of a table's read: settings for its size, and steps side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

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

FEW_RECORDS: Final = 100_000
"""Below it a micro-batch is work for one core, and what Spark prepares costs more than the work."""

_LARGE_BYTES: Final = 24 << 20
_SPARSE_BYTES: Final = 128 << 10
"""Tables have at least so many bytes for each lookup of a key in a file. A lookup reads a page of each column, which costs as much
as to read a thousand rows."""

PAGE_ROWS: Final = 500
"""So many rows are read for a key that is looked up: a page of a file is read as a whole."""

_PINNED: Final = {
    # in the literals of our SQL
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.variable.substitute": "false",
    # in what is stored, or compared as text
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.jsonGenerator.ignoreNullFields": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    # in what is published
    "spark.sql.avro.datetimeRebaseModeInWrite": "CORRECTED",
}
"""Settings that change what a mirror stores or publishes, or whether it finds it again. The user's session may have others."""

_TASK_RECORDS: Final = 25_000
_TASK_BYTES: Final = 16 << 20
"""Of a table's files: ten times as much in memory."""


def is_large(kept_bytes: int) -> bool:
    """Whether tables of so many bytes note a few changes in deletion vectors. Smaller ones are written anew, which costs less."""
    return kept_bytes >= _LARGE_BYTES


def is_sparse(lookups: int, kept_bytes: int) -> bool:
    """Whether so many lookups (of a key in a file) cost less than to read tables of so many bytes."""
    return is_large(kept_bytes) and lookups * _SPARSE_BYTES <= kept_bytes


def fit_session(session: SparkSession, records: int, kept_bytes: int, *, is_local: bool = False) -> None:
    """Set up a session of one's own, as a micro-batch has, for so many records, and tables of so many bytes beside them.

    `is_local`: the tables are on a local file system.
    """
    pin_session(session)
    for name, value in SMALL_RUNS.items():
        if session.conf.get(name, None) is None:
            session.conf.set(name, value)
    # The sources of our merges are checkpoints: they need not be copied to stay what they are.
    session.conf.set("spark.databricks.delta.merge.materializeSource", "none")
    session.conf.set("spark.databricks.delta.merge.deletionVectors.persistent", str(is_large(kept_bytes)).lower())
    # The mirror compacts its tables itself: Delta does it once in each process, too, whatever there is to compact.
    session.conf.set("spark.databricks.delta.autoCompact.enabled", "false")
    session.conf.set("spark.databricks.delta.optimize.minFileSize", str(SMALL_FILE_BYTES))
    if records >= FEW_RECORDS or is_large(kept_bytes):
        _fit_lookups(session, is_local=is_local)
    # Adaptive execution runs a Spark job for each stage, and code for whole stages is compiled before it runs (of wide
    # tables it is too large, which Spark logs as an error): more than the work itself where there is little of it.
    for costly in ("spark.sql.adaptive.enabled", "spark.sql.codegen.wholeStage"):
        session.conf.set(costly, str(records >= FEW_RECORDS).lower())
    parallelism = session.sparkContext.defaultParallelism
    if records >= FEW_RECORDS:
        tasks = max(parallelism, records // FEW_RECORDS)
        session.conf.unset("spark.sql.files.minPartitionNum")
    else:
        # Every task writes the code of its expressions again, to find that it is compiled already: few tasks for little work.
        tasks = min(parallelism, 1 + records // _TASK_RECORDS + kept_bytes // _TASK_BYTES)
        session.conf.set("spark.sql.files.minPartitionNum", str(tasks))
    # so many tasks also where rows come from the driver
    session.conf.set("spark.sql.leafNodeDefaultParallelism", str(tasks))
    session.conf.set("spark.sql.shuffle.partitions", str(tasks))


def pin_session(session: SparkSession) -> None:
    """Set up a session of one's own so that what is stored does not depend on the user's. `fit_session` does it, too."""
    for name, value in _PINNED.items():
        session.conf.set(name, value)


def _fit_lookups(session: SparkSession, *, is_local: bool) -> None:
    """For tables in which keys are looked up by the statistics of pages: many pages, and conditions that name each key."""
    session.conf.set("parquet.page.row.count.limit", str(PAGE_ROWS))
    session.conf.set("spark.sql.parquet.pushdown.inFilterThreshold", str(LISTED_AT_ONCE))
    if is_local:
        # Hadoop starts a thread for each piece that it reads of a local file in this way.
        session.conf.set("parquet.hadoop.vectored.io.enabled", "false")


def in_few_tasks(rows: DataFrame) -> DataFrame:
    """Rows of few records in no more tasks than `fit_session` gave their session; they may have come in more."""
    tasks = rows.sparkSession.conf.get("spark.sql.shuffle.partitions")
    assert tasks is not None
    return rows.coalesce(int(tasks))


def session_of_its_own(spark: SparkSession) -> SparkSession:
    """With all that the session knows, but what is set in it is not set in the other: as Spark gives micro-batches one."""
    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())  # noqa: SLF001  (PySpark has no other way)


@contextmanager
def own_session(spark: SparkSession) -> Iterator[SparkSession]:
    """As `session_of_its_own`, for a while: afterwards the given one is the active one again."""
    try:
        yield session_of_its_own(spark)
    finally:
        spark.createDataFrame([], "nothing int")  # PySpark makes the session that does this the active one


def at_once(session: SparkSession, *steps: Callable[[], object]) -> list[object]:
    """Run steps beside each other, for most of a small job is waiting; raises the first one's error when all ended."""
    context = session.sparkContext._jsc.sc()  # noqa: SLF001  (PySpark's own way to it differs from version to version)
    given = context.getLocalProperties()

    def run(step: Callable[[], object], properties: object) -> object:
        context.setLocalProperties(properties)  # the query's, so that its end is the end of these jobs
        return step()

    with ThreadPoolExecutor(len(steps)) as pool:
        # Each step has a copy: Spark notes a session's settings in them, and takes them out again when a job ends.
        running = [pool.submit(run, step, given.clone()) for step in steps]
        return [each.result() for each in running]
