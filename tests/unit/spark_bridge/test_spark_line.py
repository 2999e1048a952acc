"""The jars that a session fetches, by Spark line."""

from __future__ import annotations

import pytest

from schemas.errors import ConfigError
from spark_bridge import session_builder, spark_line


@pytest.mark.parametrize(
    ("line", "packages"),
    [
        (
            "3.5",
            [
                "org.apache.spark:spark-avro_2.12:3.5.7",
                "io.delta:delta-spark_2.12:3.3.2",
                "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.12.0",
                "io.streamnative.connectors:pulsar-spark-connector_2.12:3.1.1.4",
            ],
        ),
        (
            "4.1",
            [
                "org.apache.spark:spark-avro_2.13:4.1.1",
                "io.delta:delta-spark_4.1_2.13:4.4.0",
                "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
            ],
        ),
    ],
)
def test_a_session_fetches_the_jars_of_its_line(
    line: str, packages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta Lake and Iceberg are added on request."""
    monkeypatch.setattr(spark_line, "LINE", line)
    builder = session_builder(delta=True, iceberg=True)
    assert builder._options["spark.jars.packages"].split(",") == packages


def test_spark_4_2_has_delta_tables_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for Iceberg gives an error that says which line has it."""
    monkeypatch.setattr(spark_line, "LINE", "4.2")
    packages = session_builder(delta=True)._options["spark.jars.packages"].split(",")
    assert packages == ["org.apache.spark:spark-avro_2.13:4.1.1", "io.delta:delta-spark_4.2_2.13:4.4.0"]
    with pytest.raises(ConfigError) as error:
        session_builder(delta=True, iceberg=True)
    assert str(error.value) == (
        "iceberg: there is none for Spark 4.2; keep Delta tables (--format delta), or run on PySpark 4.1 "
        "(pip install 'pyspark==4.1.*'), where Iceberg tables are read and written"
    )


def test_a_line_without_known_jars_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error lists the known lines; given files are used unchanged."""
    monkeypatch.setattr(spark_line, "LINE", "9.8")
    with pytest.raises(
        ConfigError, match=r"^pyspark: \S+ is of a line .*; install one of 3\.5, 4\.1, 4\.2 \(pip install"
    ):
        session_builder()
