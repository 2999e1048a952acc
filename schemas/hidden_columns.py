"""Hidden columns: patterns of columns that are not published in clear, and what is published instead. Pure.

    drop        the column is left out
    mask        one constant text for every value
    hash        64 hexadecimal digits: HMAC-SHA-256 (RFC 2104) of the value's CQL bytes
    truncate    the first characters of a text, the first bytes of a blob

If several of them match a column, the first in this list counts. The connector hides the rows that it writes, and
`verify` hides the rows that it reads from Cassandra in the same way. A value of any type is hidden as a whole: a list
becomes one text, not a list of texts.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Final

from schemas.cql_bytes import cql_bytes
from schemas.cql_type import CqlType, NativeType
from schemas.cql_value import CqlValueError, column_json_reader, column_reader, has_equal_forms, minimal_varint
from schemas.errors import ConfigError, ConfigProblem
from schemas.table_metadata import ColumnKind, ColumnMetadata, TableMetadata

__all__ = ["SHORTEST_KEY", "ColumnPattern", "HiddenColumns", "Hiding", "PublishedTable"]

SHORTEST_KEY: Final = 32
"""Length of the hash in bytes. A shorter key is easier to guess than the hash (RFC 2104, section 3)."""

_Hide = Callable[[bytes], bytes]
_TEXT: Final = NativeType("text")
_OF_KEYS: Final = (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING)
_WILD: Final = ("*", "?")


class Hiding(Enum):
    """The ways to hide a column, sorted: the one that shows least comes first. The values are the options' names."""

    DROP = "columns.drop"
    MASK = "columns.mask"
    HASH = "columns.hash"
    TRUNCATE = "columns.truncate"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPattern:
    """One entry of an option: `keyspace.table.column`, each part with `*` and `?`; for truncate, `:length` follows."""

    hiding: Hiding
    text: str
    table: str
    column: str
    length: int = 0

    @classmethod
    def parse(cls, hiding: Hiding, entry: str) -> ColumnPattern:
        """The pattern of an entry. Raises ConfigError."""
        names, length = entry, ""
        if hiding is Hiding.TRUNCATE:
            names, _, length = entry.rpartition(":")
            if not re.fullmatch(r"[0-9]{1,9}", length):
                raise ConfigError.of(hiding.value, f"each entry is keyspace.table.column:length (got {entry!r})")
        parts = names.split(".", 2)  # a column's name may have dots
        if len(parts) < 3 or not all(parts):
            reason = f"each entry is keyspace.table.column, where * and ? match any characters (got {entry!r})"
            raise ConfigError.of(hiding.value, reason)
        keyspace, table, column = parts
        return cls(hiding=hiding, text=entry, table=f"{keyspace}.{table}", column=column, length=int(length or 0))

    @property
    def names_one_table(self) -> bool:
        """True if keyspace and table have no wildcard."""
        return not any(each in self.table for each in _WILD)

    def is_of(self, table: str) -> bool:
        """True if the pattern may match columns of `keyspace.table`."""
        return _matches(self.table, table)

    def matches(self, column: str) -> bool:
        """True if the pattern matches a column of a table for which `is_of` is True."""
        return _matches(self.column, column)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """A table as consumers see it. `table` has the published types, and no columns that are dropped."""

    table: TableMetadata
    hidden: dict[str, Hiding]
    """The ways in which columns are hidden, by column; never empty."""
    hides: dict[str, _Hide] = field(repr=False)
    """By column that is hidden but not dropped: a function from its CQL bytes to the published CQL bytes."""

    @property
    def hides_key(self) -> bool:
        """True if a column of the primary key is hidden."""
        return any(column.name in self.hidden for column in self.table.primary_key)

    @property
    def hides_partition_key(self) -> bool:
        """True if a partition key column is hidden: the published key does not give the row's token."""
        return any(column.name in self.hidden for column in self.table.partition_key)

    def shown(self, columns: Sequence[ColumnMetadata], values: Sequence[bytes | None]) -> list[bytes | None]:
        """The published CQL bytes of these columns' values; `values` may be a prefix. Raises CqlValueError."""
        shown: list[bytes | None] = []
        for column, value in zip(columns, values, strict=False):
            hide = self.hides.get(column.name)
            shown.append(value if value is None or hide is None else hide(value))
        return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenColumns:
    """The options for hidden columns.

    `has_range_markers`: consumers get range deletions, so they need the order of clustering columns.
    `serves_one_table`: every pattern for a table has to match a column of it; otherwise only patterns without wildcards
    in the table's name have to.
    """

    patterns: Sequence[ColumnPattern]
    mask: str = "****"
    hash_key: bytes = field(default=b"", repr=False)
    has_range_markers: bool = False
    serves_one_table: bool = False

    def of(self, table: TableMetadata) -> PublishedTable | None:
        """The table as it is published; None if no column is hidden. Raises ConfigError with all problems."""
        patterns = [each for each in self.patterns if each.is_of(table.full_name)]
        if not patterns:
            return None
        problems = [
            ConfigProblem(option=each.hiding.value, reason=f"{each.text} matches no column of {table.full_name}")
            for each in patterns
            if (each.names_one_table or self.serves_one_table) and not _matches_any(each, table)
        ]
        chosen = {
            column.name: each for column in _columns(table) if (each := _first(patterns, column.name)) is not None
        }
        for column in _columns(table):
            if column.name in chosen:
                problems += self._problems(table, column, chosen[column.name])
        if problems:
            raise ConfigError(problems)
        if not chosen:
            return None
        hides = {
            column.name: self._hide(column, chosen[column.name])
            for column in _columns(table)
            if column.name in chosen and chosen[column.name].hiding is not Hiding.DROP
        }
        hidden = {name: each.hiding for name, each in chosen.items()}
        return PublishedTable(table=_published(table, hidden), hidden=hidden, hides=hides)

    def matched(self, table: TableMetadata) -> set[str]:
        """The texts of the patterns that match a column of the table."""
        return {each.text for each in self.patterns if each.is_of(table.full_name) and _matches_any(each, table)}

    def _problems(
        self, table: TableMetadata, column: ColumnMetadata, pattern: ColumnPattern
    ) -> Iterator[ConfigProblem]:
        place = f"{table.full_name}.{column.name}"
        option = pattern.hiding.value
        if column.kind in _OF_KEYS and pattern.hiding is not Hiding.HASH:
            reason = f"{pattern.text} matches the key column {place}, which identifies rows; hash it instead"
            yield ConfigProblem(option=option, reason=reason)
        elif column.kind is ColumnKind.CLUSTERING and self.has_range_markers:
            reason = (
                f"{pattern.text} matches the clustering column {place}: hashes have no order, so no consumer could apply a range "
                "deletion to them; set publish.rangeDeletions to false (rows that range deletions take stay with consumers), or do "
                "not hash it"
            )
            yield ConfigProblem(option=option, reason=reason)
        elif pattern.hiding is Hiding.TRUNCATE and not _can_be_cut(column.type):
            reason = f"{pattern.text} matches {place}, a {column.type}; only text, ascii and blob can be truncated"
            yield ConfigProblem(option=option, reason=reason)

    def _hide(self, column: ColumnMetadata, pattern: ColumnPattern) -> _Hide:
        if pattern.hiding is Hiding.MASK:
            return _constant(self.mask.encode())
        if pattern.hiding is Hiding.HASH:
            return _hasher(self.hash_key, column)
        return _cutter(column.type, pattern.length)


