"""Finds sources that run and read no events topic, with a subscription of their own.

The findings of tables are about the subscription that the agents keep. So they do not show what such a source reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from cdc.health.findings import Finding, warning
from cdc.health.pulsar_service import NotThereError, PulsarService, PulsarServiceError
from cdc.health.shared_events import events_of
from cdc.health.sources import SourceView
from cdc.health.unanswered import ask_each
from cdc.health.waiting_events import waits_for

__all__ = ["unread_events"]


def unread_events(
    service: PulsarService, sources: Sequence[SourceView], tables: Iterable[str], topics: Collection[str], kept: str
) -> list[Finding]:
    """A finding for each running source that reads neither the first nor the last events topic of its tables.

    Such a source waits, for example for Cassandra. One that reads others finds a new table some seconds later. `tables`:
    those of the cluster, as `keyspace.table`. `topics`: all of the line's namespaces. `kept`: the subscription that the
    agents keep.
    """
    names = sorted(tables)
    reads: dict[str, list[tuple[str, str]]] = {}
    for source in sources:
        its_own = sorted(each for name in names for each in events_of(source, name) if each[0] in topics)
        if source.running and its_own and its_own[0][1] != kept:
            reads[source.name] = its_own
    by_name = {each.name: each for each in sources}
    return ask_each(
        ((read[0][0], name) for name, read in reads.items()),
        lambda _, name: _of_source(service, by_name[name], reads[name]),
        "whether it reads its events",
    )


def _of_source(service: PulsarService, source: SourceView, reads: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    """`reads`: topic and subscription of each of its tables. Raises PulsarServiceError."""
    topic, subscription = reads[0]
    if not any(_has_consumer(service, each, subscription) for each in dict.fromkeys((topic, reads[-1][0]))):
        text = f"runs, and does not read {topic.rpartition('/')[2]} with its subscription {subscription}"
        yield warning(source.name, text, f"it waits: {waits_for(source)}")


def _has_consumer(service: PulsarService, topic: str, subscription: str) -> bool:
    """True also if the role may not look at the topic, or if it was deleted just now."""
    try:
        stats = service.stats(topic)
    except NotThereError:
        return True
    except PulsarServiceError as error:
        if not error.is_refusal:
            raise
        return True
    found = [stats, *(stats.get("partitions") or {}).values()]
    return any((each.get("subscriptions") or {}).get(subscription, {}).get("consumers") for each in found)
