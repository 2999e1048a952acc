"""The options that hide columns: their patterns, and the errors that show before any table is known. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from schemas.errors import ConfigError, ConfigProblem
from schemas.hidden_columns import SHORTEST_KEY, ColumnPattern, Hiding
from source_connector.configuration.table_selection import is_pattern

__all__ = ["HASH_KEY", "column_patterns", "hidden_problems"]

HASH_KEY: Final = "columns.hashKey"


def column_patterns(entries: Mapping[Hiding, Sequence[str]]) -> tuple[ColumnPattern, ...]:
    """The patterns of all four options. Raises ConfigError with every problem."""
    found: list[ColumnPattern] = []
    problems: list[ConfigProblem] = []
    for hiding in Hiding:
        for entry in entries.get(hiding, ()):
            try:
                found.append(ColumnPattern.parse(hiding, entry))
            except ConfigError as error:
                problems += error.problems
    if problems:
        raise ConfigError(problems)
    return tuple(found)


def hidden_problems(
    entries: Mapping[Hiding, Sequence[str]], key: str, tables: Sequence[str]
) -> Iterator[ConfigProblem]:
    """Problems of the options that hide columns. `tables` are the entries of the tables that are served."""
    for hiding in Hiding:
        for entry in entries.get(hiding, ()):
            try:
                pattern = ColumnPattern.parse(hiding, entry)
            except ConfigError as error:
                yield from error.problems
            else:
                if not any(_may_meet(pattern.table, each) for each in tables):
                    reason = f"{entry} matches none of this source's tables ({', '.join(tables)})"
                    yield ConfigProblem(option=hiding.value, reason=reason)
    if not entries.get(Hiding.HASH):
        return
    if not key:
        reason = f"is required by columns.hash: a secret text of at least {SHORTEST_KEY} bytes (`openssl rand -hex 32` makes one)"
        yield ConfigProblem(option=HASH_KEY, reason=reason)
    elif len(key.encode()) < SHORTEST_KEY:
        reason = f"has {len(key.encode())} bytes, and needs at least {SHORTEST_KEY} (`openssl rand -hex 32` makes one)"
        yield ConfigProblem(option=HASH_KEY, reason=reason)


def _may_meet(pattern: str, entry: str) -> bool:
    """False if surely no table matches both. True for two patterns with wildcards, as the tables are not known yet."""
    if is_pattern(pattern) and is_pattern(entry):
        return True
    return fnmatch.fnmatchcase(entry, pattern) or fnmatch.fnmatchcase(pattern, entry)
