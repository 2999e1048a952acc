"""The rule of truncations and drops: which records they remove. Plain values, no Spark.

A truncation removes records of its life of the table, if they stand at or before its positions and were written before
it. It also removes a row without a write time (of a repair, an expiry, a backfill): if the row survived in Cassandra,
it is published again after the positions. It does not remove a deletion without a write time: that deletion may have
removed a row with a later write time.

A drop removes all records at or before its positions. Their write times do not count, because clients can set any.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from spark_bridge.topics.table_clearing import DROP, TableClearing

if TYPE_CHECKING:  # without PySpark this module can be imported, too
    from spark_bridge.rows.table_lives import TableLife

__all__ = ["clears", "of_life"]


def clears(
    clearing: TableClearing,
    partition: int,
    position: tuple[int, int, int],
    writetime_us: int | None,
    *,
    is_deletion: bool = False,
) -> bool:
    """Return True if a clearing removes a record of its table life. `is_deletion`: the record has no value.

    For the place of the record see `spark_bridge.rows.fold.Place`.
    """
    last = clearing.last_before(partition)
    if last is None or position[:2] > last:
        return False
    if clearing.kind == DROP:
        return True
    return not is_deletion if writetime_us is None else writetime_us < clearing.time_ms * 1_000


def of_life(clearings: Iterable[TableClearing], life: TableLife | None) -> tuple[TableClearing, ...]:
    """The clearings of one life of the table; empty for a life that no record has named."""
    if life is None:
        return ()
    return tuple(
        each
        for each in clearings
        if each.table_id == life.table_id
        and (None in (each.table_generation, life.generation) or each.table_generation == life.generation)
    )
