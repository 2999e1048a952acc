"""What a record is about, by its kind and by its key, on Spark without a topic."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from spark_bridge.rows.folding import _scope

pytestmark = pytest.mark.timeout(1_500)


def test_a_row_with_an_empty_clustering_value_is_a_row(spark: SparkSession) -> None:
    """Its key is that of a static row. Its deletion must not remove the static columns. DataStax's records have no kind."""
    records = spark.createDataFrame(
        [
            (kind, has_clustering, value)
            for kind in ("row", "row_deletion", "static_row", "partition_deletion", "range_deletion", None)
            for has_clustering in (True, False)
            for value in ("v", None)
        ],
        "kind string, has_clustering boolean, value string",
    ).withColumn("properties", F.create_map(F.lit("kind"), F.col("kind")))
    found = records.select("kind", "has_clustering", "value", F.expr(_scope("has_clustering")).alias("scope")).collect()
    of_kind = {each.kind: {row.scope for row in found if row.kind == each.kind} for each in found if each.kind}
    assert of_kind == {
        "row": {"row"},
        "row_deletion": {"row"},
        "static_row": {"static"},
        "partition_deletion": {"partition"},
        "range_deletion": {"range"},
    }
    without = {(each.has_clustering, each.value): each.scope for each in found if each.kind is None}
    assert without == {(True, "v"): "row", (True, None): "row", (False, "v"): "static", (False, None): "partition"}
