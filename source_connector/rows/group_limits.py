"""How many keys a statement may have for each table, after Cassandra has refused statements with more.

Operators limit the keys of a statement with the guardrails `partition_keys_in_select_fail_threshold` and
`in_select_cartesian_product_fail_threshold` (4.1 and later; services and DSE have limits of their own). The second one
counts the values of the partition key and those of the clustering key, each on their own. So it also limits statements
that ask for no product. Cassandra has no error code for guardrails. So each refusal of a group halves the limit, and a
refusal of a single key shows that the number of keys is not the reason. After ten minutes larger groups are tried
again, because an operator may have allowed them.

Cassandra source: o.a.c.db.guardrails.Guardrails, o.a.c.cql3.restrictions.PartitionKeySingleRestrictionSet.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, final

from source_connector.rows.read_groups import GROUP_SIZE

__all__ = ["GroupLimits"]

_FOR_S: Final = 600.0


@final
class _Limit:
    __slots__ = ("largest", "until_s")

    def __init__(self, until_s: float) -> None:
        self.until_s = until_s
        self.largest = GROUP_SIZE


@final
class GroupLimits:
    """The limits of the tables, by full name. A table without refusals may have groups of `GROUP_SIZE`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limits: dict[str, _Limit] = {}

    def refused(self, table: str, keys: int) -> int:
        """Note that Cassandra refused a statement for so many keys. Return the most keys of the next ones."""
        limit = self._limits.setdefault(table, _Limit(self._clock() + _FOR_S))
        limit.largest = max(1, min(limit.largest, keys // 2))
        return limit.largest

    def single_refused(self, table: str) -> None:
        """Note that Cassandra refused a statement for one key: the number of keys was not the reason."""
        self._limits.pop(table, None)

    def forget(self, table: str) -> None:
        """Forget the refusals of the table, because its statements change."""
        self._limits.pop(table, None)

    def of(self, table: str) -> int:
        """The most keys of a statement."""
        limit = self._limits.get(table)
        if limit is None:
            return GROUP_SIZE
        if limit.until_s <= self._clock():
            del self._limits[table]
            return GROUP_SIZE
        return limit.largest
