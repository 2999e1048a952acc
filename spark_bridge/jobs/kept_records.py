"""The records that a mirror keeps for each Cassandra partition: later records are folded with them.

    <target>/kept/<run>/   Parquet files of one run

A run has all kept records of the partitions that one micro-batch touched. So the latest run that has a partition
replaces the earlier ones for it. A micro-batch only adds a run. The mirror's progress lists the runs that count
(`Applied.runs`), so a run counts when its micro-batch is applied, and a run of a failed micro-batch does not count.

When there are many runs, the last ones become one (`merged`), as in a log-structured merge tree: a record is written
again each time that the records after it have doubled.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.types import LongType, StructField, StructType

from spark_bridge.jobs.batch_session import PAGE_ROWS
from spark_bridge.jobs.lake_table import is_listed
from spark_bridge.reading.folders import HadoopFolder
from spark_bridge.rows.fold import NOTHING, PARTITION, RANGE
from spark_bridge.rows.fold_batches import KEPT_SCHEMA
from spark_bridge.rows.sql_columns import selected

__all__ = ["NOTHING_FORGOTTEN", "Forgotten", "KeptRecords", "ReplacedRun", "Run", "first_to_merge"]

_MOST_RUNS: Final = 8
"""More runs are merged: each one is another file to read."""

_SCHEMA: Final = StructType([*KEPT_SCHEMA, StructField("run", LongType()), StructField("seen_s", LongType())])


class Run(NamedTuple):
    """One run: its number (a later run has a higher one), its folder's name, and the size of its files."""

    number: int
    name: str
    size_bytes: int


class ReplacedRun(NamedTuple):
    """A run that no longer counts: its folder's name, and since when, in seconds.

    A reader that began before still uses it.
    """

    name: str
    at_s: int


class Forgotten(NamedTuple):
    """Markers that no longer count: in runs up to this number, those with a `seen_s` before this time in seconds."""

    up_to_run: int
    before_s: int


NOTHING_FORGOTTEN: Final = Forgotten(-1, 0)


class KeptRecords:
    """The runs below one folder. Raises OSError and Spark's errors."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        self._folder = folder

    def read(
        self, runs: Sequence[Run], forgotten: Forgotten, owners: Collection[str] | None = None
    ) -> DataFrame | None:
        """All rows of these runs: KEPT_SCHEMA, `run`, and `seen_s`; None: there are no runs.

        `seen_s`: the time in seconds when a record last touched the Cassandra partition.
        `owners`: only rows of these Cassandra partitions, if they are few enough to be listed in a condition.

        A forgotten marker gets the scope NOTHING and stays: without it, earlier runs would count for its partition
        again.
        """
        if not runs:
            return None
        paths = [f"{_without_patterns(self._folder)}/{each.name}" for each in runs]
        # A lost or damaged file must not count as one without records, even if the session ignores such files.
        reader = self._spark.read.option("ignoreMissingFiles", "false").option("ignoreCorruptFiles", "false")
        found = reader.schema(_SCHEMA).parquet(*paths)
        listed = None if owners is None else is_listed("owner", owners, is_sparse=True)
        if listed is not None:
            found = found.where(listed)
        if forgotten.up_to_run < 0:
            return found
        is_over = F.col("scope").isin(PARTITION, RANGE) & (F.col("seen_s") < forgotten.before_s)
        is_over &= F.col("run") <= forgotten.up_to_run
        return found.withColumn("scope", F.when(is_over, NOTHING).otherwise(F.col("scope")))

    def write(self, judged: DataFrame, number: int, seen_s: int) -> Run:
        """Write a run: the results of `spark_bridge.rows.folding.folded` that later records are folded with."""
        names = {name: name for name in KEPT_SCHEMA.names}
        kept = selected(judged.where("NOT is_dropped"), {**names, "run": f"{number}L", "seen_s": f"{seen_s}L"})
        return self._written(kept, number)

    def taken_over(self, records: DataFrame) -> Run:
        """Write the first run from the table `records` of an earlier version."""
        there = [
            F.col(each.name) if each.name in records.columns else F.lit(None).cast(each.dataType).alias(each.name)
            for each in KEPT_SCHEMA
        ]
        number = F.lit(0).cast("bigint").alias("run")
        return self._written(records.select(*there, number, "seen_s").sort("owner"), 0)

    def merged(self, runs: Sequence[Run], forgotten: Forgotten) -> tuple[Run, ...]:
        """The same records in few runs: when there are many, the last ones become one.

        The replaced runs are not deleted.
        """
        first = first_to_merge(runs)
        if first is None:
            return tuple(runs)
        found = self.read(runs[first:], forgotten)
        assert found is not None
        of_owner = Window.partitionBy("owner")
        newest = found.withColumn("newest", F.max("run").over(of_owner)).where("run = newest").drop("newest")
        if first == 0:
            newest = newest.where(F.col("scope") != NOTHING)  # no earlier run is left that it would hide
        number = runs[-1].number
        one = newest.withColumn("run", F.lit(number).cast("bigint")).select(*_SCHEMA.names)
        sorted_by_owner = one.repartitionByRange("owner").sortWithinPartitions("owner")
        return (*runs[:first], self._written(sorted_by_owner, number))

    def delete_others(self, runs: Sequence[Run | ReplacedRun]) -> None:
        """Delete all runs but these, including those of failed micro-batches."""
        folder, names = HadoopFolder(self._spark, self._folder), {each.name for each in runs}
        for name in folder.names():
            if name not in names:
                folder.delete(name)

    def _written(self, kept: DataFrame, number: int) -> Run:
        name = f"{number:08}-{uuid.uuid4().hex[:12]}"  # a failed micro-batch may have left a run of this number
        place = f"{self._folder}/{name}"
        # The rows are sorted by `owner`: with small pages, a few partitions need few pages.
        kept.write.option("parquet.page.row.count.limit", str(PAGE_ROWS)).parquet(place)
        return Run(number, name, HadoopFolder(self._spark, place).size_bytes())


def first_to_merge(runs: Sequence[Run]) -> int | None:
    """The index from which runs become one; None: there are few runs.

    A run is included while it is less than twice as large as all later ones together.
    """
    if len(runs) <= _MOST_RUNS:
        return None
    first, size = len(runs) - 2, sum(each.size_bytes for each in runs[-2:])
    while first > 0 and runs[first - 1].size_bytes < 2 * size:
        first -= 1
        size += runs[first].size_bytes
    return first


def _without_patterns(path: str) -> str:
    """A path with escapes: Spark takes the paths that it reads for patterns."""
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", path)
