"""Every change of every row in a micro-batch, one record after the other: the content of change log and history.

A row changes by its own records, by markers that cover it, and by records that change its partition's static columns.
Its first image is the mirror's; its last image is the result of the folding rules, whatever the order between topic
partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.types import DataType

from spark_bridge.rows.avro_columns import Numbers
from spark_bridge.rows.fold_batches import covered_rows
from spark_bridge.rows.folding import all_records
from spark_bridge.rows.key_columns import KeyColumns
from spark_bridge.rows.range_scope import RangeScope
from spark_bridge.rows.record_places import message_id_of
from spark_bridge.rows.typed import key_decoder, value_decoder
from spark_bridge.topics.topic_schemas import TopicSchemas

__all__ = ["ImageColumns", "row_steps"]

_BEFORE, _DURING, _AFTER = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageColumns:
    """Columns of a row's image: the table's (`names`), which of them are `statics`, and the mirror's own."""

    names: Sequence[str]
    statics: Sequence[str]
    own: Sequence[str]

    @property
    def all(self) -> list[str]:
        """In the order of the image's struct."""
        return [*self.names, *self.own]


def row_steps(
    raw: DataFrame, compared: DataFrame, schemas: TopicSchemas, numbers: Numbers, columns: ImageColumns
) -> DataFrame:
    """`op` (insert, update, delete), `_cdc_id`, `before`, `after`, `changed_us`, `step` (order within the row), `source`.

    `raw`: the micro-batch. `compared`: `_cdc_id`, `owner`, `before`, `after`, `changed_us` of all rows of the partitions it touches;
    images are structs of the same columns, null where there is no row. `source`: of the record that made the change (RECORD_SOURCE);
    null where none did: the row expired, or was truncated.
    """
    records = _decoded(all_records(raw, schemas), schemas, numbers, columns).localCheckpoint()
    rows = records.where("scope = 'row'")
    start = compared.select(
        "_cdc_id", F.lit(_BEFORE).alias("phase"), _cells(F.col("before")), _statics("before", columns)
    )
    touched = rows.select("_cdc_id").distinct().join(compared, "_cdc_id", "full_outer")
    end = touched.select("_cdc_id", F.lit(_AFTER).alias("phase"), _cells(F.col("after")), "changed_us")
    own = rows.select(
        "_cdc_id",
        F.lit(_DURING).alias("phase"),
        "place",
        _cells(F.col("image")),
        F.when(F.col("image").isNotNull(), F.col("statics")).alias("statics"),
        "changed_us",
        "source",
    )
    parts = [start, own, end]
    if KeyColumns.of(schemas).clustering:
        known = _candidates(compared, rows, schemas)
        parts += [
            _wiped(records, known, schemas, compared.schema["after"].dataType),
            *_static_changes(records, known, columns),
        ]
    return _chained(parts, columns)


def _decoded(records: DataFrame, schemas: TopicSchemas, numbers: Numbers, columns: ImageColumns) -> DataFrame:
    """Add `_cdc_id`, `place`, `changed_us`, `image` (null: no row) and `statics` (null: the record names none)."""
    key, value = key_decoder(schemas, numbers), value_decoder(schemas, numbers)
    place = message_id_of(F.col("at"))
    tried = records.withColumns({
        "k": key.try_decode(F.col("key"), F.col("key_version")),
        "v": value.try_decode(F.col("value"), F.col("schema_version")),
    })  # fmt: skip
    checked = tried.withColumns({
        "k": key.checked(F.col("k"), "key", place, F.col("key_version")),
        "v": value.checked(F.col("v"), "value", place, F.col("schema_version")),
    })  # fmt: skip
    finished = checked.withColumns({"k": key.finish(F.col("k")), "v": value.finish(F.col("v"))})
    own = {
        "_cdc_id": F.hex("key"),
        "_cdc_owner": F.col("owner"),
        "_cdc_writetime": F.col("at.writetime"),
        "_cdc_expires_at": F.col("expires_at"),
    }
    fields = [_field("k", name) if name in key.names else _field("v", name) for name in columns.names]
    image = F.struct(*[each.alias(name) for each, name in zip(fields, columns.names, strict=True)],
                     *[own[name].alias(name) for name in columns.own])  # fmt: skip
    statics = F.struct(F.lit(1).alias("named"), *[_field("v", name).alias(name) for name in columns.statics])
    says_statics = F.col("scope").isin("row", "static") & (F.col("v").isNotNull() | (F.col("scope") == "static"))
    # A record that does not know when it was written counts from its publication: a version must have a beginning.
    written_us = F.coalesce("at.writetime", "published_us")
    deleted_us = F.coalesce(F.col("deletion_time"), written_us)
    return finished.select(
        "key", "key_version", "owner", "scope", "bounds", "at", "deletion_time", "source",
        F.hex("key").alias("_cdc_id"),
        F.struct(F.col("at.clock").alias("clock"), F.col("at.position").alias("position")).alias("place"),
        F.when(F.col("v").isNotNull(), written_us).otherwise(deleted_us).alias("changed_us"),
        F.when(F.col("v").isNotNull(), image).alias("image"),
        F.when(says_statics, statics).alias("statics"),
    )  # fmt: skip


