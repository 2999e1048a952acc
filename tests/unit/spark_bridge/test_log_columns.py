"""Which columns a change log has for those of the newest schema, whichever names they had."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from spark_bridge.jobs.lake_table import name_key_of
from spark_bridge.jobs.log_columns import LogColumns
from spark_bridge.jobs.mirror_state import Applied
from spark_bridge.topics.topic_schemas import TopicSchemas
from tests.unit.spark_bridge.test_mirror_schema import topic


def columns(
    schemas: TopicSchemas, followed: int | None = None, *, case_sensitive: str = "false", **gone_until: int
) -> LogColumns:
    """Of a log that a session with this setting reads."""
    session = SimpleNamespace(conf={"spark.sql.caseSensitive": case_sensitive})
    applied = Applied(epoch=9, schema_version=followed, gone_until=gone_until)
    return LogColumns.of(schemas, applied, name_key_of(cast(SparkSession, session)))


def test_a_column_that_was_added_again_in_other_letters_is_the_one_that_the_log_has() -> None:
    """Spark writes its values there; it tells the two apart where it is set to."""
    schemas = topic(("id", "c d"), ("Id", "d"), ("Id", "d C"))
    found = columns(schemas, c=4, C=7, d=3)
    assert found.newest_names(["id", "c", "d", "old"]) == {"id": "Id", "c": "C", "d": "d", "old": "old"}
    assert found.gone(["id", "c", "d"]) == {"c": 7, "d": 3}
    exact = columns(schemas, case_sensitive="TRUE", c=4, C=7)
    assert exact.newest_names(["id", "c", "C"]) == {"id": "id", "c": "c", "C": "C"}
    assert exact.gone(["id", "c", "C"]) == {"c": 4, "C": 7}


@pytest.mark.parametrize("name", ["v", "V"])
def test_a_key_column_is_not_the_value_column_whose_name_it_got(name: str) -> None:
    """Up to the epoch of the drop the field has a value: the key is in that of the earlier name."""
    schemas = topic(("id at", "v w"), ("id at", "w"), (f"id {name}", "w"))
    assert columns(schemas, 2, v=4).of_key(["id", "at", "v", "w"]) == {
        "id": [("id", None)],
        name: [("v", 4), ("at", None)],
    }
    assert columns(schemas, 2).of_key(["id", "at", "v", "w"]) == {
        "id": [("id", None)],
        name: [("v", None), ("at", None)],
    }


def test_of_a_rename_that_the_mirror_has_not_followed_the_log_has_nothing() -> None:
    """A field of the new name is another column, or not there."""
    schemas = topic(("id at", "v w"), ("id v", "w"))
    assert columns(schemas, 0).of_key(["id", "at", "v", "w"]) == {"id": [("id", None)], "v": [("at", None)]}
    assert columns(schemas, 1, w=2).of_key(["id", "at", "w"]) == {"id": [("id", None)], "v": [("at", None)]}


def test_an_earlier_name_of_a_key_counts_though_a_column_of_that_name_was_dropped_later() -> None:
    schemas = topic(("id", "w"), ("key", "w"), ("key", "w id"), ("key", "w"))
    assert columns(schemas, 3, id=8).of_key(["id", "w", "key"]) == {"key": [("key", None), ("id", None)]}
    assert columns(schemas, 3, id=8).of_key(["id", "w"]) == {"key": [("id", None)]}
