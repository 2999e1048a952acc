"""Writes the archive of Spark's classes, for which a Spark home has a place.

    python -m spark_bridge.jobs.class_archive ARCHIVE JAR [JAR...]

The process runs the operations of the jobs (Delta Lake's writes and merges, windows, Arrow, Avro, data sources in
Python, streaming queries) on a few rows. When its JVM ends, it writes the classes that it has loaded (`-XX:ArchiveClassesAtExit`, JEP 350).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.avro.functions import from_avro, to_avro

from schemas.errors import ConfigError
from spark_bridge.errors import SparkBridgeError
from spark_bridge.reading.readers import register_source
from spark_bridge.session import session_builder
from spark_bridge.spark_home import configured_elsewhere, spark_home
from spark_bridge.spark_line import HAS_DATA_SOURCES

__all__ = ["write_archive"]

_PATIENCE_S: Final = 900
_ROWS: Final = 100


def write_archive(jars: Sequence[Path]) -> Path:
    """Write the archive for local sessions with these jars. It replaces all others of this PySpark.

    Raises ConfigError if Spark's home or Java cannot be chosen here, and SparkBridgeError if Spark fails.
    """
    with spark_home(jars) as home:
        pass
    if home is None:
        where = configured_elsewhere()
        reason = (
            f"Spark takes its configuration from {where}; only sessions without one use an archive"
            if where
            else "PYSPARK_PYTHON or PYSPARK_DRIVER_PYTHON is another interpreter, PySpark was not installed by pip, a jar is "
            "missing, or the cache folder cannot be written"
        )
        raise ConfigError.of("Spark's home", f"cannot be chosen here: {reason}")
    archive = home.archive
    if archive is None:
        java_home = os.environ.get("JAVA_HOME")
        where = f"there is no bin/java in {java_home}" if java_home else "is not set, and there is no java in PATH"
        raise ConfigError.of("JAVA_HOME", f"{where}; install a JDK 17, or name one")
    home.note_jars(jars)
    _write(archive, jars)
    for each in home.other_archives():
        each.unlink(missing_ok=True)
    return archive


def _write(archive: Path, jars: Sequence[Path]) -> None:
    # It has another name until it is complete: another command must not start with a part of it.
    written = archive.with_name(f"{archive.name}.{os.getpid()}")
    try:
        _let_spark_write(written, jars)
        written.chmod(0o444)
        written.rename(archive)
    finally:
        written.unlink(missing_ok=True)


def _let_spark_write(archive: Path, jars: Sequence[Path]) -> None:
    command = [sys.executable, "-m", __name__, str(archive), *map(str, jars)]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            code = process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired as error:
            raise SparkBridgeError(f"Spark wrote no archive of its classes within {_PATIENCE_S} s") from error
        finally:
            # This ends the JVM, too, which would write the archive even after a Ctrl-C or an error here.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if code or not archive.is_file():
            output.seek(0)
            raise SparkBridgeError(f"Spark wrote no archive of its classes: {_reason(output.read())}")


def _reason(output: str) -> str:
    """Java's message if it did not start, else the last line of the output."""
    lines = output.strip().splitlines() or ["it said nothing"]
    return next((each for each in lines if each.startswith(("Unrecognized", "Cannot", "Error"))), lines[-1])


def _run(archive: str, jars: Sequence[str]) -> None:
    options = f'-XX:TieredStopAtLevel=1 "-XX:ArchiveClassesAtExit={archive}" -Xlog:cds*=off -Xlog:cds*=error:stderr'
    spark = (
        session_builder([Path(each) for each in jars], delta=True)
        .master("local[2]")
        .config("spark.ui.port", "0")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.extraJavaOptions", options)
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as folder:
        _use(spark, Path(folder))
    gateway = SparkContext._gateway  # noqa: SLF001  (PySpark names its JVM nowhere else)
    assert gateway is not None  # the session has made it
    spark.stop()
    gateway.shutdown()
    # The JVM ends when its standard input is closed, and then writes the archive.
    gateway.proc.stdin.close()
    gateway.proc.wait(_PATIENCE_S)


def _use(spark: SparkSession, folder: Path) -> None:
    """Load the classes that the jobs need."""
    table = f"delta.`{folder}/table`"
    rows = spark.createDataFrame(
        [(n, f"v{n}", {"n": str(n)}) for n in range(_ROWS)], "id long, v string, m map<string,string>"
    )
    rows.select("id", "v", F.struct("id", "v").alias("s")).write.format("delta").save(f"{folder}/table")
    source = spark.range(_ROWS // 2, _ROWS * 2).select("id", F.lit("w").alias("v"))
    source.select("id", "v", F.struct("id", "v").alias("s")).createOrReplaceTempView("source")
    spark.sql(
        f"MERGE INTO {table} t USING source s ON t.id = s.id "
        "WHEN MATCHED AND s.id = 60 THEN DELETE WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    ).collect()
    newest = Window.partitionBy("v").orderBy(F.desc("id"))
    read = spark.read.format("delta").load(f"{folder}/table")
    last = read.withColumn("n", F.row_number().over(newest)).where("n = 1").localCheckpoint()
    last.join(F.broadcast(rows), "id", "left").groupBy("n").agg(F.max("s"), F.count("m")).collect()
    last.mapInArrow(lambda batches: batches, last.schema).collect()
    _use_avro(spark)
    _use_stream(spark.readStream.format("delta").load(f"{folder}/table"), f"{folder}/checkpoint")
    if HAS_DATA_SOURCES:
        from spark_bridge.jobs.class_archive_source import Numbers

        register_source(spark, Numbers)
        spark.read.format(Numbers.name()).load().collect()
        _use_stream(spark.readStream.format(Numbers.name()).load(), f"{folder}/checkpoint-numbers")


def _use_stream(rows: DataFrame, checkpoint: str) -> None:
    query = rows.writeStream.foreachBatch(lambda batch, _: batch.show()).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()


def _use_avro(spark: SparkSession) -> None:
    as_avro = spark.range(_ROWS).select(to_avro(F.struct("id")).alias("data"))
    schema = '{"type": "record", "name": "row", "fields": [{"name": "id", "type": "long"}]}'
    as_avro.select(from_avro("data", schema).alias("row")).select("row.id").collect()


if __name__ == "__main__":
    _run(sys.argv[1], sys.argv[2:])
