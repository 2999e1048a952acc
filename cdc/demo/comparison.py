"""Compares Cassandra's rows with Spark's rows, and describes the differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime
from typing import Final
from uuid import UUID

__all__ = ["Row", "differences"]

Row = Mapping[str, object]

_SHOWN_CHARACTERS: Final = 120


def differences(table: str, key: Sequence[str], cassandra: Iterable[Row], spark: Iterable[Row]) -> list[str]:
    """One line for each row that is missing, additional or not equal; empty if both sides are equal.

    `cassandra` holds rows as cassandra-driver gives them, `spark` rows as `Row.asDict(recursive=True)`.
    Spark's times have no zone, and are in the zone of this process.
    """
    expected = {_key(row, key): row for row in cassandra}
    found: dict[str, Row] = {}
    lines: list[str] = []
    for row in map(_with_zones, spark):
        if (name := _key(row, key)) in found:
            lines.append(f"{table} {name}: is twice in Spark")
        found[name] = row
    lines += [f"{table} {name}: is in Cassandra and not in Spark" for name in sorted(expected.keys() - found.keys())]
    lines += [f"{table} {name}: is in Spark and not in Cassandra" for name in sorted(found.keys() - expected.keys())]
    for name in sorted(expected.keys() & found.keys()):
        lines += [f"{table} {name}: {line}" for line in _row_differences(expected[name], found[name])]
    return lines


def _row_differences(expected: Row, found: Row) -> list[str]:
    lines = [f"column {name} is missing in Spark" for name in sorted(expected.keys() - found.keys())]
    lines += [f"column {name} is only in Spark" for name in sorted(found.keys() - expected.keys())]
    for name in sorted(expected.keys() & found.keys()):
        wanted, got = _comparable(expected[name]), _comparable(found[name])
        if isinstance(expected[name], AbstractSet) and isinstance(got, list):
            got = sorted(got, key=repr)  # a set is an array in Spark, and its order has no meaning
        if wanted != got:
            lines.append(f"{name} is {_short(wanted)} in Cassandra and {_short(got)} in Spark")
    return lines


def _with_zones(row: Row) -> Row:
    return {name: _with_zone(value) for name, value in row.items()}


def _with_zone(value: object) -> object:
    """A value of Spark. Its times get the zone of this process."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, Mapping):
        return {_with_zone(name): _with_zone(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_zone(each) for each in value]
    return value


def _comparable(value: object) -> object:
    """The value in the form of both sides: text for uuids, UTC for times, dictionaries for maps and user types."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime):
        # The driver's times are naive, in UTC.
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    if hasattr(value, "days_from_epoch"):  # cassandra.util.Date
        return date.fromordinal(date(1970, 1, 1).toordinal() + value.days_from_epoch)
    if isinstance(value, Mapping):
        return {str(_comparable(name)): _comparable(each) for name, each in value.items()}
    if hasattr(value, "_asdict"):  # a user type
        return _comparable(value._asdict())
    if isinstance(value, AbstractSet):
        return sorted(map(_comparable, value), key=repr)
    if isinstance(value, list | tuple):
        return [_comparable(each) for each in value]
    return value


def _key(row: Row, columns: Sequence[str]) -> str:
    return ", ".join(f"{name}={_comparable(row[name])}" for name in columns)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
