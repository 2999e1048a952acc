"""A Spark session that can read data topics: this interpreter in the workers, spark-avro on the class path."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from spark_bridge.spark_line import HAS_DATA_SOURCES

__all__ = ["CONNECTOR", "DELTA", "ICEBERG", "SPARK_AVRO", "session_builder"]

SPARK_AVRO: Final = (
    "org.apache.spark:spark-avro_2.13:4.1.1" if HAS_DATA_SOURCES else "org.apache.spark:spark-avro_2.12:3.5.7"
)
"""Maven coordinates of what decodes Avro in the JVM; built for 4.1.1, it runs on all of 4.1."""

DELTA: Final = "io.delta:delta-spark_4.1_2.13:4.4.0" if HAS_DATA_SOURCES else "io.delta:delta-spark_2.12:3.3.2"
"""Maven coordinates of Delta Lake, which the jobs keep their tables in."""

CONNECTOR: Final = "io.streamnative.connectors:pulsar-spark-connector_2.12:3.1.1.4"
"""Maven coordinates of what reads topics on PySpark 3.5. Newer builds fail on tombstones, or do not run."""

ICEBERG: Final = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
    if HAS_DATA_SOURCES
    else "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.12.0"
)
"""Maven coordinates of Apache Iceberg, which they may keep them in instead."""


def session_builder(jars: Sequence[Path] = (), *, delta: bool = False, iceberg: bool = False) -> SparkSession.Builder:
    """A builder to which the application adds its own settings.

    `jars`: files of spark-avro (and Delta Lake, Iceberg; on PySpark 3.5 the pulsar-spark connector) that are already there;
    without them Spark fetches what it needs from Maven Central at its start. `delta`: with Delta Lake, for the jobs.
    `iceberg`: with Apache Iceberg, for jobs that keep Iceberg tables.
    Workers use the running interpreter unless PYSPARK_PYTHON says otherwise: they need this package, pulsar-client and
    pyarrow as well.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("cassandra-cdc")
    if delta:
        builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension").config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
    if jars:
        return builder.config("spark.jars", ",".join(map(str, jars)))
    packages = [
        SPARK_AVRO,
        *([DELTA] if delta else []),
        *([ICEBERG] if iceberg else []),
        *([] if HAS_DATA_SOURCES else [CONNECTOR]),
    ]
    return builder.config("spark.jars.packages", ",".join(packages))
