"""A Spark session that can read data topics: this interpreter in the workers, spark-avro on the class path."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

__all__ = ["SPARK_AVRO", "session_builder"]

SPARK_AVRO: Final = "org.apache.spark:spark-avro_2.13:4.1.1"
"""Maven coordinates of what decodes Avro in the JVM; built for 4.1.1, it runs on all of 4.1."""


def session_builder(jars: Sequence[Path] = ()) -> SparkSession.Builder:
    """A builder to which the application adds its own settings.

    `jars`: files of spark-avro that are already there; without them Spark fetches it from Maven Central at its start.
    Workers use the running interpreter unless PYSPARK_PYTHON says otherwise: they need this package, pulsar-client and
    pyarrow as well.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("cassandra-cdc")
    if jars:
        return builder.config("spark.jars", ",".join(map(str, jars)))
    return builder.config("spark.jars.packages", SPARK_AVRO)
