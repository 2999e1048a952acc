"""Every change of every row in a micro-batch: the content of change log and history, and the rows to merge.

Spark decodes the images of rows: as they were, as records give them, and as they are now. Plain code puts them in order
(spark_bridge.rows.row_chain): in this process if they are few, else in Spark's tasks by Cassandra partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.types import BooleanType, DataType, IntegerType, LongType, StringType, StructField, StructType

from spark_bridge.jobs.mirror_rows import content_text, counts_and_soonest, counts_of
from spark_bridge.jobs.small_merge import local_frame
from spark_bridge.rows.avro_columns import Numbers
from spark_bridge.rows.fold import RANGE, ROW, STATIC
from spark_bridge.rows.fold_batches import KEPT_SCHEMA
from spark_bridge.rows.folding import all_records
from spark_bridge.rows.record_places import RECORD_SOURCE, message_id_of
from spark_bridge.rows.row_chain import ChainRules, Op, SaidKind
from spark_bridge.rows.row_images import IMAGE_COLUMNS, chain_batches, chained_table
from spark_bridge.rows.sql_columns import field, selected, struct, type_text
from spark_bridge.rows.typed import key_decoder, value_decoder, with_numbers
from spark_bridge.topics.topic_schemas import TopicSchemas

__all__ = ["ImageColumns", "RowChanges", "record_images", "row_changes", "row_images"]

_STEP: Final = ["op", "_cdc_id", "before", "after", "changed_us", "step", "next_us", "source"]
_MERGED: Final = ["op", "_cdc_id", "after"]
_MOST_BYTES_HERE: Final = 64 << 20
"""The limit for changes in this process: Spark sends them to a task, which may have 128 MiB."""
_BOUNDS: Final = type_text(KEPT_SCHEMA["bounds"].dataType)
"""All its fields are nullable: Arrow refuses a null struct whose fields are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageColumns:
    """Columns of a row's image: the table's (`names`), the static ones among them (`statics`), and the mirror's own."""

    names: Sequence[str]
    statics: Sequence[str]
    own: Sequence[str]

    def texts(self) -> tuple[str, str]:
        """The column `image` as two texts, of its cells and of its static columns; see `content_text`."""
        cells = [each for each in self.names if each not in self.statics]
        return content_text(cells), content_text(self.statics)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChanges:
    """The changes of rows in a micro-batch.

    `steps`: `op` (insert, update, delete), `_cdc_id`, `before`, `after`, `changed_us`, `step` (order within the row,
    from FIRST_STEP), `next_us` (when the row's next step is), `source` (RECORD_SOURCE of the record that made the
    change; null if there is none, because the row expired or was truncated).
    `merged`: `op` (`touch` if only the times differ), `_cdc_id`, `after` of the rows that differ from the mirror's.
    `results`: `op` and `expires_at` of all rows of the touched Cassandra partitions.
    `ids`, `step_ids`: the identities in `merged` and in `steps`, if these are in this process.
    """

    steps: DataFrame
    merged: DataFrame
    results: DataFrame | pa.Table
    ids: Sequence[str] | None = None
    step_ids: Sequence[str] | None = None

    def counts_and_soonest(self) -> tuple[dict[str, int], int | None]:
        """Counts of changed rows by `op`, and the time when the first row expires: see `mirror_rows`."""
        if isinstance(self.results, DataFrame):
            return counts_and_soonest(self.results)
        soonest: int | None = pc.min(self.results["expires_at"]).as_py()
        return counts_of(Counter(self.results["op"].to_pylist())), soonest


def row_changes(images: DataFrame, rules: ChainRules, columns: ImageColumns, *, here: bool) -> RowChanges:
    """The changes of complete Cassandra partitions, by their images (IMAGE_COLUMNS).

    `here`: the images are few, and one Spark job reads them into this process.
    """
    if here:
        found = images.toArrow()
        by_owner = found.take(pc.sort_indices(found["owner"]))
        changes = chained_table(by_owner, rules, columns.statics)
        if changes.nbytes <= _MOST_BYTES_HERE:
            return _changes_here(images.sparkSession, changes)
    divided = images.repartition("owner").sortWithinPartitions("owner")
    told = divided.mapInArrow(chain_batches(rules, columns.statics), _told(images.schema)).localCheckpoint()
    results = told.where("NOT is_step")
    return RowChanges(
        steps=told.where("is_step").select(*_STEP),
        merged=results.where(F.col("op") != Op.SAME.value).select(*_MERGED),
        results=results,
    )


def _changes_here(session: SparkSession, changes: pa.Table) -> RowChanges:
    steps, results = changes.filter(changes["is_step"]), changes.filter(pc.invert(changes["is_step"]))
    merged = results.filter(pc.not_equal(results["op"], Op.SAME.value))
    return RowChanges(
        steps=local_frame(session, steps.select(_STEP)),
        merged=local_frame(session, merged.select(_MERGED)),
        results=results,
        ids=merged["_cdc_id"].to_pylist(),
        step_ids=pc.unique(steps["_cdc_id"]).to_pylist(),
    )


