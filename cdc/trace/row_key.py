"""RowKey: the row of a trace, from the words of a command line to the exact CQL bytes of its key."""

from __future__ import annotations

import re
import shlex
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Final, NoReturn

from change_agent.schema.node_connection import token_of
from schemas.cql_bytes import UnwritableKeyError, cql_bytes, joined_partition_key
from schemas.cql_type import CqlType, NativeType
from schemas.cql_value import AvroValue, CqlValueError, column_reader, has_equal_forms, value_reader
from schemas.errors import ConfigError
from schemas.mutation_event import MutationEvent, MutationKind
from schemas.table_metadata import ColumnMetadata, TableMetadata

__all__ = ["RowKey"]

# Cassandra's limit: the length of a key's value is an unsigned short.
_LONGEST: Final = 65_535
_DAY_NS: Final = 86_400 * 1_000_000_000
_CLOCK: Final = re.compile(r"(\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{0,9}))?")
_MOST_OF_SIXTY: Final = 59
_TEXTS: Final = (NativeType("ascii"), NativeType("text"))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKey:
    """The key of a row. Without clustering values in a table with clustering columns, it is the key of a partition."""

    table: TableMetadata
    parts: tuple[bytes, ...]
    """CQL bytes of the key's columns, partition key first."""
    words: tuple[str, ...]
    """The values as they were given."""

    @property
    def text(self) -> str:
        """The key as text, such as `id = 17, day = 2026-11-24`."""
        named = zip(self.table.primary_key, self.words, strict=False)
        return ", ".join(f"{column.name} = {word}" for column, word in named)

    @property
    def arguments(self) -> str:
        """Table and key, quoted for a shell. If a word looks like an option, the words stand behind `--`."""
        end_of_options = ["--"] if any(each.startswith("-") for each in self.words) else []
        return shlex.join([self.table.full_name, *end_of_options, *self.words])

    @classmethod
    def of_words(cls, table: TableMetadata, words: Sequence[str]) -> RowKey:
        """The key from one word for each of its columns. Raises ConfigError for a missing or wrong word."""
        columns = table.primary_key
        if len(words) not in (len(table.partition_key), len(columns)):
            asked = ", ".join(f"{column.name} ({column.type})" for column in columns)
            raise ConfigError.of("KEY", f"{len(words)} values are given; the key of {table.full_name} is: {asked}")
        parts = tuple(_bytes_of(column, word) for column, word in zip(columns, words, strict=False))
        return cls(table=table, parts=parts, words=tuple(words))

    @property
    def partition_key(self) -> bytes:
        """The serialized partition key, as in the commit log and in events."""
        return joined_partition_key(self.parts[: len(self.table.partition_key)])

    @property
    def clustering(self) -> tuple[bytes, ...]:
        """The clustering values of the row; empty for a partition."""
        return self.parts[len(self.table.partition_key) :]

    @property
    def is_row(self) -> bool:
        """False for a partition of a table with clustering columns."""
        return len(self.parts) == len(self.table.primary_key)

    @property
    def token(self) -> int:
        """The token of the partition."""
        return token_of(self.partition_key)

    def concerns(self, event: MutationEvent) -> bool:
        """Return True if the event may have changed the row.

        These are the events of the row and of its static columns, and deletions of its partition or of ranges in it.
        For the key of a partition, these are all events of the partition.
        """
        if event.partition_key != self.partition_key:
            return False
        is_of_row = event.kind in (MutationKind.ROW, MutationKind.ROW_DELETION)
        return not (is_of_row and self.clustering) or self._is_its(event.clustering)

    def _is_its(self, clustering: tuple[bytes | None, ...]) -> bool:
        """True for the row's clustering, also if values in it are written differently: 1.0 and 1.00 are one row."""
        if clustering == self.clustering or not any(has_equal_forms(each.type) for each in self.table.clustering_key):
            return clustering == self.clustering
        readers = [column_reader(each) for each in self.table.clustering_key]
        one, other = (
            [None if value is None else read(value) for read, value in zip(readers, values, strict=False)]
            for values in (clustering, self.clustering)
        )
        return one == other


