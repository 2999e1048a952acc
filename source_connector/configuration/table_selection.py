"""The tables that a source serves (one, or those that names and patterns select), with their topics. Pure.

A name is `keyspace.table`. A pattern has `*` or `?` in it and selects among the tables that have `cdc = true`.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from schemas.topics import DEFAULT_EVENTS_PREFIX, expiry_topic, full_topic_name

__all__ = ["TablePlace", "TableSelection", "is_pattern", "is_table_name", "is_template", "main_topic"]

_SYSTEM: Final = ("system", "system_schema", "system_auth", "system_distributed", "system_traces", "system_views")
_OUR_PREFIX: Final = DEFAULT_EVENTS_PREFIX.rpartition("/")[2]
_DATASTAX_PREFIX: Final = "events-"


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlace:
    """A table, the topics of its events, and the topic of its records (empty for the source's own topic)."""

    keyspace: str
    table: str
    events_topics: tuple[str, ...]
    destination: str = ""

    @property
    def expiry_topic(self) -> str:
        """The topic where its rows wait for their expiry."""
        return expiry_topic(main_topic(self.events_topics), self.keyspace, self.table)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSelection:
    """A single table, or names and patterns with templates for the topics of each table."""

    only: TablePlace | None = None
    entries: Sequence[str] = ()
    events_templates: Sequence[str] = ()
    destination_template: str = ""

    @property
    def has_patterns(self) -> bool:
        """True when tables may be added later."""
        return any(map(is_pattern, self.entries))

    def named(self) -> list[TablePlace]:
        """The tables that are named. They are served even if they do not exist yet."""
        if self.only is not None:
            return [self.only]
        return [self._place(*entry.split(".", 1)) for entry in self.entries if not is_pattern(entry)]

    def found(self, tables: Iterable[tuple[str, str, bool]]) -> Iterator[TablePlace]:
        """The tables that a pattern selects. `tables` are all of the cluster's (keyspace, table, cdc)."""
        patterns = [entry for entry in self.entries if is_pattern(entry)]
        for keyspace, table, cdc in tables:
            name = f"{keyspace}.{table}"
            if cdc and keyspace not in _SYSTEM and any(fnmatch.fnmatchcase(name, each) for each in patterns):
                yield self._place(keyspace, table)

    def _place(self, keyspace: str, table: str) -> TablePlace:
        names = {"keyspace": keyspace, "table": table}
        return TablePlace(
            keyspace=keyspace,
            table=table,
            events_topics=tuple(full_topic_name(each.format(**names)) for each in self.events_templates),
            destination=full_topic_name(self.destination_template.format(**names)),
        )


def main_topic(events_topics: Sequence[str]) -> str:
    """The events topic from whose name the connector derives its own topics: the first one with a name of our agents.

    So its own topics stay the same when a migration ends and the topic of DataStax's agents is removed.
    """
    return min(events_topics, key=_rank)


def _rank(topic: str) -> int:
    name = topic.rpartition("/")[2]
    if name.startswith(_OUR_PREFIX):
        return 0
    return 2 if name.startswith(_DATASTAX_PREFIX) else 1


def is_pattern(entry: str) -> bool:
    """True for an entry that may select several tables."""
    return "*" in entry or "?" in entry


def is_table_name(entry: str) -> bool:
    """True for `keyspace.table`, with or without wildcards."""
    keyspace, dot, table = entry.partition(".")
    return bool(dot and keyspace and table) and "." not in table


def is_template(text: str) -> bool:
    """True for a template that gives each table its own topic."""
    try:
        return text.format(keyspace="a", table="b") != text.format(keyspace="c", table="d") and (
            text.format(keyspace="a", table="b") != text.format(keyspace="a", table="d")
        )
    except (LookupError, ValueError, AttributeError, TypeError):
        return False
