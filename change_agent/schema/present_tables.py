"""PresentTables: the tables that the node has now, divided into those that are published and those that are left out.

Several threads ask for them several times a second, and they change only with the schema.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from schemas.table_metadata import TableMetadata

__all__ = ["PresentTables"]

_Tables = tuple[TableMetadata, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Division:
    """The tables, and the objects from which they follow."""

    made_of: tuple[object, object, object]
    captured: _Tables
    left_out: _Tables
    names: frozenset[tuple[str, str]]


class PresentTables:
    """Any thread may use it.

    The functions return the tables that are published, also dropped ones, those that are left out, and the ids of the
    tables that the node has (None before its first answer). Each of these objects stays the same until the schema
    changes.
    """

    def __init__(
        self,
        published: Callable[[], _Tables],
        left_out: Callable[[], _Tables],
        present: Callable[[], frozenset[UUID] | None],
    ) -> None:
        self._published: Final = published
        self._left_out: Final = left_out
        self._present: Final = present
        self._last: _Division | None = None

    def captured(self) -> _Tables:
        """The published tables with `cdc = true`."""
        return self._now().captured

    def left_out(self) -> _Tables:
        """The tables whose changes are not published."""
        return self._now().left_out

    def names(self) -> frozenset[tuple[str, str]]:
        """Keyspaces and names of `captured`."""
        return self._now().names

    def _now(self) -> _Division:
        made_of = published, left_out, ids = self._published(), self._left_out(), self._present()
        last = self._last
        if last is not None and all(one is other for one, other in zip(made_of, last.made_of, strict=True)):
            return last
        present = ids or frozenset()
        captured = tuple(each for each in published if each.cdc and each.table_id in present)
        self._last = now = _Division(
            made_of=made_of,
            captured=captured,
            left_out=tuple(each for each in left_out if each.table_id in present),
            names=frozenset((each.keyspace, each.name) for each in captured),
        )
        return now
