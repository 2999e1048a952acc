"""A random part of the ring, in even pieces: the part of Cassandra and of the other side that a sample compares."""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from schemas.errors import ConfigError
from schemas.hidden_columns import PublishedTable
from schemas.table_metadata import TableMetadata
from spark_bridge.jobs.cassandra_rows import TokenRange, token_ranges
from spark_bridge.jobs.row_keys import RowKeys

__all__ = ["TokenSample"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSample:
    """`ranges` in their order, each (start, end]."""

    table: TableMetadata
    ranges: tuple[TokenRange, ...]

    @classmethod
    def draw(
        cls,
        table: TableMetadata,
        fraction: float,
        ranges: int,
        seed: int | None = None,
        published: PublishedTable | None = None,
    ) -> TokenSample:
        """Draw this number of ranges, together about `fraction` of the ring. The same seed draws the same ranges.

        Raises ConfigError for a fraction outside (0, 1], and if the token cannot be computed from the Avro form of the
        partition key, because the key is hidden on the topic or because of its type.
        """
        if not 0 < fraction <= 1:
            raise ConfigError.of("sample", f"{fraction} is no part of the table: it lies above 0 and up to 1")
        if published is not None and published.hides_partition_key:
            reason = f"{table.full_name} has hashes on the topic for its partition key, which do not tell a token: compare it whole"
            raise ConfigError.of("sample", reason)
        if not RowKeys(table).are_exact:
            reason = f"{table.full_name} has a time, a collection, a tuple or a user type in its partition key: compare it whole"
            raise ConfigError.of("sample", reason)
        pieces = token_ranges(max(ranges, math.ceil(ranges / fraction)))
        return cls(table=table, ranges=tuple(sorted(random.Random(seed).sample(pieces, min(ranges, len(pieces))))))

    def holds(self, token: int) -> bool:
        """Return True if the token is in one of the ranges."""
        at = bisect.bisect_left(self.ranges, token, key=lambda each: each[1])
        return at < len(self.ranges) and self.ranges[at][0] < token

    def of(self, rows: DataFrame) -> DataFrame:
        """The rows whose `key` (Avro) lies in the sample."""
        mine = self

        def keep(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            keys = RowKeys(mine.table)
            for batch in batches:
                wanted = [mine.holds(keys.token(each)) for each in batch.column("key").to_pylist()]
                yield batch.filter(pa.array(wanted, pa.bool_()))

        return rows.mapInArrow(keep, rows.schema)
