"""Rows of one page of an answer, as the bytes of their columns. Every row is cut here, so it is compiled. Pure.

    Row    => {Column}
      Column => Int32 and that many bytes; negative: null

Native protocol v4 specification, section 4.2.5.2. The native core cuts a page without a Python object for each column.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final
from uuid import UUID

from source_connector.encoding.native_rows import RawRow, native_rows

__all__ = ["RawPage", "RawRow", "RowKey"]

RowKey = tuple[bytes | None, ...]
"""The first columns of a row."""

_CORE: Final = native_rows()


@final
class RawPage:
    """Rows of one page, not yet parsed: `rows` gives the columns' CQL bytes (None: null)."""

    __slots__ = ("_columns", "_count", "_data", "coordinator", "paging_state")

    def __init__(self, data: bytes, count: int, columns: int, paging_state: bytes | None) -> None:
        self._data: bytes = data
        self._count: int = count
        self._columns: int = columns
        self.coordinator: UUID | None = None
        """The node that answered, if it is known."""
        self.paging_state: bytes | None = paging_state
        """Where the next page starts; None when this is the last one."""

    def __len__(self) -> int:
        return self._count

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        return len(self._data)

    def __iter__(self) -> Iterator[RawRow]:
        return iter(self.rows())

    def rows(self) -> list[RawRow]:
        """Parse all rows. Raises IndexError if the bytes end too early."""
        if _CORE is not None:
            return _CORE.rows(self._data, self._count, self._columns)
        found: list[RawRow] = []
        found.extend(self._tuples())
        return found

    def rows_by_key(self, width: int) -> dict[RowKey, RawRow]:
        """Parse all rows. Return them without their first `width` columns, by these. Raises IndexError like `rows`."""
        if _CORE is not None:
            return _CORE.rows_by_key(self._data, self._count, self._columns, width)
        return {row[:width]: row[width:] for row in self._tuples()}

    def _tuples(self) -> list[RowKey]:
        data, at, length, columns = self._data, 0, len(self._data), self._columns
        found: list[RowKey] = []
        row: list[bytes | None] = []
        for _ in range(self._count):
            row = []
            for _ in range(columns):
                size = data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]
                at += 4
                if size >= 0x8000_0000:
                    row.append(None)
                    continue
                end = at + size
                if end > length:
                    raise IndexError(f"a column of {size} bytes at {at} of {length}")
                row.append(data[at:end])
                at = end
            found.append(tuple(row))
        return found
