"""Merges a few folded records into a mirror's rows by one `MERGE`, without reading the rows first.

The fold tells which rows exist and which are gone. So the `MERGE` itself compares each row with the mirror's, and
counts its changes. A change log and a history need the rows as they were before, so with them a micro-batch reads the
rows of the partitions that it touches (spark_bridge.jobs.touched_rows).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)
from pyspark.sql.pandas.types import from_arrow_schema

from spark_bridge.jobs.lake_table import MERGE_OP, LakeTable, update_and_insert
from spark_bridge.rows.row_chain import STATIC_ID
from spark_bridge.rows.sql_columns import quoted, selected

__all__ = [
    "IS_ROW",
    "gone_ids",
    "local_frame",
    "local_owners",
    "merge_folded",
    "owners_here",
    "shown_ids",
    "soonest_expiry",
]

_MOST_OWNERS_HERE: Final = 20_000
IS_ROW: Final = "_cdc_is_row"
"""The column of `merge_folded`'s input that is true for a row of the table."""


def local_frame(session: SparkSession, table: pa.Table) -> DataFrame:
    """A DataFrame of rows in this process. Needs PySpark 4.0.

    The active session stays the same, unlike with `createDataFrame` alone.
    """
    if not len(table):
        table = table.schema.empty_table()  # PySpark refuses columns without chunks, which a filter may leave
    active = SparkSession._activeSession  # noqa: SLF001  (what `createDataFrame` sets)
    try:
        return session.createDataFrame(table, from_arrow_schema(table.schema))
    finally:
        SparkSession._activeSession = active  # noqa: SLF001


def local_owners(session: SparkSession, owners: Sequence[str]) -> DataFrame:
    """Cassandra partitions in a column `owner`, to be broadcast."""
    return F.broadcast(local_frame(session, pa.table({"owner": pa.array(owners, pa.string())})))


def owners_here(owners: DataFrame) -> list[str] | None:
    """Cassandra partitions (`owner`), each once, read by one Spark job; None if they are too many for the driver."""
    found = owners.limit(_MOST_OWNERS_HERE + 1).toArrow()
    return None if len(found) > _MOST_OWNERS_HERE else pc.unique(found["owner"]).to_pylist()


def gone_ids(folded: pa.Table, *, has_clustering: bool) -> list[str]:
    """Identities of folded keys and partitions (FOLDED_SCHEMA) that the table must not have."""
    gone = [key.hex().upper() for key in folded.filter(folded["is_gone"])["key"].to_pylist()]
    if has_clustering:
        owners = set(folded["owner"].to_pylist())
        owners -= set(folded.filter(folded["is_static_only"])["owner"].to_pylist())
        gone += [STATIC_ID + owner for owner in sorted(owners)]
    return gone


def shown_ids(folded: pa.Table) -> list[str]:
    """Identities of folded keys and partitions (FOLDED_SCHEMA) that the table may have."""
    rows = folded.filter(folded["is_alive"])["key"].to_pylist()
    statics = folded.filter(pc.and_not(folded["is_static_only"], folded["is_alive"]))["owner"].to_pylist()
    return [*[key.hex().upper() for key in rows], *[STATIC_ID + owner for owner in statics]]


def soonest_expiry(folded: pa.Table) -> int | None:
    """The time in seconds when the first row, or column of a row, expires; None: nothing expires."""
    is_shown = pc.or_(folded["is_alive"], folded["is_static_only"])
    soonest: int | None = pc.min(folded.filter(is_shown)["next_expiry_s"]).as_py()
    return soonest


def merge_folded(
    table: LakeTable,
    rows: DataFrame,
    gone: Sequence[str],
    identity: str,
    content: Sequence[str],
    times: Sequence[str],
    on: str,
) -> Mapping[str, int]:
    """Merge `rows` into the table: write those with IS_ROW, and delete the others and the `gone` identities.

    `content`, `times`: columns that are compared as text, and as numbers. `on`: the condition of the `MERGE`. Return
    counts of changed rows: `insert`, `update`, `delete`.
    """
    columns = [each for each in rows.columns if each != IS_ROW]
    op = f"CASE WHEN {IS_ROW} THEN 'keep' ELSE 'delete' END"
    source = selected(rows, {**{each: quoted(each) for each in columns}, MERGE_OP: op})
    if gone:
        deleted = pa.table({MERGE_OP: ["delete"] * len(gone), identity: list(gone)})
        source = source.unionByName(local_frame(rows.sparkSession, deleted), allowMissingColumns=True)
    table.ensure(source.drop(MERGE_OP))
    update, insert = update_and_insert(columns)
    text = {at: f"to_json(struct({', '.join(f'{at}.{quoted(each)}' for each in content)}))" for at in "ts"}
    is_same = " AND ".join(
        [f"{text['t']} = {text['s']}", *[f"t.{quoted(each)} <=> s.{quoted(each)}" for each in times]]
    )
    return table.merge(
        source,
        on,
        f"WHEN MATCHED AND s.{MERGE_OP} = 'delete' THEN DELETE",
        f"WHEN MATCHED AND NOT ({is_same}) THEN {update}",
        f"WHEN NOT MATCHED AND s.{MERGE_OP} <> 'delete' THEN {insert}",
    )
