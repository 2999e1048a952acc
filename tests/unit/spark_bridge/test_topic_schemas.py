"""The registry's answer as schemas of key and value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from spark_bridge.errors import TopicError
from spark_bridge.topics.topic_schemas import PRESENT_VERSION, TopicSchemas

AVRO = {"kv.encoding.type": "SEPARATED", "key.schema.type": "AVRO", "value.schema.type": "AVRO"}


def registered(version: int, *, type: str = "KEY_VALUE", **properties: str) -> Mapping[str, object]:  # noqa: A002
    record = {"type": "record", "name": "t", "namespace": "shop", "fields": [{"name": f"v{version}", "type": "int"}]}
    data = json.dumps({"key": record, "value": record})
    return {"version": version, "type": type, "data": data, "properties": AVRO | properties, "timestamp": 0}


def test_versions_are_ordered_and_the_newest_leads() -> None:
    """The registry's order does not matter."""
    schemas = TopicSchemas.parse("t", [registered(10), registered(2), registered(9)])
    assert [each.version for each in schemas.versions] == [2, 9, 10]
    assert schemas.newest.key["fields"] == [{"name": "v10", "type": "int"}]


def test_a_column_is_dropped_since_a_version_when_a_later_one_lacks_it_and_the_newest_has_it() -> None:
    """Key columns do not count: a table of only key columns has them in its values, also under changed names."""

    def of(version: int, *names: str) -> Mapping[str, object]:
        records = [{"name": "t", "fields": [{"name": each} for each in part]} for part in (["k"], names)]
        data = json.dumps(dict(zip(("key", "value"), records, strict=True)))
        return {"version": version, "type": "KEY_VALUE", "data": data, "properties": AVRO}

    schemas = TopicSchemas.parse("t", [of(0, "k", "a", "b"), of(1, "b", "c"), of(2, "a", "b"), of(3, "k", "a", "c")])
    assert [sorted(schemas.dropped_since(version)) for version in range(4)] == [["a", "c"], ["c"], [], []]
    present = replace(schemas.newest, version=PRESENT_VERSION)
    beside = TopicSchemas(topic="t", versions=(present, *schemas.versions))
    assert [sorted(beside.dropped_since(version)) for version in range(-1, 4)] == [[], ["a", "c"], ["c"], [], []]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ([], "has no schema yet: the connector registers one with its first record"),
        ([registered(0, type="AVRO")], "schema version 0 is AVRO SEPARATED AVRO AVRO; typed columns need KEY_VALUE"),
        (
            [registered(0), registered(1, **{"value.schema.type": "JSON"})],
            "schema version 1 is KEY_VALUE SEPARATED AVRO JSON; typed columns need KEY_VALUE SEPARATED AVRO AVRO "
            "(the connector's outputFormat key-value-avro)",
        ),
        ([{**registered(3), "data": "{"}], "schema version 3 cannot be read (Expecting property name"),
        ([{**registered(3), "data": '{"key": "int"}'}], "schema version 3 cannot be read ('value'); was it written by"),
        (
            [{**registered(3), "data": '{"key": "int", "value": 1}'}],
            "schema version 3 cannot be read (key and value must",
        ),
    ],
)
def test_what_has_no_typed_columns_is_refused(answer: list[Mapping[str, object]], reason: str) -> None:
    """There is no schema, or one of another output format."""
    with pytest.raises(TopicError) as error:
        TopicSchemas.parse("persistent://public/default/t", answer)
    assert str(error.value).startswith(f"topic persistent://public/default/t: {reason}")
