"""Where a record stands in its topic, and which of two records is the later one.

Within a topic partition the position tells. Ledgers of two topic partitions tell nothing of each other: between them the time of
publication tells, which counts as no earlier than that of any earlier record of the same key in the same topic partition
(another producer's clock may lag); of equal times the write time tells, and then the number of the topic partition. A key has
records in several topic partitions after their number was raised.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

__all__ = ["comes_later", "message_id_of", "newest_of", "record_place"]


def record_place() -> Column:
    """Where a record stands in its topic partition; `clock` orders it against other partitions, if there are any."""
    parts = F.split("message_id", ":")
    position = F.struct(
        parts[0].cast("bigint").alias("ledger"),
        parts[1].cast("bigint").alias("entry"),
        F.coalesce(F.get(parts, F.lit(3)).cast("int"), F.lit(-1)).alias("index"),
    )
    clock = F.when(F.col("partition") >= 0, F.col("publish_time"))
    return F.struct(position.alias("position"), F.col("partition"), clock.alias("clock"), F.col("writetime"))


def message_id_of(at: Column) -> Column:
    """Of what `record_place` gave."""
    position = at.getField("position")
    index = F.when(position.getField("index") >= 0, position.getField("index"))
    return F.concat_ws(":", position.getField("ledger"), position.getField("entry"), at.getField("partition"), index)


def comes_later(mine: Column, theirs: Column) -> Column:
    """True when the record at the one place is later than that at the other, of the same key; null where one is null."""
    is_same = mine.getField("partition") == theirs.getField("partition")
    in_partition = mine.getField("position") > theirs.getField("position")
    return F.when(is_same, in_partition).otherwise(_by_clock(mine) > _by_clock(theirs))


def newest_of(record: Column) -> Column:
    """Aggregate: of structs that each have their place as `at`, the one that comes last; nulls are left out.

    Each topic partition's records are compared among themselves first, so that the result is the same in whatever steps records
    are merged.
    """
    placed = F.struct(record.getField("at").getField("position").alias("position"), record.alias("record"))
    found = F.sort_array(F.collect_list(F.when(record.isNotNull(), placed)))

    def later(known: Column, each: Column) -> Column:
        old, new = known.getField("record").getField("at"), each.getField("record").getField("at")
        is_same = old.getField("partition") == new.getField("partition")
        clock = F.greatest(old.getField("clock"), new.getField("clock"))
        risen = each.withField("record", each.getField("record").withField("at", new.withField("clock", clock)))
        return F.when(is_same, risen).when(_by_clock(new) > _by_clock(old), each).otherwise(known)

    return F.aggregate(found, F.get(found, F.lit(0)), later).getField("record")


def _by_clock(at: Column) -> Column:
    # a record that does not know when it was written comes first
    writetime = F.coalesce(at.getField("writetime"), F.lit(-(1 << 63)))
    return F.struct(at.getField("clock"), writetime, at.getField("partition"))