def _bytes_of(column: ColumnMetadata, word: str) -> bytes:
    found = _given_bytes(column, word) if word.startswith("0x") and column.type not in _TEXTS else _read(column, word)
    if len(found) > _LONGEST:
        reason = f"{column.name}: a value of {len(found):,} bytes is too long; a key's value has at most {_LONGEST:,}"
        raise ConfigError.of("KEY", reason)
    return found


def _given_bytes(column: ColumnMetadata, word: str) -> bytes:
    try:
        found = bytes.fromhex(word[2:])
    except ValueError as error:
        raise ConfigError.of("KEY", f"{column.name}: {word} is no hexadecimal number") from error
    try:
        if isinstance(column.type, NativeType):
            value_reader(column.type)(found)
    except CqlValueError as error:
        raise ConfigError.of("KEY", f"{column.name}: {word} is no {column.type} ({error.reason})") from error
    return found


def _read(column: ColumnMetadata, word: str) -> bytes:
    read = _READ.get(column.type.name) if isinstance(column.type, NativeType) else None
    if read is None:
        raise ConfigError.of(
            "KEY", f"{column.name} is of type {column.type}: give its bytes as 0x..., as `cdc decode` prints them"
        )
    try:
        return _packed(column.type, read(word))
    except (ValueError, InvalidOperation, OverflowError, UnwritableKeyError) as error:
        raise ConfigError.of("KEY", f"{column.name}: {word!r} is no {column.type}") from error


def _packed(cql_type: CqlType, value: AvroValue) -> bytes:
    # Avro's `time-micros` would lose the nanoseconds.
    if cql_type == NativeType("time"):
        return struct.pack(">q", value)
    return cql_bytes(cql_type, value)


def _boolean(word: str) -> AvroValue:
    return {"true": True, "false": False}.get(word.lower()) if word.lower() in {"true", "false"} else _refused(word)


def _refused(word: str) -> NoReturn:
    raise ValueError(word)


def _timestamp(word: str) -> AvroValue:
    """The milliseconds of a number, or of a time in ISO 8601, which is UTC if it has no zone."""
    if word.removeprefix("-").isdecimal():
        return int(word)
    moment = datetime.fromisoformat(word)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round((moment - _EPOCH).total_seconds() * 1000)


def _time(word: str) -> AvroValue:
    """The nanoseconds of a number, or of a time such as `13:30:54.234`."""
    if word.isdecimal():
        nanoseconds = int(word)
    elif found := _CLOCK.fullmatch(word):
        hours, minutes, seconds = (int(each) for each in found.groups()[:3])
        if minutes > _MOST_OF_SIXTY or seconds > _MOST_OF_SIXTY:
            return _refused(word)
        whole_ns = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000_000
        nanoseconds = whole_ns + int((found[4] or "").ljust(9, "0"))
    else:
        return _refused(word)
    return nanoseconds if nanoseconds < _DAY_NS else _refused(word)


def _integer(word: str) -> int:
    # Python takes `1_0` for 10; CQL does not.
    return int(word) if "_" not in word else _refused(word)


def _float(word: str) -> AvroValue:
    return float(word) if "_" not in word else _refused(word)


def _varint(word: str) -> AvroValue:
    number = _integer(word)
    return number.to_bytes(((number if number >= 0 else ~number).bit_length() // 8) + 1, "big", signed=True)


def _decimal(word: str) -> AvroValue:
    sign, digits, exponent = Decimal(word).as_tuple()
    if not isinstance(exponent, int) or "_" in word:  # NaN and the like
        return _refused(word)
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    return {"bigint": _varint(str(unscaled)), "scale": -exponent}


_READ: Final[Mapping[str, Callable[[str], AvroValue]]] = {
    "ascii": str,
    "bigint": _integer,
    "boolean": _boolean,
    "date": lambda word: (date.fromisoformat(word) - _EPOCH.date()).days,
    "decimal": _decimal,
    "double": _float,
    "float": _float,
    "inet": str,
    "int": _integer,
    "smallint": _integer,
    "text": str,
    "time": _time,
    "timestamp": _timestamp,
    "timeuuid": str,
    "tinyint": _integer,
    "uuid": str,
    "varint": _varint,
}
