"""What is known of a micro-batch of a mirror before it is applied: its records, the schemas, the mirror's progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spark_bridge.jobs.batch_content import BatchContent
from spark_bridge.jobs.batch_session import FEW_RECORDS, is_large, is_sparse
from spark_bridge.jobs.lake_table import LakeTable
from spark_bridge.jobs.mirror_state import Applied
from spark_bridge.rows.table_lives import TableLife, newest_life
from spark_bridge.topics.table_clearing import TableClearing
from spark_bridge.topics.topic_schemas import TopicSchemas

__all__ = ["EpochPlan"]


_EPOCHS_OF_A_LAYER: Final = 400
"""After so many micro-batches of 1,000 rows, compaction (`MirrorTables.compact_in_turn`) has made one more file of them."""


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """What a micro-batch is applied with; it becomes the next epoch of the tables."""

    schemas: TopicSchemas
    applied: Applied
    content: BatchContent
    is_new_table: bool
    table_bytes: int
    """Of the mirror's rows and of what it keeps."""
    clearings: Sequence[TableClearing] = ()
    """Truncations and drops that count for the records."""
    judges_all: bool = False
    """Whether all rows are judged again, not only those that records speak of."""
    histories: Sequence[LakeTable] = ()
    """Those that do not have this epoch yet: a run that failed may have written it."""

    @property
    def epoch(self) -> int:
        return self.applied.epoch + 1

    @property
    def is_large(self) -> bool:
        """Whether the tables are so large that they should not be written anew for a few rows."""
        return is_large(self.table_bytes)

    def is_sparse(self, owners: int) -> bool:
        """Whether so many Cassandra partitions are looked up in the tables; else the tables are read as a whole."""
        layers = self.applied.layers + self.applied.epoch // _EPOCHS_OF_A_LAYER
        return is_sparse(owners * layers, self.table_bytes)

    @property
    def has_many_records(self) -> bool:
        """Whether they fill so many files that each of a table's first ones should have a range of keys."""
        return self.content.records >= FEW_RECORDS

    def layers(self, files: int) -> int:
        """In how many files of the mirror's rows a key may be, by their ranges, behind this epoch, which writes so many."""
        if self.applied.epoch == 0:
            return 1
        return self.applied.layers + (files if self.has_many_records else 0)

    @property
    def life(self) -> TableLife | None:
        return newest_life(each for each in (self.applied.life, self.content.life) if each is not None)

    @property
    def statics(self) -> tuple[str, ...]:
        """The table's static columns, as far as records have named them; those that were dropped are among them.

        Cassandra refuses to add a column again as one of another kind, so what was static once is so for good.
        """
        known = () if self.is_new_table else self.applied.static_columns
        return tuple(sorted({*known, *self.content.static_columns}))

    @property
    def has_expired(self) -> bool:
        """Whether rows may be over at the micro-batch's time."""
        expiry = self.applied.next_expiry_s
        return expiry is not None and expiry <= self.applied.clock_s

    @property
    def gone_columns(self) -> frozenset[str]:
        """Value columns that were dropped and added again since the tables followed the schema."""
        version = self.applied.schema_version
        return self.schemas.dropped_since(self.schemas.newest.version if version is None else version)