def _candidates(compared: DataFrame, rows: DataFrame, schemas: TopicSchemas) -> DataFrame:
    """Rows that a marker or a static column may touch: those of the mirror, and those that the micro-batch speaks of."""
    newest = F.lit(schemas.newest.version).cast("bigint").alias("key_version")
    kept = compared.where("before IS NOT NULL AND NOT startswith(_cdc_id, 'static:')").select(
        "_cdc_id", "owner", F.unhex("_cdc_id").alias("key"), newest
    )
    spoken = rows.select("_cdc_id", "owner", "key", newest)
    return kept.union(spoken).dropDuplicates(["_cdc_id"])


def _wiped(records: DataFrame, known: DataFrame, schemas: TopicSchemas, image: DataType) -> DataFrame:
    """The deletions of many rows, each for every row that it covers."""
    markers = records.where("scope IN ('partition', 'range')").select(
        "owner", "bounds", "place", "changed_us", "source"
    )
    met = known.join(markers, "owner").select(
        "_cdc_id", "key", "key_version", "bounds", "place", "changed_us", "source"
    )
    scope = RangeScope([(each.version, each.key) for each in schemas.versions])
    covered = met.mapInArrow(covered_rows(scope), met.schema)
    return covered.select(
        "_cdc_id", F.lit(_DURING).alias("phase"), "place", _cells(F.lit(None).cast(image)), "changed_us", "source"
    )


def _static_changes(records: DataFrame, known: DataFrame, columns: ImageColumns) -> list[DataFrame]:
    """Where a partition's static columns change, for each of its rows; a table without static columns has none."""
    if not columns.statics:
        return []
    order = Window.partitionBy("owner").orderBy("place")
    text = F.to_json("statics")
    new = records.where("statics IS NOT NULL").withColumn("old", F.lag(text).over(order))
    changes = new.where(~text.eqNullSafe(F.col("old"))).select("owner", "place", "statics", "changed_us", "source")
    return [
        known.join(changes, "owner").select(
            "_cdc_id", F.lit(_DURING).alias("phase"), "place", "statics", "changed_us", "source"
        )
    ]


def _chained(parts: Sequence[DataFrame], columns: ImageColumns) -> DataFrame:
    """The differences between one image of a row and the next."""
    union = parts[0]
    for each in parts[1:]:
        union = union.unionByName(each, allowMissingColumns=True)
    so_far = Window.partitionBy("_cdc_id").orderBy("phase", F.col("place").asc_nulls_first())
    held = union.withColumns({
        "held": F.last("cells", ignorenulls=True).over(so_far).getField("image"),
        "named": F.last("statics", ignorenulls=True).over(so_far),
    })  # fmt: skip
    fields = [
        F.when((F.col("phase") == _AFTER) | F.col("named").isNull(), _field("held", name)).otherwise(
            _field("named", name)
        )
        if name in columns.statics
        else _field("held", name)
        for name in columns.all
    ]
    image = F.struct(*[each.alias(name) for each, name in zip(fields, columns.all, strict=True)])
    imaged = held.select(
        "_cdc_id",
        "phase",
        "place",
        F.coalesce("changed_us", F.last("changed_us", ignorenulls=True).over(so_far)).alias("changed_us"),
        F.when(F.col("held").isNotNull(), image).alias("after"),
        "source",
    )
    content = F.when(F.col("after").isNotNull(), F.to_json(F.col("after").dropFields(*columns.own)))
    lagged = imaged.withColumn("content", content).withColumns({
        "before": F.lag("after").over(so_far),
        "old": F.lag("content").over(so_far),
        "step": F.row_number().over(so_far),
    })  # fmt: skip
    op = F.when(F.col("old").isNull(), "insert").when(F.col("content").isNull(), "delete").otherwise("update")
    changed = lagged.where((F.col("phase") > _BEFORE) & ~F.col("content").eqNullSafe(F.col("old")))
    return changed.select(op.alias("op"), "_cdc_id", "before", "after", "changed_us", "step", "source")


def _cells(image: Column) -> Column:
    """An image that says so even where it is null: `no row` is another thing than `nothing is said about the row`."""
    return F.struct(F.lit(1).alias("said"), image.alias("image")).alias("cells")


def _statics(image: str, columns: ImageColumns) -> Column:
    fields = [_field(image, name).alias(name) for name in columns.statics]
    return F.when(F.col(image).isNotNull(), F.struct(F.lit(1).alias("named"), *fields)).alias("statics")


def _field(struct: str, name: str) -> Column:
    return F.col(struct).getField(name)
