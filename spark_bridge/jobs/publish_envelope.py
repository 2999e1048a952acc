"""The Avro schema of a record on a topic `changes-<keyspace>.<table>`: an envelope with Debezium's field names.

`op` (c, u, d, and r for rows that existed before), `before`, `after` (all columns of the table, each nullable),
`source`, `ts_ms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spark_bridge.rows.avro_encoding import field_types
from spark_bridge.rows.avro_types import AvroType
from spark_bridge.topics.topic_schemas import AvroRecord, SchemaVersion

__all__ = ["ORIGIN_FIELDS", "SOURCE_FIELDS", "envelope_schema"]

SOURCE_FIELDS: Final[Mapping[str, str]] = {
    "connector": "string",
    "name": "string",
    "keyspace_name": "string",
    "table_name": "string",
    "snapshot": "string",
    "ts_ms": "long",
    "ts_us": "long",
    "epoch": "long",
    "step": "long",
}
"""Fields of `source`: among them the data topic (`name`), whether the record is an existing row and not a change
(`snapshot`), the write time (`ts_ms`, `ts_us`), and the place in the change log (`epoch`, `step`)."""
ORIGIN_FIELDS: Final[Mapping[str, str]] = {"node": "string", "segment": "long", "pos": "long", "table_id": "string"}
"""Fields of `source` that may be null: the node, segment and position in the commit log, and the table's id."""


def envelope_schema(version: SchemaVersion) -> AvroRecord:
    """The schema of the records for this version of the data topic's schema."""
    keyspace, table = version.value["namespace"], version.value["name"]
    namespace = f"{keyspace}.{table}"
    types = _Types(keyspace)
    columns = dict([*field_types(version.key), *field_types(version.value)])
    row = {
        "type": "record",
        "name": "Value",
        "namespace": namespace,
        "fields": [{"name": name, "type": types.nullable(each), "default": None} for name, each in columns.items()],
    }
    source = {
        "type": "record",
        "name": "Source",
        "namespace": namespace,
        "fields": [
            *[{"name": name, "type": each} for name, each in SOURCE_FIELDS.items()],
            *[{"name": name, "type": ["null", each], "default": None} for name, each in ORIGIN_FIELDS.items()],
        ],
    }
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": namespace,
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", f"{namespace}.Value"], "default": None},
            {"name": "source", "type": source},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": "long"},
        ],
    }


class _Types:
    """Merges types of columns from two schemas into one schema: a type that both define is defined once."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._defined: set[str] = set()

    def nullable(self, avro_type: AvroType) -> AvroType:
        inner = [each for each in avro_type if each != "null"] if isinstance(avro_type, list) else [avro_type]
        return ["null", *[self._once(each) for each in inner]]

    def _once(self, avro_type: AvroType) -> AvroType:
        if isinstance(avro_type, list):
            return [self._once(each) for each in avro_type]
        if isinstance(avro_type, str):
            name = avro_type.rpartition(".")[2]
            return self._full(name) if name in self._defined else avro_type
        found = dict(avro_type)
        if found.get("type") == "record":
            name = found["name"]
            if name in self._defined:
                return self._full(name)
            self._defined.add(name)
            found["namespace"] = self._namespace
            found["fields"] = [{**each, "type": self._once(each["type"])} for each in found["fields"]]
        for part in ("items", "values"):
            if part in found:
                found[part] = self._once(found[part])
        return found

    def _full(self, name: str) -> str:
        return f"{self._namespace}.{name}"
