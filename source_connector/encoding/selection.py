"""The columns and functions that a SELECT of a row names. Every row is judged by them, so this is compiled. Pure."""

from __future__ import annotations

import struct
from typing import Final, final

from schemas.cql_identifier import quoted
from schemas.table_metadata import ColumnMetadata
from source_connector.encoding.row_encoder import RawValues

__all__ = ["Selection"]

_TIMEUUID_TIME: Final = struct.Struct(">IHH")
_TICKS_PER_S: Final = 10_000_000
_GREGORIAN_TO_UNIX_S: Final = 12_219_292_800


@final
class Selection:
    """The columns of a SELECT in order: key columns, value columns, then the write times and the TTLs of columns.

    If there are TTLs, the last column is the coordinator's `now()`, from which they count.
    """

    __slots__ = ("key_columns", "text", "timed_columns", "timed_places", "ttls_at", "ttls_end", "value_columns")

    def __init__(
        self,
        *,
        key_columns: tuple[ColumnMetadata, ...],
        value_columns: tuple[ColumnMetadata, ...],
        timed_columns: tuple[str, ...],
    ) -> None:
        self.key_columns: Final = key_columns
        self.value_columns: Final = value_columns
        self.timed_columns: Final = timed_columns
        first = len(key_columns) + len(value_columns)
        self.timed_places: Final[dict[str, int]] = {name: first + at for at, name in enumerate(timed_columns)}
        """The index of a column's write time in a row, by column name."""
        self.ttls_at: Final = first + len(timed_columns)
        """The index of the first TTL in a row. The TTLs are in the order of `timed_columns`."""
        self.ttls_end: Final = self.ttls_at + len(timed_columns)
        """The index behind the last TTL."""
        self.text: Final = self._select()
        """`SELECT ...` without FROM; never empty."""

    def _select(self) -> str:
        names = [quoted(column.name) for column in self.key_columns + self.value_columns]
        timed = [quoted(name) for name in self.timed_columns]
        times = [f"WRITETIME({name})" for name in timed] + [f"TTL({name})" for name in timed]
        return "SELECT " + ", ".join(names + times + (["now()"] if timed else []))

    def read_at_s(self, row: RawValues) -> int:
        """When the coordinator read this row, by its clock, in seconds since the epoch. Needs timed columns."""
        return _unix_s(row[-1] or b"")

    def writetimes_us(self, row: RawValues) -> dict[str, int]:
        """Write times of the live cells among the timed columns."""
        times = row[self.ttls_at - len(self.timed_columns) : self.ttls_at]
        found = zip(self.timed_columns, times, strict=True)
        return {name: int.from_bytes(time, "big", signed=True) for name, time in found if time is not None}


def _unix_s(timeuuid: bytes) -> int:
    """The time of a version 1 UUID. Its 60 bits are in the order low, middle, high (RFC 9562, section 5.1)."""
    low, middle, high = _TIMEUUID_TIME.unpack_from(timeuuid)
    ticks: int = (high & 0x0FFF) << 48 | middle << 32 | low
    return ticks // _TICKS_PER_S - _GREGORIAN_TO_UNIX_S
