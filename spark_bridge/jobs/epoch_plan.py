"""The plan for a micro-batch of a mirror before it is applied: its records, the schemas, the mirror's progress."""

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
"""After this many micro-batches of 1,000 rows, compaction (`MirrorTables.compact_in_turn`) has made one more file of
their rows, in which a key may be."""


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The input of a micro-batch's application, which becomes the next epoch of the tables."""

    schemas: TopicSchemas
    applied: Applied
    content: BatchContent
    is_new_table: bool
    table_bytes: int
    """Size of the mirror's rows and kept records."""
    clearings: Sequence[TableClearing] = ()
    """Truncations and drops that remove some of the records."""
    judges_all: bool = False
    """True if all rows are judged again, and not only those of the records' Cassandra partitions."""
    histories: Sequence[LakeTable] = ()
    """The histories that do not have this epoch yet: a failed run may have written it."""

    @property
    def epoch(self) -> int:
        return self.applied.epoch + 1

    @property
    def is_large(self) -> bool:
        """True if the tables are too large to be rewritten for a few rows."""
        return is_large(self.table_bytes)

    def is_sparse(self, owners: int) -> bool:
        """Return True to look up this number of Cassandra partitions in the tables; False to read the whole tables."""
        layers = self.applied.layers + self.applied.epoch // _EPOCHS_OF_A_LAYER
        return is_sparse(owners * layers, self.table_bytes)

    @property
    def has_many_records(self) -> bool:
        """True if the records fill so many files that each first file of a table should have a range of keys."""
        return self.content.records >= FEW_RECORDS

    def layers(self, files: int) -> int:
        """The number of files that may have a key (see `Applied.layers`) after this epoch, which writes `files`."""
        if self.applied.epoch == 0:
            return 1
        return self.applied.layers + (files if self.has_many_records else 0)

    @property
    def life(self) -> TableLife | None:
        return newest_life(each for each in (self.applied.life, self.content.life) if each is not None)

    @property
    def statics(self) -> tuple[str, ...]:
        """The table's static columns, as far as records have named them, including dropped ones.

        Cassandra refuses to add a column again as another kind, so a static column stays static for good.
        """
        known = () if self.is_new_table else self.applied.static_columns
        return tuple(sorted({*known, *self.content.static_columns}))

    @property
    def has_expired(self) -> bool:
        """True if rows may have expired at the micro-batch's clock."""
        expiry = self.applied.next_expiry_s
        return expiry is not None and expiry <= self.applied.clock_s

    @property
    def gone_columns(self) -> frozenset[str]:
        """Value columns that were dropped and added again since the tables followed the schema."""
        version = self.applied.schema_version
        return self.schemas.dropped_since(self.schemas.newest.version if version is None else version)
