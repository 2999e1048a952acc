"""The primary key in Spark: its columns, and the parts of it that the folding rules use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from spark_bridge.rows.sql_columns import field, literal, struct
from spark_bridge.rows.typed import key_decoder
from spark_bridge.topics.topic_schemas import TopicSchemas

__all__ = ["OWNER_TIME_ZONE", "KeyColumns", "owner_text", "with_key", "with_owner"]

OWNER_TIME_ZONE: Final = "UTC"
"""Time zone of the timestamps in an owner, unless owners that were stored earlier have another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyColumns:
    """Names of the primary key's columns: the partition key columns and the clustering columns."""

    partition: tuple[str, ...]
    clustering: tuple[str, ...]

    @classmethod
    def of(cls, schemas: TopicSchemas) -> KeyColumns:
        """From the key's schema: partition columns are bare types, clustering columns are unions with null."""
        fields = schemas.newest.key["fields"]
        assert isinstance(fields, list)
        return cls(
            partition=tuple(each["name"] for each in fields if not isinstance(each["type"], list)),
            clustering=tuple(each["name"] for each in fields if isinstance(each["type"], list)),
        )


def with_key(rows: DataFrame, name: str, schemas: TopicSchemas, version: Column, place: Column) -> DataFrame:
    """Add the decoded `key` as column `name`. A key that cannot be decoded fails the query, which names its `place`."""
    decoder = key_decoder(schemas, "string")
    tried = rows.withColumn(name, decoder.try_decode(F.col("key"), version))
    return tried.withColumn(name, decoder.checked(F.col(name), F.col("key"), "key", place, version))


def with_owner(rows: DataFrame, schemas: TopicSchemas, place: Column, time_zone: str = OWNER_TIME_ZONE) -> DataFrame:
    """Add `owner`: the Cassandra partition of `key` and `key_version` as text. It does not contain the columns' names.

    Timestamps are in `time_zone` and not in the session's time zone, so that all sessions give the same owner. `place`
    names the row in the query's error if its key cannot be decoded.
    """
    columns = KeyColumns.of(schemas)
    if not columns.clustering:
        return rows.withColumn("owner", F.hex("key"))
    keyed = with_key(rows, "owner", schemas, F.col("key_version"), place)
    return keyed.withColumn("owner", F.expr(owner_text(columns, "owner", time_zone)))


def owner_text(columns: KeyColumns, key: str, time_zone: str) -> str:
    """The owner as an expression of SQL: see `with_owner`. `key`: name of a column with the decoded key."""
    parts = {str(at): field(key, each) for at, each in enumerate(columns.partition)}
    # independent of the session's settings
    return f"to_json({struct(parts)}, map('timeZone', {literal(time_zone)}, 'ignoreNullFields', 'true'))"
