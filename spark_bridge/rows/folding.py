"""The folding rules: from all records of a data topic to the table's rows.

The newest record of a key wins (spark_bridge.rows.record_places: by position within a topic partition, by the time of
publication between two of them); a marker removes the earlier rows of its scope; the newest record of a
Cassandra partition that has a value gives its static columns; a row whose data has expired is gone, and so is
a column by itself (`columns_expire_at`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from schemas import record_properties as names
from spark_bridge.rows.key_columns import KeyColumns, comparable_key, decoded_ranges, with_key, with_owner
from spark_bridge.rows.range_scope import covers
from spark_bridge.rows.record_places import comes_later, message_id_of, newest_of, record_place
from spark_bridge.topics.topic_schemas import TopicSchemas

__all__ = [
    "all_records",
    "judged_records",
    "merged_records",
    "newest_records",
    "shown_rows",
]

_Removal = Callable[[Column], Column]
"""From where a record stands to whether it was removed later."""

_ROW, _STATIC, _PARTITION, _RANGE = "row", "static", "partition", "range"
_SCOPES: Final = {
    "row_deletion": _ROW,
    "static_row": _STATIC,
    "partition_deletion": _PARTITION,
    "range_deletion": _RANGE,
}
_BOUNDS: Final = (
    names.RANGE_START,
    names.RANGE_END,
    names.RANGE_START_INCLUSIVE,
    names.RANGE_END_INCLUSIVE,
    names.RANGE_REVERSED,
)


def newest_records(raw: DataFrame, schemas: TopicSchemas) -> DataFrame:
    """What the rules need of all records of a topic, or of some of them: one row a key, scope, range and topic partition.

    `owner` is the Cassandra partition as text. These rows, of one read or of several, merge by `merged_records`.
    """
    any_record = F.coalesce("valued.at", "deleted.at")
    return with_owner(_newest_per_key(_records(raw, schemas)), schemas, message_id_of(any_record))


def all_records(raw: DataFrame, schemas: TopicSchemas) -> DataFrame:
    """One row a record, with what the rules look at: `scope` is `row`, `static`, `partition` or `range`."""
    records = _records(raw, schemas).withColumn("key_version", F.col("schema_version"))
    return with_owner(records, schemas, message_id_of(F.col("at")))


def merged_records(newest: DataFrame) -> DataFrame:
    """One row a key, scope and range, of what `newest_records` gave and of what this gave before."""
    return newest.groupBy("owner", "key", "scope", "bounds").agg(
        F.max("key_version").alias("key_version"),
        newest_of(F.col("valued")).alias("valued"),
        newest_of(F.col("deleted")).alias("deleted"),
        newest_of(F.when(F.col("lasting").isNotNull(), F.struct(F.col("lasting").alias("at"))))["at"].alias("lasting"),
        F.max("passing").alias("passing"),
        newest_of(F.when(F.col("valued").isNotNull(), F.struct("valued.at", "going")))["going"].alias("going"),
        _named_last(_newest_place()).alias("static_columns"),
    )


def judged_records(
    newest: DataFrame, schemas: TopicSchemas, static_names: Sequence[str] | None, now: Column | None = None
) -> DataFrame:
    """Each record with the rules applied.

    `is_alive`: it is a row of the table. `is_removed`: it was a row and a later deletion took it, for good. `is_expired`:
    it was one and its time is over. `removed_us`: when it went, by the deletion's time or its expiry. `is_wiped`: a
    partition deletion came later. `static_source` (value, version, writetime): what gives the partition's static columns,
    whose names are `static_names` (None: as the records say); it is of the record with `is_static_source`.
    `is_static_only`: it stands for a partition that has no rows but static columns. `now` is seconds since the epoch.
    """
    columns = KeyColumns.of(schemas)
    clock = F.unix_seconds(F.current_timestamp()) if now is None else now
    if not columns.clustering:
        return _judged(newest, _removed_by_key, _row_deletion_us(), clock).withColumns(_no_statics())
    marked = _with_markers(newest, static_names)
    scoped = marked.withColumns({"ranges": decoded_ranges(schemas), "row": comparable_key(schemas)})

    def removed(at: Column) -> Column:
        return _removed_by_key(at) | _is_later(F.col("wiped"), at) | _removed_by_range(at, columns)

    ranges = F.transform("ranges", lambda each: each.getField("deleted").getField("deletion_time"))
    removed_us = F.greatest(_row_deletion_us(), F.col("wiped.deletion_time"), F.array_max(ranges))
    return _with_statics(_judged(scoped, removed, removed_us, clock))


def shown_rows(judged: DataFrame) -> DataFrame:
    """The rows of the table, to be decoded: `key`, `key_version`, `value`, `value_version`, `is_alive`, `static_names`,
    `static_value`, `static_version`; and `owner`, `place` (the value's message id), `writetime_us`, `expires_at` (when
    the row or one of its columns goes next; null: all of it stays), `gone_columns` (values that are over).

    Where `is_alive` is false the partition has no row, but it may have static columns.
    """
    written = F.greatest(F.when(F.col("is_alive"), F.col("valued.at.writetime")), F.col("static_source.writetime"))
    passes = F.when(F.col("is_alive") & ~F.col("lasts"), F.col("latest_expiry"))
    written = F.greatest(written, F.when(F.col("is_alive"), F.col("last_gone_s") * 1_000_000))
    next_column = F.when(F.col("is_alive"), F.col("next_gone_s"))
    return judged.where(F.col("is_alive") | F.col("is_static_only")).select(
        "key",
        "key_version",
        F.col("valued.value").alias("value"),
        F.col("valued.schema_version").alias("value_version"),
        "is_alive",
        "static_names",
        F.col("static_source.value").alias("static_value"),
        F.col("static_source.version").alias("static_version"),
        "owner",
        message_id_of(F.col("valued.at")).alias("place"),
        written.alias("writetime_us"),
        F.least(passes, next_column).alias("expires_at"),
        "gone_columns",
    )


def _records(raw: DataFrame, schemas: TopicSchemas) -> DataFrame:
    columns = KeyColumns.of(schemas)
    scope = F.lit(_ROW)
    if columns.clustering:
        raw = with_key(raw, "decoded_key", schemas, F.col("schema_version"), F.col("message_id"))
        scope = _scope(F.col("decoded_key").getField(columns.clustering[0][0]).isNotNull())
    said = F.col("properties")
    bounds = F.struct(*[said[name].alias(name) for name in _BOUNDS], F.col("schema_version"))
    return raw.select(
        "key",
        "value",
        "schema_version",
        scope.alias("scope"),
        record_place().alias("at"),
        F.unix_micros("publish_time").alias("published_us"),
        said[names.EXPIRES_AT].cast("bigint").alias("expires_at"),
        said[names.COLUMNS_EXPIRE_AT].alias("columns_expire_at"),
        said[names.CELLS_EXPIRE_AT].cast("bigint").alias("cells_expire_at"),
        F.coalesce(said[names.ROW_MARKER] == "expires", F.lit(False)).alias("is_sure"),
        said[names.DELETION_TIME].cast("bigint").alias("deletion_time"),
        said[names.STATIC_COLUMNS].alias("static_columns"),
        F.when(said[names.KIND] == "range_deletion", bounds).alias("bounds"),
    )


def _scope(has_row: Column) -> Column:
    """What a record speaks about: a row, a partition's static row, all rows or a range of rows of a partition."""
    kind = F.col("properties")[names.KIND]
    # DataStax's records have no kind: a null value without a clustering key deletes the partition.
    no_row = F.when(kind.isNull() & F.col("value").isNull(), _PARTITION).otherwise(_STATIC)
    scope = F.when(has_row, _ROW).otherwise(no_row)
    for name, value in _SCOPES.items():
        scope = F.when(kind == name, F.lit(value)).otherwise(scope)
    return scope


