"""The lives of a table: each CREATE begins one, and only the records of the latest one count.

Records name the table's id and its generation. The generation is greater in each later life of the table. The id does
not tell the order, because an operator may reuse an id (`CREATE TABLE ... WITH ID`). Records of earlier versions have
no generation; the time inside their table id, a version 1 uuid, replaces it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (PySpark's custom)

from schemas.record_properties import TABLE_GENERATION, TABLE_ID, WRITETIME
from spark_bridge.rows.sql_columns import literal

__all__ = ["GENERATION", "TableLife", "is_of_life", "life_at_end", "life_of", "newest_life"]

# From the epoch of uuids to that of Unix, in units of 100 ns.
_UUID_EPOCH: Final = 0x01B21DD213814000


class TableLife(NamedTuple):
    """One life of a table. The generation is None if no record of the life names one."""

    table_id: str
    generation: int | None = None

    @property
    def order(self) -> tuple[bool, int]:
        """Order of lives: by generation in microseconds, else by the id's time. Ids without a time come first."""
        if self.generation is not None:
            return True, self.generation
        try:
            parsed = uuid.UUID(self.table_id)
        except ValueError:
            return False, 0
        return parsed.version == 1, (parsed.time - _UUID_EPOCH) // 10 if parsed.version == 1 else 0

    def begins_behind(self, known: TableLife) -> bool:
        """True when this is a later life than the known one, so that the table was empty in between."""
        if self.table_id == known.table_id and None in (self.generation, known.generation):
            return False
        return self.order > known.order


def life_of(properties: Mapping[str, str] | None) -> TableLife | None:
    """The table life of a record; None if the record does not name its table."""
    if not properties or TABLE_ID not in properties:
        return None
    generation = properties.get(TABLE_GENERATION, "")
    return TableLife(properties[TABLE_ID], int(generation) if generation.isdecimal() else None)


def newest_life(lives: Iterable[TableLife]) -> TableLife | None:
    """The latest life. If an id has a generation, the id's own time is ignored, because it may be a little later."""
    known = list(lives)
    named = {each.table_id for each in known if each.generation is not None}
    candidates = [each for each in known if each.generation is not None or each.table_id not in named]
    return max(candidates, key=lambda each: each.order, default=None)


def life_at_end(last: Iterable[Mapping[str, str]], seen: Iterable[TableLife]) -> TableLife | None:
    """The latest life, by the properties of the last records of a topic's partitions.

    A last record may be a late one of a table that was dropped. So a life in `seen`, from the topic of schema changes,
    counts if it began after the write of that record. A later write shows that the record's own table was there still.
    """
    said = [(life, each.get(WRITETIME, "")) for each in last if (life := life_of(each)) is not None]
    newest = newest_life(life for life, _ in said)
    written = [time for life, time in said if life == newest]
    if newest is None or not all(each.isdecimal() for each in written):
        return newest
    return newest_life([newest, *[each for each in seen if each.order > (True, max(map(int, written)))]])


GENERATION: Final = f"try_cast(properties['{TABLE_GENERATION}'] AS bigint)"
"""The generation that a raw row names, as an expression of SQL; null if it names none."""


def is_of_life(life: TableLife) -> Column:
    """True for raw rows of that life.

    A row without an id, or without a generation, matches any: it is an earlier one.
    """
    table_id = literal(life.table_id)
    is_it = f"coalesce(properties['{TABLE_ID}'], {table_id}) = {table_id}"
    if life.generation is None:
        return F.expr(is_it)
    return F.expr(f"{is_it} AND coalesce({GENERATION}, {life.generation}L) = {life.generation}L")
