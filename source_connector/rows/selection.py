"""What a SELECT asks for of a row. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.table_metadata import ColumnMetadata
from source_connector.rows.row_encoder import RawValues

__all__ = ["Selection", "quoted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The columns of a SELECT in order: key columns, value columns, then write times of columns."""

    key_columns: tuple[ColumnMetadata, ...]
    value_columns: tuple[ColumnMetadata, ...]
    timed_columns: tuple[str, ...]
    timed_places: Mapping[str, int] = field(init=False, repr=False, compare=False)
    """Where in a row the write time of a column stands."""

    def __post_init__(self) -> None:
        first = len(self.key_columns) + len(self.value_columns)
        object.__setattr__(self, "timed_places", {name: first + at for at, name in enumerate(self.timed_columns)})

    @property
    def text(self) -> str:
        """`SELECT ... ` up to and without FROM; never empty."""
        names = [quoted(column.name) for column in self.key_columns + self.value_columns]
        return "SELECT " + ", ".join(names + [f"WRITETIME({quoted(name)})" for name in self.timed_columns])

    def writetimes_us(self, row: RawValues) -> dict[str, int]:
        """Write times of the live cells among the timed columns."""
        times = row[len(self.key_columns) + len(self.value_columns) :]
        found = zip(self.timed_columns, times, strict=True)
        return {name: int.from_bytes(time, "big", signed=True) for name, time in found if time is not None}


def quoted(name: str) -> str:
    """A CQL identifier, taken literally."""
    return '"' + name.replace('"', '""') + '"'
