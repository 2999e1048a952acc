"""The data topics of a table: where the sources that serve it publish its records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cdc.health.sources import SourceView, names_in
from schemas.topics import full_topic_name
from source_connector.configuration.config import SourceConfig
from source_connector.configuration.table_selection import TableSelection, is_pattern, is_table_name, is_template

__all__ = ["data_topics", "named_tables", "own_data_topics", "patterns_of", "serves"]

_DEFAULT: Final = str(SourceConfig.model_fields["destination"].default)


def data_topics(table: str, sources: Sequence[SourceView]) -> tuple[str, ...]:
    """Full names of the topics that may have the records of `keyspace.table`, each once.

    The topics of sources for a single table come first, and the connector's default comes last.
    """
    keyspace, _, name = table.partition(".")
    own_first = sorted(sources, key=lambda each: bool(each.options.get("tables")))
    found = [topic for each in own_first for topic in _of_source(each, keyspace, name)]
    return tuple(dict.fromkeys([*found, full_topic_name(_DEFAULT.format(keyspace=keyspace, table=name))]))


def serves(source: SourceView, table: str) -> bool:
    """Return True if the source publishes the records of `keyspace.table`."""
    return bool(own_data_topics(source, table))


def own_data_topics(source: SourceView, table: str) -> tuple[str, ...]:
    """Full names of the topics where the source publishes the records of `keyspace.table`; none if it does not."""
    keyspace, _, name = table.partition(".")
    return tuple(_of_source(source, keyspace, name))


def named_tables(source: SourceView) -> list[str]:
    """The tables that the source's options name without wildcards, as `keyspace.table`."""
    options = source.options
    if options.get("keyspace") and options.get("table"):
        return [f"{options['keyspace']}.{options['table']}"]
    return [entry for entry in _entries(options) if not is_pattern(entry)]


def patterns_of(source: SourceView) -> list[str]:
    """The patterns of tables in the source's options."""
    options = source.options
    return [] if options.get("keyspace") and options.get("table") else [*filter(is_pattern, _entries(options))]


def _of_source(source: SourceView, keyspace: str, name: str) -> Iterator[str]:
    options = source.options
    if (options.get("keyspace"), options.get("table")) == (keyspace, name):
        if source.topic:
            yield source.topic
        return
    template = str(options.get("destination") or _DEFAULT)
    if is_template(template):  # otherwise the source does not start
        selection = TableSelection(entries=_entries(options), destination_template=template)
        places = [*selection.named(), *selection.found([(keyspace, name, True)])]
        yield from (each.destination for each in places if (each.keyspace, each.table) == (keyspace, name))


def _entries(options: Mapping[str, Any]) -> list[str]:
    """Names and patterns of the option `tables`: a list, or a text with commas."""
    return [entry for entry in names_in(options.get("tables") or ()) if is_table_name(entry)]
