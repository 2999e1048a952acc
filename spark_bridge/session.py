"""A Spark session that can read data topics: this interpreter in the workers, spark-avro on the class path."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from spark_bridge.spark_line import iceberg_jar, line_jars

__all__ = ["session_builder"]


def session_builder(jars: Sequence[Path] = (), *, delta: bool = False, iceberg: bool = False) -> SparkSession.Builder:
    """A builder to which the application adds its own settings.

    `jars`: files of spark-avro (and Delta Lake, Iceberg; on PySpark 3.5 the pulsar-spark connector) that are already there;
    without them Spark fetches what it needs from Maven Central at its start. `delta`: with Delta Lake, for the jobs.
    `iceberg`: with Apache Iceberg, for jobs that keep Iceberg tables.
    Workers use the running interpreter unless PYSPARK_PYTHON says otherwise: they need this package, pulsar-client and
    pyarrow as well. Raises ConfigError where this line of Spark has no such jars.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("cassandra-cdc")
    if delta:
        builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension").config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
    if jars:
        return builder.config("spark.jars", ",".join(map(str, jars)))
    known = line_jars()
    packages = [
        known.spark_avro,
        *([known.delta] if delta else []),
        *([iceberg_jar()] if iceberg else []),
        *([known.connector] if known.connector else []),
    ]
    return builder.config("spark.jars.packages", ",".join(packages))