def _told(images: StructType) -> StructType:
    """The schema of `chained_table`'s result for such images."""
    image, source = images["image"].dataType, images["source"].dataType
    types: dict[str, DataType] = {
        "is_step": BooleanType(),
        "op": StringType(),
        "_cdc_id": StringType(),
        "before": image,
        "after": image,
        "changed_us": LongType(),
        "step": IntegerType(),
        "next_us": LongType(),
        "source": source,
        "expires_at": LongType(),
    }
    return StructType([StructField(name, each) for name, each in types.items()])


def row_images(rows: DataFrame, kind: SaidKind, columns: ImageColumns, changed_us: str) -> DataFrame:
    """Images of the mirror's rows, or of the folded rows: `_cdc_id`, `owner`, and `image` (null: the row is gone).

    Folded rows also have `key_version`.

    `changed_us`: an expression of SQL.
    """
    cells, statics = columns.texts()
    given = {
        "kind": f"'{kind.value}'",
        "id": "_cdc_id",
        "is_row": "image IS NOT NULL",
        "cells": cells,
        "statics": statics,
        "changed_us": changed_us,
        "source": f"cast(NULL AS {RECORD_SOURCE})",
    }
    return _images(rows, given | ({"key_version": "key_version"} if kind is SaidKind.AFTER else {}))


def record_images(
    raw: DataFrame, schemas: TopicSchemas, numbers: Numbers, columns: ImageColumns, time_zone: str
) -> DataFrame:
    """The images from a micro-batch's records: of rows, of static columns, and of deletions of many rows.

    `time_zone`: the zone of timestamps in owners (`spark_bridge.rows.folding.all_records`).
    """
    key, value = key_decoder(schemas, numbers), value_decoder(schemas, numbers)
    place = F.expr(message_id_of("at"))
    tried = all_records(raw, schemas, time_zone).withColumns(
        {
            "k": key.try_decode(F.col("key"), F.col("key_version")),
            "v": value.try_decode(F.col("value"), F.col("schema_version")),
        }
    )
    checked = tried.withColumns(
        {
            "k": key.checked(F.col("k"), F.col("key"), "key", place, F.col("key_version")),
            "v": value.checked(F.col("v"), F.col("value"), "value", place, F.col("schema_version")),
        }
    )
    finished = with_numbers(checked, {"k": key, "v": value})
    own = {
        "_cdc_id": "hex(key)",
        "_cdc_owner": "owner",
        "_cdc_writetime": "at.writetime",
        "_cdc_expires_at": "expires_at",
    }
    fields = {name: field("k" if name in key.names else "v", name) for name in columns.names}
    image = struct({**fields, **{name: own[name] for name in columns.own}})
    imaged = finished.withColumn("image", F.expr(f"CASE WHEN v IS NOT NULL OR scope = '{STATIC}' THEN {image} END"))
    return _images(imaged, _of_records(columns))


def _of_records(columns: ImageColumns) -> dict[str, str]:
    """IMAGE_COLUMNS of records, without `owner` and `image`."""
    cells, statics = columns.texts()
    is_row = f"(v IS NOT NULL AND scope = '{ROW}')"
    # A record without a write time counts from its publication, because a version must have a beginning.
    written_us = "coalesce(at.writetime, published_us)"
    return {
        "kind": "scope",
        "id": f"CASE WHEN scope = '{ROW}' THEN hex(key) ELSE '' END",
        "is_row": is_row,
        "clock_us": "unix_micros(at.clock)",
        "ledger": "at.position.ledger",
        "entry": "at.position.entry",
        "batch_index": "at.position.`index`",
        "cells": f"CASE WHEN {is_row} THEN {cells} END",
        "statics": f"CASE WHEN image IS NOT NULL AND scope IN ('{ROW}', '{STATIC}') THEN {statics} END",
        "changed_us": f"CASE WHEN v IS NOT NULL THEN {written_us} ELSE coalesce(deletion_time, {written_us}) END",
        "bounds": f"cast(CASE WHEN scope = '{RANGE}' THEN bounds END AS {_BOUNDS})",
        "key_version": "key_version",
        "source": "source",
    }


def _images(rows: DataFrame, given: Mapping[str, str]) -> DataFrame:
    """IMAGE_COLUMNS: `owner` and `image` of `rows`, and the expressions `given`; all others are null."""
    types = {"clock_us": "bigint", "ledger": "bigint", "entry": "bigint", "batch_index": "int", "bounds": _BOUNDS}
    types |= {"key_version": "bigint"}
    nothing = {name: f"cast(NULL AS {each})" for name, each in types.items()}
    all_given = {**nothing, "owner": "owner", "image": "image", **given}
    return selected(rows, {each: all_given[each] for each in IMAGE_COLUMNS})