def _columns(table: TableMetadata) -> tuple[ColumnMetadata, ...]:
    return table.primary_key + table.value_columns


def _matches_any(pattern: ColumnPattern, table: TableMetadata) -> bool:
    """True if the pattern matches a column, also a dropped one: the pattern of a dropped column may stay."""
    names = [*(each.name for each in _columns(table)), *(each.name for each in table.dropped_columns)]
    return any(map(pattern.matches, names))


def _first(patterns: Sequence[ColumnPattern], column: str) -> ColumnPattern | None:
    """The pattern for a column that shows least; if several truncate, the one with the smallest length.

    None if none matches.
    """
    order = list(Hiding)
    matching = [each for each in patterns if each.matches(column)]
    return min(matching, key=lambda each: (order.index(each.hiding), each.length), default=None)


def _published(table: TableMetadata, hidden: dict[str, Hiding]) -> TableMetadata:
    def of(columns: tuple[ColumnMetadata, ...]) -> tuple[ColumnMetadata, ...]:
        return tuple(
            replace(each, type=_TEXT) if hidden.get(each.name) in (Hiding.HASH, Hiding.MASK) else each
            for each in columns
            if hidden.get(each.name) is not Hiding.DROP
        )

    return replace(
        table,
        partition_key=of(table.partition_key),
        clustering_key=of(table.clustering_key),
        static_columns=of(table.static_columns),
        regular_columns=of(table.regular_columns),
    )


def _constant(mask: bytes) -> _Hide:
    return lambda value: mask


def _hasher(key: bytes, column: ColumnMetadata) -> _Hide:
    def hashed(value: bytes) -> bytes:
        return hmac.digest(key, one_form(value), "sha256").hex().encode()

    one_form = partial(_one_form, column.type)
    if column.kind is ColumnKind.CLUSTERING and has_equal_forms(column.type):
        one_form = partial(_form_of_row, column)
    return hashed


def _one_form(cql_type: CqlType, value: bytes) -> bytes:
    """One form of a value, so that equal values have equal hashes: some types have several forms of one value."""
    if cql_type == NativeType("varint"):
        return minimal_varint(value)
    if cql_type == NativeType("decimal"):
        return value[:4] + minimal_varint(value[4:])
    if cql_type == NativeType("boolean"):
        return value and (b"\1" if value[0] else b"\0")
    return value


def _form_of_row(column: ColumnMetadata, value: bytes) -> bytes:
    """One form of equal values of a clustering column: 1.0 and 1.00 are one row, whose key has one hash."""
    if not isinstance(column.type, NativeType):
        return column_json_reader(column)(value).encode()
    found = column_reader(column)(value)
    return value if found is None else cql_bytes(column.type, found)


def _can_be_cut(cql_type: CqlType) -> bool:
    return isinstance(cql_type, NativeType) and cql_type.name in ("text", "ascii", "blob")


def _cutter(cql_type: CqlType, length: int) -> _Hide:
    if cql_type == NativeType("blob"):
        return lambda value: value[:length]

    def cut(value: bytes) -> bytes:
        if len(value) <= length:
            return value
        try:
            return value.decode()[:length].encode()
        except UnicodeDecodeError:
            # Without the decoder's own text, which shows a part of the value.
            raise CqlValueError(cql_type, f"{len(value)} bytes are no UTF-8") from None

    return cut


def _matches(pattern: str, name: str) -> bool:
    expression = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(expression, name, re.DOTALL) is not None