def _newest_per_key(records: DataFrame) -> DataFrame:
    """One row for a key, scope and topic partition: its newest value, its newest deletion, and what its expiry needs."""
    position, is_passing = F.col("at.position"), F.col("expires_at").isNotNull()
    has_value = F.col("value").isNotNull()
    valued = F.struct("value", "schema_version", "at", "expires_at", F.lit(False).alias("is_removed"))
    # What may or may not go with its last cell tells nothing of what came before.
    lasting = has_value & ~is_passing & F.col("cells_expire_at").isNull()
    going = F.struct("columns_expire_at", "cells_expire_at", "is_sure")
    of_kind = {"valued": has_value, "deleted": ~has_value, "lasting": lasting}
    newest = records.groupBy("key", "scope", "bounds", F.col("at.partition").alias("partition")).agg(
        F.max("schema_version").alias("key_version"),
        F.max_by(F.when(has_value, valued), F.when(has_value, position)).alias("valued"),
        F.max(F.when(~has_value, F.struct("at", "deletion_time"))).alias("deleted"),
        F.max(F.when(of_kind["lasting"], F.struct("at"))).alias("lasting"),
        F.max(F.when(has_value & is_passing, F.struct("expires_at", "at"))).alias("passing"),
        F.max_by(F.when(has_value, going), F.when(has_value, position)).alias("going"),
        _named_last(F.struct("at.clock", position)).alias("static_columns"),
        *[F.max(F.when(each, F.col("at.clock"))).alias(f"{name}_clock") for name, each in of_kind.items()],
    )
    # what follows in the same topic partition is no earlier, whatever the clock of its producer says
    clocked = {name: F.col(name).withField("at.clock", F.col(f"{name}_clock")) for name in of_kind}
    known = newest.withColumns(clocked).withColumn("lasting", F.col("lasting.at"))
    return known.drop("partition", *[f"{name}_clock" for name in of_kind])


