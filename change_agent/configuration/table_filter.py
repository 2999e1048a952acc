"""TableFilter: which tables are published, by patterns of `<keyspace>.<table>`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

__all__ = ["TableFilter"]


class TableFilter:
    """Admits tables that match a pattern of `include`, or all tables if it is empty, but none that match `exclude`."""

    def __init__(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        self._include: Final = tuple(include)
        self._exclude: Final = tuple(exclude)

    def admits(self, keyspace: str, table: str) -> bool:
        """True if changes of this table are published."""
        name = f"{keyspace}.{table}"
        if self._include and not any(fnmatchcase(name, pattern) for pattern in self._include):
            return False
        return not any(fnmatchcase(name, pattern) for pattern in self._exclude)
