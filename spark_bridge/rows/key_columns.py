"""The primary key in Spark: which columns it has, and what the folding rules look at in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from schemas import record_properties as names
from spark_bridge.rows.range_scope import ClusteringColumn
from spark_bridge.rows.typed import key_decoder
from spark_bridge.topics.topic_schemas import TopicSchemas

__all__ = ["KeyColumns", "comparable_key", "decoded_ranges", "with_key", "with_owner"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyColumns:
    """The primary key's columns: those of the partition key, then the clustering columns."""

    partition: tuple[str, ...]
    clustering: tuple[ClusteringColumn, ...]

    @classmethod
    def of(cls, schemas: TopicSchemas) -> KeyColumns:
        """From the key's schema: partition columns are bare types, clustering columns are unions with null."""
        fields = schemas.newest.key["fields"]
        assert isinstance(fields, list)
        clustering = [each for each in fields if isinstance(each["type"], list)]
        return cls(
            partition=tuple(each["name"] for each in fields if not isinstance(each["type"], list)),
            clustering=tuple((each["name"], _is_uuid(each["type"])) for each in clustering),
        )


def with_key(rows: DataFrame, name: str, schemas: TopicSchemas, version: Column, place: Column) -> DataFrame:
    """Add the decoded `key` by that name; one that cannot be decoded fails the query, by its place."""
    decoder = key_decoder(schemas, "string")
    tried = rows.withColumn(name, decoder.try_decode(F.col("key"), version))
    return tried.withColumn(name, decoder.checked(F.col(name), "key", place, version))


def with_owner(rows: DataFrame, schemas: TopicSchemas, place: Column) -> DataFrame:
    """Add `owner`: the Cassandra partition of `key` and `key_version` as text, the same whatever the key's columns are called.

    `place` names a row whose key cannot be decoded, in the query's error.
    """
    columns = KeyColumns.of(schemas)
    if not columns.clustering:
        return rows.withColumn("owner", F.hex("key"))
    keyed = with_key(rows, "owner", schemas, F.col("key_version"), place)
    parts = [F.col("owner").getField(each).alias(str(at)) for at, each in enumerate(columns.partition)]
    return keyed.withColumn("owner", F.to_json(F.struct(*parts)))


def decoded_ranges(schemas: TopicSchemas) -> Column:
    """The column `ranges` (array of `bounds` and `deleted`) with the bounds as keys."""
    decoder = key_decoder(schemas, "decimal")

    def bound(bounds: Column, name: str) -> Column:
        key = decoder.finish(decoder.decode(F.unbase64(bounds.getField(name)), bounds.getField("schema_version")))
        return F.when(bounds.getField(name).isNotNull(), key)

    def decoded(each: Column) -> Column:
        bounds = each.getField("bounds")
        backwards = F.from_json(bounds.getField(names.RANGE_REVERSED), "array<string>")
        return F.struct(
            each.getField("deleted").alias("deleted"),
            bound(bounds, names.RANGE_START).alias("start"),
            bound(bounds, names.RANGE_END).alias("end"),
            (bounds.getField(names.RANGE_START_INCLUSIVE) == "true").alias("start_inclusive"),
            (bounds.getField(names.RANGE_END_INCLUSIVE) == "true").alias("end_inclusive"),
            F.coalesce(backwards, F.array().cast("array<string>")).alias("reversed"),
        )

    return F.transform("ranges", decoded)


def comparable_key(schemas: TopicSchemas) -> Column:
    """The row's key with numbers as numbers; null where there is no range deletion to compare it with."""
    decoder = key_decoder(schemas, "decimal")
    key = decoder.finish(decoder.decode(F.col("key"), F.col("key_version")))
    return F.when(F.size("ranges") > 0, key)


def _is_uuid(avro_type: Sequence[object]) -> bool:
    return any(isinstance(each, dict) and each.get("logicalType") == "uuid" for each in avro_type)
