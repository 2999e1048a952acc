"""Finds tables whose events two sources share: each of the two publishes only a part of the changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Final

from cdc.health.data_topics import own_data_topics
from cdc.health.findings import Finding, failure, warning
from cdc.health.sources import SourceView, names_in
from schemas.topics import DEFAULT_EVENTS_PREFIX, DEFAULT_SUBSCRIPTION, full_topic_name

__all__ = ["events_of", "shared_events"]

_SHOWN: Final = 3


def shared_events(sources: Sequence[SourceView], tables: Iterable[str]) -> Iterator[Finding]:
    """A finding for each two sources that read one events topic by one subscription.

    Pulsar divides the topic's partitions between the two. `tables`: those of the cluster, as `keyspace.table`. A source
    that does not run reads nothing.
    """
    names = sorted(tables)
    reads = [(each, {name: events_of(each, name) for name in names}) for each in sources if each.running]
    for (one, of_one), (other, of_other) in combinations(reads, 2):
        shared = [name for name in names if of_one[name] & of_other[name]]
        if shared:
            yield _finding(one, other, shared)


def events_of(source: SourceView, table: str) -> set[tuple[str, str]]:
    """The events topics of `keyspace.table` that the source reads, each with its subscription; none if it does not
    serve the table."""
    if not own_data_topics(source, table):
        return set()
    keyspace, _, name = table.partition(".")
    subscription = str(source.options.get("events.subscription.name") or DEFAULT_SUBSCRIPTION)
    templates = names_in(source.options.get("events.topic") or f"{DEFAULT_EVENTS_PREFIX}{{keyspace}}.{{table}}")
    topics = (each.replace("{keyspace}", keyspace).replace("{table}", name) for each in templates)
    return {(full_topic_name(each), subscription) for each in topics}


def _finding(one: SourceView, other: SourceView, tables: Sequence[str]) -> Finding:
    shown = ", ".join(tables[:_SHOWN]) + (f" and {len(tables) - _SHOWN} more" if len(tables) > _SHOWN else "")
    text = f"reads the events of {shown} together with the source {other.name}: each gets only a part of them"
    remedy = f"pulsar-admin sources delete {other.arguments}, or {one.arguments}; or take the table out of its options"
    apart = [each for each in tables if own_data_topics(one, each) != own_data_topics(other, each)]
    if not apart:
        return warning(one.name, f"{text}, and both publish to the same data topic", remedy, tables=list(tables))
    topics = [own_data_topics(each, apart[0])[0].rpartition("/")[2] for each in (one, other)]
    text = f"{text}, and neither {topics[0]} nor {topics[1]} has all changes"
    return failure(one.name, text, f"{remedy}; then `cdc spark verify --repair` the table", tables=list(tables))
