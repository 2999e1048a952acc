"""The rows of the Cassandra partitions that a micro-batch of a mirror touches: as they are now, and as they were.

Only these partitions are folded again, from the records that the mirror keeps and those of the micro-batch: in this
process if they are few, else by Spark. For a new table, and if all rows are judged again, these are all partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.types import DataType

from spark_bridge.jobs.batch_content import MOST_HERE
from spark_bridge.jobs.epoch_plan import EpochPlan
from spark_bridge.jobs.lake_table import is_listed, key_is_listed
from spark_bridge.jobs.mirror_rows import (
    EXPIRES_AT,
    ID,
    KEY_FORM,
    OWN,
    OWNER,
    WRITETIME,
    change_op,
    content_text,
    identified,
    whole,
)
from spark_bridge.jobs.mirror_state import MirrorTables
from spark_bridge.jobs.row_steps import ImageColumns, RowChanges, record_images, row_changes, row_images
from spark_bridge.jobs.small_merge import (
    IS_ROW,
    gone_ids,
    local_frame,
    local_owners,
    merge_folded,
    owners_here,
    shown_ids,
)
from spark_bridge.rows.conformed import conformed
from spark_bridge.rows.folding import folded as folded_rows
from spark_bridge.rows.folding import folded_here
from spark_bridge.rows.key_columns import KeyColumns
from spark_bridge.rows.range_scope import RangeScope
from spark_bridge.rows.row_chain import ChainRules, SaidKind
from spark_bridge.rows.sql_columns import selected
from spark_bridge.rows.table_rows import table_columns, table_rows
from spark_bridge.spark_line import HAS_DATA_SOURCES
from spark_bridge.topics.options import BridgeOptions

__all__ = ["Folded", "TouchedRows"]


class Folded(NamedTuple):
    """The folded keys of some Cassandra partitions (`judged`, by FOLDED_SCHEMA), and these partitions (`owners`).

    `here`: the content of `judged` in this process, if it is small.
    """

    judged: DataFrame
    owners: DataFrame
    here: pa.Table | None


class _Touched(NamedTuple):
    """The touched partitions. `owners` is for a left_semi join with the tables: it may have an owner several times.

    `is_few`: the partitions may be folded in this process. `names`: the owners, each once, if they are known.
    """

    owners: DataFrame
    is_few: bool = False
    names: Sequence[str] | None = None


class TouchedRows:
    """The touched rows of one micro-batch.

    `static_columns`: as the user has named them; None: as the records name them.
    """

    def __init__(
        self, tables: MirrorTables, options: BridgeOptions, plan: EpochPlan, static_columns: tuple[str, ...] | None
    ) -> None:
        self._tables = tables
        self._options = options
        self._plan = plan
        self._static_columns = static_columns

    def folded(self, records: DataFrame) -> Folded:
        """Fold all keys of the partitions that the records touch, or that have expired rows."""
        touched = self._touched_owners(records)
        rules = self._plan.schemas, self._static_columns, self._plan.applied.clock_s, self._plan.clearings
        looks_up = touched.names is None and self._plan.is_sparse(self._plan.content.records)
        kept = partial(self._kept_of, records.sparkSession) if looks_up else self._kept(touched)
        here = folded_here(records, kept, *rules) if touched.is_few else None
        if here is None:
            # Each file gets a range of owners, so that a later look-up of an owner reads few files.
            judged = folded_rows(records, self._kept(touched), *rules, in_ranges=self._plan.has_many_records)
            return Folded(judged, touched.owners, None)
        session, names = records.sparkSession, pc.unique(here["owner"]).to_pylist()
        return Folded(local_frame(session, here), local_owners(session, names), here)

    def merge_here(self, folded: Folded) -> Mapping[str, int]:
        """Merge the keys that are folded in this process into the mirror's rows, which are not read first.

        Return counts.
        """
        here, judged = folded.here, folded.judged
        assert here is not None  # the caller checks it
        gone = gone_ids(here, has_clustering=bool(KeyColumns.of(self._plan.schemas).clustering))
        after = table_rows(identified(judged), self._plan.schemas, self._options.numbers, OWN, shows=IS_ROW)
        if self._options.numbers == "string":
            after = after.localCheckpoint()  # Python functions write numbers out: once, not in each pass of the MERGE
        content, times = table_columns(self._plan.schemas), (WRITETIME, EXPIRES_AT)
        on = self.merge_condition(folded, [*gone, *shown_ids(here)])
        return merge_folded(self._tables.rows, after, gone, ID, content, times, on)

    def merge_condition(self, folded: Folded, ids: Sequence[str]) -> str:
        """The condition of a `MERGE` of these identities into the mirror's rows.

        For large tables it lists the identities, and the Cassandra partitions, by which the files are sorted.
        """
        if not self._plan.is_large:
            return key_is_listed(ID, (), is_sparse=False)
        owners = self._sparse_owners(folded)
        same = key_is_listed(ID, ids, is_sparse=bool(owners))
        # Without clustering columns, identity and owner are the same. With an unknown time zone, the owner of a stored
        # row may differ from ours, and the row must not be missed.
        has_owners = KeyColumns.of(self._plan.schemas).clustering and self._plan.applied.is_zone_known
        by_owner = is_listed(f"t.{OWNER}", owners, is_sparse=True) if has_owners else None
        return same if by_owner is None else f"{same} AND {by_owner}"

    def compared(self, folded: Folded) -> DataFrame:
        """Rows of the touched partitions: `op`, `_cdc_id`, `after` (a struct; null if unchanged), `expires_at`."""
        results = self._results(folded.judged)
        content = content_text(table_columns(self._plan.schemas))
        now = results.withColumn("new", F.expr(content))
        before = self._before(folded, results.schema["image"].dataType)
        if before is None:
            nothing = {"before": F.lit(None).cast(results.schema["image"].dataType), "old": F.lit(None).cast("string")}
            compared = now.withColumns(nothing)
        else:
            known = selected(before, {ID: ID, "before": "image", "old": content})
            compared = now.select(ID, "image", "new").join(known, ID, "full_outer")
        compared = compared.withColumnRenamed("image", "after").where("before IS NOT NULL OR after IS NOT NULL")
        told = selected(compared, {"op": change_op(), ID: ID, "after": "after", "expires_at": f"after.{EXPIRES_AT}"})
        return told.withColumn("after", F.expr("CASE WHEN op <> 'same' THEN after END"))

    def row_changes(self, raw: DataFrame, folded: Folded) -> RowChanges:
        """How the rows changed within the micro-batch, step by step."""
        names = table_columns(self._plan.schemas)
        statics = [each for each in names if each in (self._static_columns or self._plan.statics)]
        columns = ImageColumns(names=names, statics=statics, own=OWN)
        last_us = (self._plan.content.newest_publish_s or self._plan.applied.clock_s) * 1_000_000
        gone_us = max(each.time_ms for each in self._plan.clearings) * 1_000 if self._plan.judges_all else last_us
        removed_us = f"greatest(removed_us, {gone_us}L)" if self._plan.judges_all else "removed_us"
        known_us = f"CASE WHEN image IS NULL THEN {removed_us} ELSE image.{WRITETIME} END"
        results = self._results(folded.judged)
        images = row_images(results, SaidKind.AFTER, columns, f"coalesce({known_us}, {last_us}L)")
        before = self._before(folded, results.schema["image"].dataType)
        if before is not None:
            images = images.union(row_images(before, SaidKind.BEFORE, columns, "cast(NULL AS bigint)"))
        # Records that are read again were changes before. Without their images, only differences from the rows count.
        if not (self._plan.applied.begins_anew or self._plan.applied.repeated_until is not None):
            zone = self._plan.applied.time_zone
            images = images.union(record_images(raw, self._plan.schemas, self._options.numbers, columns, zone))
        rules = ChainRules(
            has_clustering=bool(KeyColumns.of(self._plan.schemas).clustering),
            covers=RangeScope([(each.version, each.key) for each in self._plan.schemas.versions]),
            key_version=self._plan.schemas.newest.version,
            gone_us=gone_us,
        )
        return row_changes(images, rules, columns, here=folded.here is not None)

    def _touched_owners(self, records: DataFrame) -> _Touched:
        touched = records.select("owner")
        rows = self._tables.rows.read()
        if self._plan.is_new_table or self._plan.judges_all:
            all_owners = touched if rows is None else touched.union(rows.select(F.col(OWNER).alias("owner")))
            return _Touched(all_owners.distinct())
        is_few = HAS_DATA_SOURCES and self._plan.content.records <= MOST_HERE
        if rows is not None and self._plan.has_expired:
            passed = rows.where(F.col(EXPIRES_AT) <= self._plan.applied.clock_s)
            touched = touched.union(passed.select(F.col(OWNER).alias("owner")))
            names = owners_here(touched) if is_few else None
            if names is None:
                return _Touched(touched.distinct())
            return _Touched(local_owners(touched.sparkSession, names), is_few=True, names=names)
        if not self._plan.has_many_records:
            # without the broadcast, Spark would shuffle even large tables
            return _Touched(F.broadcast(touched), is_few=is_few)
        return _Touched(touched.distinct())

    def _kept(self, touched: _Touched) -> DataFrame | None:
        """The kept records of the touched partitions."""
        if self._plan.is_new_table:
            return None
        is_sparse = touched.names is not None and self._plan.is_sparse(len(touched.names))
        kept = self._tables.read_kept(self._plan.applied, touched.names if is_sparse else None)
        return None if kept is None else kept.join(touched.owners, "owner", "left_semi")

    def _kept_of(self, session: SparkSession, owners: Sequence[str]) -> DataFrame | None:
        """The kept records of these partitions."""
        return self._kept(_Touched(local_owners(session, owners), names=owners))

    def _sparse_owners(self, folded: Folded) -> list[str]:
        """The touched partitions if they are to be looked up in the mirror's rows, else an empty list."""
        if not self._tables.rows.finds_pages:
            return []
        names = [] if folded.here is None else pc.unique(folded.here["owner"]).to_pylist()
        return names if self._plan.is_sparse(len(names)) else []

    def _results(self, judged: DataFrame) -> DataFrame:
        """The folded rows: `_cdc_id`, `owner`, `image` (the table's columns and OWN; null: row gone), `removed_us`,
        `key_version`.
        """
        after = table_rows(identified(judged), self._plan.schemas, self._options.numbers, (*OWN, KEY_FORM))
        image = whole([each for each in after.columns if each != KEY_FORM])
        now = selected(after, {ID: ID, "owner": OWNER, "image": image, "key_version": KEY_FORM})
        told = {each: each for each in ("owner", "removed_us", "key_version")}
        gone = selected(judged.where("is_gone"), {ID: "hex(key)", **told})
        return now.unionByName(gone, allowMissingColumns=True)

    def _before(self, folded: Folded, image: DataType) -> DataFrame | None:
        """The mirror's rows of the touched partitions: `_cdc_id`, `owner`, and `image` (with the type `image`)."""
        rows = self._tables.rows.read()
        if rows is None:
            return None
        listed = is_listed(OWNER, self._sparse_owners(folded), is_sparse=True)
        rows = rows if listed is None else rows.where(listed)
        touched = rows.join(folded.owners.select(F.col("owner").alias(OWNER)), OWNER, "left_semi")
        found = selected(touched, {ID: ID, "owner": OWNER, "image": whole(rows.columns)})
        known = conformed("image", rows.schema, image)
        return found if known == "image" else found.withColumn("image", F.expr(known))
