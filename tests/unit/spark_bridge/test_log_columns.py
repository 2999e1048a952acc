"""The columns of a change log for those of the newest schema, under all earlier names."""

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
    """The columns of a change log, read by a session with this setting."""
    session = SimpleNamespace(conf={"spark.sql.caseSensitive": case_sensitive})
    applied = Applied(epoch=9, schema_version=followed, gone_until=gone_until)
    return LogColumns.of(schemas, applied, name_key_of(cast(SparkSession, session)))


def test_a_column_that_was_added_again_in_other_letters_is_the_one_that_the_log_has() -> None:
    """By default Spark writes the new values to the old column; with spark.sql.caseSensitive they are two columns."""
    schemas = topic(("id", "c d"), ("Id", "d"), ("Id", "d C"))
    found = columns(schemas, c=4, C=7, d=3)
    assert found.newest_names(["id", "c", "d", "old"]) == {"id": "Id", "c": "C", "d": "d", "old": "old"}
    assert found.gone(["id", "c", "d"]) == {"c": 7, "d": 3}
    exact = columns(schemas, case_sensitive="TRUE", c=4, C=7)
    assert exact.newest_names(["id", "c", "C"]) == {"id": "id", "c": "c", "C": "C"}
    assert exact.gone(["id", "c", "C"]) == {"c": 4, "C": 7}


@pytest.mark.parametrize("name", ["v", "V"])
def test_a_key_column_is_not_the_value_column_whose_name_it_got(name: str) -> None:
    """Up to the epoch of the drop, the field of this name has the dropped column's value, and the key is in the field
    of its earlier name."""
    schemas = topic(("id at", "v w"), ("id at", "w"), (f"id {name}", "w"))
    assert columns(schemas, 2, v=4).of_key(["id", "at", "v", "w"]) == {
        "id": [("id", None, None)],
        name: [("v", 4, None), ("at", None, None)],
    }
    assert columns(schemas, 2).of_key(["id", "at", "v", "w"]) == {
        "id": [("id", None, None)],
        name: [("v", None, None), ("at", None, None)],
    }


def test_of_a_rename_that_the_mirror_has_not_followed_the_log_has_nothing() -> None:
    """A field of the new name is another column, or does not exist."""
    schemas = topic(("id at", "v w"), ("id v", "w"))
    assert columns(schemas, 0).of_key(["id", "at", "v", "w"]) == {"id": [("id", None, None)], "v": [("at", None, None)]}
    assert columns(schemas, 1, w=2).of_key(["id", "at", "w"]) == {"id": [("id", None, None)], "v": [("at", None, None)]}


def test_an_earlier_name_of_a_key_counts_though_a_column_of_that_name_was_dropped_later() -> None:
    schemas = topic(("id", "w"), ("key", "w"), ("key", "w id"), ("key", "w"))
    assert columns(schemas, 3, id=8).of_key(["id", "w", "key"]) == {"key": [("key", None, None), ("id", None, None)]}
    assert columns(schemas, 3, id=8).of_key(["id", "w"]) == {"key": [("id", None, None)]}


@pytest.mark.parametrize(
    ("keys", "gone_until", "fields"),
    [
        (
            ("a b", "b a"),
            {"a": 7, "b": 7},
            {"b": [("b", 7, None), ("a", None, 7)], "a": [("a", 7, None), ("b", None, 7)]},
        ),
        (
            ("a b", "b c"),
            {"b": 7},
            {"b": [("b", 7, None), ("a", None, None)], "c": [("c", None, None), ("b", None, 7)]},
        ),
        (
            ("a b", "a c", "b c"),
            {"b": 7},
            {"b": [("b", 7, None), ("a", None, None)], "c": [("c", None, None), ("b", None, 7)]},
        ),
    ],
    ids=["exchanged", "the next one's", "that it had before"],
)
def test_a_key_column_is_not_the_other_key_column_whose_name_it_got(
    keys: tuple[str, ...], gone_until: dict[str, int], fields: dict[str, list[tuple[str, int | None, int | None]]]
) -> None:
    """The field has the one up to the epoch, and the other since. Neither is gone, as a dropped column is."""
    found = columns(topic(*[(each, "w") for each in keys]), len(keys) - 1, **gone_until)
    assert found.of_key(["a", "b", "c", "w"]) == fields
    assert found.gone(["a", "b", "c", "w"]) == {}
