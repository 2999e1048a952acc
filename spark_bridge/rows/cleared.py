"""The rule of truncations and drops: which records they take.

A truncation takes the records of its life of the table that stand at or before its positions and were written before it. A row
without a write time (of a repair, an expiry, a backfill) goes, too: if it survived, it is published again behind the positions.
A deletion without one stays: it may have removed a row whose write time is later.
A drop takes all that stand at or before its positions, whatever write times clients have set. Plain values, no Spark.
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
    """Whether a clearing takes a record of its life; see `spark_bridge.rows.fold.Place`. `is_deletion`: it has no value."""
    last = clearing.last_before(partition)
    if last is None or position[:2] > last:
        return False
    if clearing.kind == DROP:
        return True
    return not is_deletion if writetime_us is None else writetime_us < clearing.time_ms * 1_000


def of_life(clearings: Iterable[TableClearing], life: TableLife | None) -> tuple[TableClearing, ...]:
    """Those of one life of the table; none of a life that no record has named."""
    if life is None:
        return ()
    return tuple(
        each
        for each in clearings
        if each.table_id == life.table_id
        and (None in (each.table_generation, life.generation) or each.table_generation == life.generation)
    )
