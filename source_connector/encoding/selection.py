"""What a SELECT asks for of a row. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.table_metadata import ColumnMetadata
from source_connector.encoding.row_encoder import RawValues

__all__ = ["Selection", "quoted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The columns of a SELECT in order: key columns, value columns, then write times and seconds to live of columns."""

    key_columns: tuple[ColumnMetadata, ...]
    value_columns: tuple[ColumnMetadata, ...]
    timed_columns: tuple[str, ...]
    timed_places: Mapping[str, int] = field(init=False, repr=False, compare=False)
    """Where in a row the write time of a column stands."""
    ttls_at: int = field(init=False, repr=False, compare=False)
    """Where in a row the first of the timed columns' seconds to live stands."""

    def __post_init__(self) -> None:
        first = len(self.key_columns) + len(self.value_columns)
        object.__setattr__(self, "timed_places", {name: first + at for at, name in enumerate(self.timed_columns)})
        object.__setattr__(self, "ttls_at", first + len(self.timed_columns))

    @property
    def text(self) -> str:
        """`SELECT ... ` up to and without FROM; never empty."""
        names = [quoted(column.name) for column in self.key_columns + self.value_columns]
        timed = [quoted(name) for name in self.timed_columns]
        return "SELECT " + ", ".join(
            names + [f"WRITETIME({name})" for name in timed] + [f"TTL({name})" for name in timed]
        )

    def writetimes_us(self, row: RawValues) -> dict[str, int]:
        """Write times of the live cells among the timed columns."""
        times = row[self.ttls_at - len(self.timed_columns) : self.ttls_at]
        found = zip(self.timed_columns, times, strict=True)
        return {name: int.from_bytes(time, "big", signed=True) for name, time in found if time is not None}


def quoted(name: str) -> str:
    """A CQL identifier, taken literally."""
    return '"' + name.replace('"', '""') + '"'