def _named_last(place: Column) -> Column:
    """Aggregate: the list of static columns that stands last, for ALTER TABLE makes it longer or shorter."""
    names = F.col("static_columns")
    # in a struct, for a place that is null comes before all others, but counts
    return F.max_by(names, F.when(names.isNotNull(), F.struct(place)))


def _newest_place() -> Column:
    """Where the newest record of a key and scope stands: what it names is newer than what earlier records have named."""
    known = [
        F.when(F.col(at).isNotNull(), F.struct(f"{at}.clock", f"{at}.position")) for at in ("valued.at", "deleted.at")
    ]
    return F.greatest(*known)


def _judged(newest: DataFrame, removed: _Removal, removed_us: Column, now: Column) -> DataFrame:
    """Add `is_alive`, `is_removed`, `removed_us`, and what tells when a row and its columns expire.

    A row has expired when its newest record says so for sure (`row_marker`); otherwise when everything written since its last
    removal had a TTL and the latest of these is over.
    """
    is_row = (F.col("scope") == _ROW) & F.col("valued").isNotNull()
    passing = F.when(~removed(F.col("passing.at")), F.col("passing.expires_at"))
    is_sure = F.coalesce("going.is_sure", F.lit(False))
    latest = F.coalesce(passing, F.col("valued.expires_at"))
    latest = F.when(latest.isNotNull(), F.greatest(latest, F.col("going.cells_expire_at")))
    seconds = F.from_json("going.columns_expire_at", "map<string, bigint>")
    gone = F.map_filter(seconds, lambda _, second: second <= now)
    told = newest.withColumns({
        "is_removed": is_row & (F.col("valued.is_removed") | removed(F.col("valued.at"))),
        "lasts": F.col("lasting").isNotNull() & ~removed(F.col("lasting")) & ~is_sure,
        "passing_counts": ~removed(F.col("passing.at")),
        "latest_expiry": F.when(is_sure, F.col("valued.expires_at")).otherwise(latest),
        "gone_columns": F.coalesce(F.map_keys(gone), F.array().cast("array<string>")),
        "last_gone_s": F.array_max(F.map_values(gone)),
        "next_gone_s": F.array_min(F.map_values(F.map_filter(seconds, lambda _, second: second > now))),
    })  # fmt: skip
    is_over = ~F.col("lasts") & F.coalesce(F.col("latest_expiry") <= now, F.lit(False))
    expired_us = F.when(is_over & ~F.col("is_removed"), F.col("latest_expiry") * 1_000_000)
    return told.withColumns({
        "is_alive": is_row & ~F.col("is_removed") & ~is_over,
        "is_expired": is_row & ~F.col("is_removed") & is_over,
        "removed_us": F.coalesce(expired_us, removed_us),
    })  # fmt: skip


