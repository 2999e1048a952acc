"""Types of the native core's part for rows: what `runtime/native/src/answer.rs` gives Python. Pure.

Its rows and records equal those of `source_connector.rows.raw_page` and `source_connector.encoding.avro_transcoder`,
byte for byte. `source_connector.compiled` says if the core runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from source_connector.compiled import native_module

__all__ = ["NativeRecordWriter", "NativeRows", "RawRow", "has_any", "native_rows"]

RawRow = Sequence[bytes | None]
"""The CQL bytes of a row's columns. A slice is a tuple."""

# From a list to its innermost element: an `AS_` number of schemas.avro_forms, and the length of the type's values.
_Forms = Sequence[tuple[int, int]]


class NativeRecordWriter(Protocol):
    """Writes records of nullable fields, one for each column."""

    def write(self, row: RawRow, start: int) -> bytes:
        """The record whose columns begin at `start` of a row of the core.

        Raises TypeError for another row, and the errors of the fields' functions.
        """


class NativeRows(Protocol):
    """The functions and classes of the module."""

    Row: type[RawRow]
    """The class of the core's rows. A column becomes a Python object when it is asked for."""

    def rows(self, page: bytes, count: int, columns: int) -> list[RawRow]:
        """The rows of a page. Raises IndexError if the page ends too early."""

    def rows_by_key(self, page: bytes, count: int, columns: int, width: int) -> dict[tuple[bytes | None, ...], RawRow]:
        """The rows without their first `width` columns, by these. Raises IndexError if the page ends too early."""

    def has_any(self, row: RawRow, start: int, end: int) -> bool:
        """True if one of the columns from `start` to `end` of a row of the core has bytes."""

    def RecordWriter(  # noqa: N802  # the name of a class
        self, fields: Sequence[tuple[_Forms, Callable[[bytes], bytes]]]
    ) -> NativeRecordWriter:
        """A writer. Each field has its forms, and a function that converts what the forms refuse.

        The function's result has the branch of the union.
        """


def native_rows() -> NativeRows | None:
    """The native core; None if it was not loaded."""
    return cast("NativeRows | None", native_module())  # mypy knows nothing of the attributes of a loaded module


def has_any(row: RawRow, start: int, end: int) -> bool:
    """True if one of the columns from `start` to `end` has bytes."""
    if _ROW is not None and isinstance(row, _ROW) and _HAS_ANY is not None:
        return _HAS_ANY(row, start, end)
    return any(row[start:end])


_CORE: Final = native_rows()
# Looked up once: every row passes here.
_ROW: Final = None if _CORE is None else _CORE.Row
_HAS_ANY: Final = None if _CORE is None else _CORE.has_any
