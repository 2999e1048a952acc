"""Columns of key and value in one table of Spark: key and value give their columns Avro names of their own."""

from __future__ import annotations

import json

import pytest

from schemas.row_record import data_key_schema, data_value_schema
from spark_bridge.errors import TopicError
from spark_bridge.rows.table_rows import table_columns
from spark_bridge.topics.topic_schemas import TopicSchemas
from tests.cql.tables import table_of

_TOPIC = "persistent://public/default/data-ks.t"


def _schemas(keys: list[str], values: list[str]) -> TopicSchemas:
    """The schemas that the connector registers for a table with these columns, each an int."""
    table = table_of(
        dict.fromkeys(keys[:1], "int"), dict.fromkeys(keys[1:], "int"), regular=dict.fromkeys(values, "int")
    )
    data = json.dumps({"key": data_key_schema(table), "value": data_value_schema(table)})
    properties = {"kv.encoding.type": "SEPARATED", "key.schema.type": "AVRO", "value.schema.type": "AVRO"}
    return TopicSchemas.parse(_TOPIC, [{"version": 0, "type": "KEY_VALUE", "data": data, "properties": properties}])


@pytest.mark.parametrize(
    ("keys", "values", "columns"),
    [
        (["1st", "ck"], ["2nd", "v"], ["_1st", "ck", "_2nd", "v"]),
        (["1st", "a b"], [], ["_1st", "a_u0020_b"]),
        (["1st", "_1st"], ["v"], ["_1st_2", "_1st", "v"]),
    ],
    ids=["other names", "a table of keys, whose value repeats them", "a collision inside the key"],
)
def test_all_columns_are_shown(keys: list[str], values: list[str], columns: list[str]) -> None:
    """Each column of the table has one column in Spark."""
    assert table_columns(_schemas(keys, values)) == columns


@pytest.mark.parametrize(
    ("keys", "values", "told"),
    [
        (["1st"], ["_1st", "v"], "the key column 1st and the value column _1st are both _1st in a table of Spark"),
        (["_1st"], ["1st"], "the key column _1st and the value column 1st are both _1st in a table of Spark"),
        (
            ["k", "a b"],
            ["a_u0020_b"],
            "the key column a b and the value column a_u0020_b are both a_u0020_b in a table of Spark",
        ),
        (
            ["1", "2"],
            ["_1", "_2"],
            "the key column 1 and the value column _1 are both _1 and the key column 2 and the value column _2 are both _2"
            " in a table of Spark",
        ),
    ],
)
def test_a_value_column_that_would_take_the_name_of_a_key_column_is_refused(
    keys: list[str], values: list[str], told: str
) -> None:
    """It was left out without a word."""
    with pytest.raises(TopicError) as caught:
        table_columns(_schemas(keys, values))
    assert str(caught.value) == (
        f"topic {_TOPIC}: {told}; rename the key column, or leave the value column out with the connector's option columns"
    )