def _row_deletion_us() -> Column:
    return F.coalesce(F.col("deleted.deletion_time"), F.col("deleted.at.writetime"))


def _no_statics() -> dict[str, Column]:
    source = F.lit(None).cast("struct<value: binary, version: bigint, writetime: bigint>")
    return {
        "static_names": F.array().cast("array<string>"),
        "static_source": source,
        "is_static_only": F.lit(False),
        "is_static_source": F.lit(False),
        "is_wiped": F.lit(False),
    }


def _removed_by_key(at: Column) -> Column:
    """True when a later record of the same key says that there is no row."""
    return F.coalesce(comes_later(F.col("deleted.at"), at), F.lit(False))


def _removed_by_range(at: Column, columns: KeyColumns) -> Column:
    """True when a later range deletion covers the row."""
    row = F.col("row")
    return F.exists(
        "ranges", lambda each: _is_later(each.getField("deleted"), at) & covers(row, each, columns.clustering)
    )


def _is_later(marker: Column, at: Column) -> Column:
    """True when the marker (`at` and `deletion_time`) came after a record of another key."""
    mine, theirs = marker.getField("at"), at
    in_partition = mine.getField("position") > theirs.getField("position")
    ahead, level = mine.getField("clock") > theirs.getField("clock"), mine.getField("clock") == theirs.getField("clock")
    by_clock = ahead | (level & (theirs.getField("writetime") <= marker.getField("deletion_time")))
    is_same = mine.getField("partition") == theirs.getField("partition")
    return F.coalesce(F.when(is_same, in_partition).otherwise(by_clock), F.lit(False))


def _with_markers(rows: DataFrame, static_names: Sequence[str] | None) -> DataFrame:
    """Add what is said about a whole partition: `wiped` (its newest deletion), `ranges`, `static_names`."""
    partition = Window.partitionBy("owner")
    if static_names is None:
        given = F.from_json(_named_last(_newest_place()).over(partition), "array<string>")
    else:
        given = F.array(*map(F.lit, static_names))
    nothing = F.array().cast("array<string>")
    return rows.select(
        "*",
        F.max(F.when(F.col("scope") == _PARTITION, F.col("deleted"))).over(partition).alias("wiped"),
        F.collect_list(F.when(F.col("scope") == _RANGE, F.struct("bounds", "deleted"))).over(partition).alias("ranges"),
        F.coalesce(given, nothing).alias("static_names"),
    )


def _with_statics(rows: DataFrame) -> DataFrame:
    """Add what gives a partition's static columns, and which record stands for a partition without rows."""
    partition = Window.partitionBy("owner")
    has_statics = F.size("static_names") > 0
    speaks = F.col("scope").isin(_ROW, _STATIC) & has_statics
    cleared = (F.col("scope") == _STATIC) & F.coalesce(
        comes_later(F.col("deleted.at"), F.col("valued.at")), F.col("deleted").isNotNull()
    )
    at = F.when(cleared, F.col("deleted.at")).otherwise(F.col("valued.at"))
    is_wiped = at.isNotNull() & _is_later(F.col("wiped"), at)
    place = F.when(speaks & at.isNotNull() & ~is_wiped, F.struct(at["clock"], at["position"]))
    source = F.when(
        ~cleared,
        F.struct(
            F.col("valued.value").alias("value"),
            F.col("valued.schema_version").alias("version"),
            F.col("valued.at.writetime").alias("writetime"),
        ),
    )
    identity = F.struct("key", "scope", "bounds")
    known = rows.select(
        "*",
        F.max_by(source, place).over(partition).alias("static_source"),
        F.max("is_alive").over(partition).alias("has_rows"),
        (F.min(identity).over(partition) == identity).alias("is_first"),
        F.coalesce(place == F.max(place).over(partition), F.lit(False)).alias("is_static_source"),
        is_wiped.alias("is_wiped"),
    )
    is_static_only = ~F.col("has_rows") & F.col("is_first") & F.col("static_source").isNotNull()
    return known.withColumn("is_static_only", is_static_only)
