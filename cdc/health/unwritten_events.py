"""Finds sources that read an events topic that nobody writes, for example because of a mistyped `events.topic`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from cdc.health.findings import Finding, warning
from cdc.health.pulsar_service import NotThereError, PulsarService, PulsarServiceError
from cdc.health.shared_events import events_of
from cdc.health.sources import SourceView
from cdc.health.tables import events_tables
from cdc.health.unanswered import ask_each

__all__ = ["unwritten_events"]

_SHOWN: Final = 3


def unwritten_events(
    service: PulsarService, sources: Sequence[SourceView], tables: Iterable[str], topics: Collection[str], prefix: str
) -> list[Finding]:
    """A finding for each running source that reads other topics than the agents write.

    The source publishes nothing of such a table. If another source serves the table, its events do not wait. `tables`:
    those of the cluster, as `keyspace.table`. `topics`: all of the line's namespaces. `prefix`: that of the agents.
    """
    written = events_tables([*topics], prefix)
    names = sorted(written.keys() & set(tables))
    wrong: dict[str, dict[str, list[str]]] = {}
    for source in sources:
        reads = {name: sorted(topic for topic, _ in events_of(source, name)) for name in names if source.running}
        if its_own := {name: read for name, read in reads.items() if read and written[name] not in read}:
            wrong[source.name] = its_own
    by_name = {each.name: each for each in sources}

    def look(_: str, name: str) -> Iterator[Finding]:
        if not any(_is_written(service, topic, topics) for read in wrong[name].values() for topic in read):
            yield _finding(by_name[name], wrong[name], written)

    asked = ((next(iter(reads.values()))[0], name) for name, reads in wrong.items())
    return ask_each(asked, look, "whether somebody writes what it reads")


def _is_written(service: PulsarService, topic: str, topics: Collection[str]) -> bool:
    """False for a topic that does not exist, or that has no producer and no message."""
    namespace = topic.rpartition("/")[0]
    if topic not in topics and any(each.startswith(f"{namespace}/") for each in topics):
        return False
    try:
        stats = service.stats(topic)
    except NotThereError:
        return False
    except PulsarServiceError as error:
        if not error.is_refusal:  # the topic may be of a tenant where the role has no rights
            raise
        return True
    return bool(stats.get("publishers") or stats.get("storageSize"))


def _finding(source: SourceView, wrong: dict[str, list[str]], written: dict[str, str]) -> Finding:
    [first, *others] = wrong
    read, writes = (topic.rpartition("/")[2] for topic in (wrong[first][0], written[first]))
    more = (
        f"; it is the same for {', '.join(others[:_SHOWN])}{', ...' if len(others) > _SHOWN else ''}" if others else ""
    )
    text = f"reads {read}, which nobody writes: the agents write the events of {first} to {writes}{more}"
    remedy = (
        f"correct its option events.topic with pulsar-admin sources update {source.arguments}, or topicPrefix of the agents and"
        " of line.yaml"
    )
    return warning(source.name, text, remedy, tables=[*wrong])
