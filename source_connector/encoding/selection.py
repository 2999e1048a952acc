"""The columns and functions that a SELECT of a row names. Pure."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from schemas.cql_identifier import quoted
from schemas.table_metadata import ColumnMetadata
from source_connector.encoding.row_encoder import RawValues

__all__ = ["Selection"]

_TIMEUUID_TIME: Final = struct.Struct(">IHH")
_TICKS_PER_S: Final = 10_000_000
_GREGORIAN_TO_UNIX_S: Final = 12_219_292_800


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The columns of a SELECT in order: key columns, value columns, then the write times and the TTLs of columns.

    If there are TTLs, the last column is the coordinator's `now()`, from which they count.
    """

    key_columns: tuple[ColumnMetadata, ...]
    value_columns: tuple[ColumnMetadata, ...]
    timed_columns: tuple[str, ...]
    timed_places: Mapping[str, int] = field(init=False, repr=False, compare=False)
    """The index of a column's write time in a row, by column name."""
    text: str = field(init=False, repr=False, compare=False)
    """`SELECT ...` without FROM; never empty."""
    ttls_at: int = field(init=False, repr=False, compare=False)
    """The index of the first TTL in a row. The TTLs are in the order of `timed_columns`."""

    def __post_init__(self) -> None:
        first = len(self.key_columns) + len(self.value_columns)
        object.__setattr__(self, "timed_places", {name: first + at for at, name in enumerate(self.timed_columns)})
        object.__setattr__(self, "ttls_at", first + len(self.timed_columns))
        object.__setattr__(self, "text", self._select())

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
