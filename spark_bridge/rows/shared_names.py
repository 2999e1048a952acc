"""Columns of key and value that would have one name in a table of Spark.

Key and value are two Avro records, and each gives its columns Avro names of its own: the key column `1st` and the value
column `_1st` are both `_1st` (schemas.avro_names). Pure.
"""

from __future__ import annotations

from schemas.avro_names import CQL_NAME
from spark_bridge.errors import TopicError
from spark_bridge.topics.topic_schemas import AvroRecord, TopicSchemas

__all__ = ["own_value_names", "shared_names", "shared_names_reason"]


def own_value_names(schemas: TopicSchemas) -> list[str]:
    """Fields of the value that the key does not have. The value of a table of keys only repeats the key.

    Raises TopicError if a key column and a value column share a name.
    """
    key, value = schemas.newest.key, schemas.newest.value
    if shared := shared_names(key, value):
        advice = "rename the key column, or leave the value column out with the connector's option columns"
        raise TopicError(schemas.topic, f"{shared_names_reason(shared)}; {advice}")
    names = _cql_names(key)
    return [name for name in _cql_names(value) if name not in names]


def shared_names(key: AvroRecord, value: AvroRecord) -> list[tuple[str, str, str]]:
    """Key column, value column, and the Avro name of both, in the value's order; empty if no two columns share a name.

    A column that is in the key and in the value is one column.
    """
    of_key = _cql_names(key)
    return [
        (of_key[name], cql_name, name)
        for name, cql_name in _cql_names(value).items()
        if of_key.get(name, cql_name) != cql_name
    ]


def shared_names_reason(shared: list[tuple[str, str, str]]) -> str:
    """One line that names the columns."""
    pairs = [f"the key column {key} and the value column {value} are both {name}" for key, value, name in shared]
    return f"{' and '.join(pairs)} in a table of Spark"


def _cql_names(record: AvroRecord) -> dict[str, str]:
    """By Avro name, the CQL name of each column."""
    return {each["name"]: each.get(CQL_NAME, each["name"]) for each in record["fields"]}
