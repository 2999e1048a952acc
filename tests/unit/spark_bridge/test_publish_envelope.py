"""The envelope of `changes-`: types that both key and value define, and records that fastavro writes with it."""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping
from typing import Any, cast

import fastavro
import pytest

from schemas.cql_type import NativeType, UserType
from schemas.errors import ConfigError
from spark_bridge.jobs.publish import topic_beside
from spark_bridge.jobs.publish_envelope import ORIGIN_FIELDS, SOURCE_FIELDS, envelope_schema
from spark_bridge.topics.topic_schemas import SchemaVersion
from tests.fixtures.spark import table_schemas

FEE = UserType("shop", "fee", ("amount", "what"), tuple(map(NativeType, ("decimal", "text"))))


def test_types_that_key_and_value_define_are_defined_once() -> None:
    """A decimal and a user type are in the key, in a column and in a collection."""
    key, value = table_schemas(
        partition_key={"id": "decimal"},
        clustering={"at": "frozen<fee>"},
        regular={"fees": "list<frozen<fee>>", "price": "decimal", "name": "text"},
        user_types={"fee": FEE},
    )
    version = SchemaVersion(version=0, key=cast("Mapping[str, object]", key), value=cast("Mapping[str, object]", value))
    schema = fastavro.parse_schema(cast("dict[str, object]", envelope_schema(version)))
    number, fee = {"bigint": b"\x05", "scale": 1}, {"amount": {"bigint": b"\x07", "scale": 0}, "what": None}
    row = {"id": number, "at": fee, "fees": [fee], "price": number, "name": "a"}
    source = {name: "" if kind == "string" else 1 for name, kind in {**SOURCE_FIELDS, **ORIGIN_FIELDS}.items()}
    record = {"before": None, "after": row, "source": source, "op": "c", "ts_ms": 1}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, record)
    assert fastavro.schemaless_reader(io.BytesIO(out.getvalue()), schema, None) == record


def test_readers_and_records_of_the_version_without_nodes_go_on() -> None:
    """By Avro's rules of evolution, either side may be the older one."""
    key, value = table_schemas(partition_key={"id": "int"}, regular={"name": "text"})
    version = SchemaVersion(version=0, key=cast("Mapping[str, object]", key), value=cast("Mapping[str, object]", value))
    schema = cast("dict[str, Any]", envelope_schema(version))
    older = copy.deepcopy(schema)
    (source,) = [each for each in older["fields"] if each["name"] == "source"]
    source["type"]["fields"] = [each for each in source["type"]["fields"] if each["name"] in SOURCE_FIELDS]
    known = {name: "" if kind == "string" else 1 for name, kind in SOURCE_FIELDS.items()}
    origin = {name: "n" if kind == "string" else 7 for name, kind in ORIGIN_FIELDS.items()}

    def read(writer: dict[str, Any], reader: dict[str, Any], source: Mapping[str, object]) -> object:
        record = {"before": None, "after": {"id": 1, "name": "a"}, "source": source, "op": "c", "ts_ms": 1}
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(writer), record)
        found = fastavro.schemaless_reader(io.BytesIO(out.getvalue()), fastavro.parse_schema(writer), reader)
        return cast("dict[str, object]", found)["source"]

    assert set(ORIGIN_FIELDS) == {"node", "segment", "pos", "table_id"}
    assert read(schema, schema, {**known, **origin}) == {**known, **origin}
    assert read(schema, older, {**known, **origin}) == known
    assert read(older, schema, known) == {**known, **dict.fromkeys(ORIGIN_FIELDS)}


def test_topics_stand_beside_the_data_topic() -> None:
    """They are derived from its name; for another form of name they must be given."""
    assert topic_beside("persistent://a/b/data-shop.t", "rows") == "persistent://a/b/rows-shop.t"
    with pytest.raises(ConfigError, match=r"persistent://a/b/t has no name data-<keyspace>.<table>: .*--changes-topic"):
        topic_beside("persistent://a/b/t", "changes")
