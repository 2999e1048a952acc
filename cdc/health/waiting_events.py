"""Whether the events of a table are read, and what to do if they are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cdc.health.backlog import Backlog
from cdc.health.findings import Finding, as_duration, failure, ok, warning
from cdc.health.shared_events import events_of
from cdc.health.source_log import SourceWarnings
from cdc.health.sources import SourceView, names_in

__all__ = ["waiting_finding", "waits_for"]

_LATE_S: Final = 60.0
# A truncation that a node does not confirm keeps all events of a table waiting for up to 15 s and 5 s.
STALLED_S: Final = 20.0
_VERY_LATE_S: Final = 600.0
# How the connector says that a table's events wait until an operator has done something.
_PARKED: Final = "is parked"


def waiting_finding(
    table: str,
    waiting: Backlog,
    records: str,
    read_by: tuple[str, str],
    sources: Sequence[SourceView],
    logged: SourceWarnings,
) -> Finding:
    """Whether the events of a table are read.

    `records`: the size of its data topic, as text. `read_by`: its events topic, and the subscription that the agents keep
    for the connector. `sources`: those that serve it. `logged`: what they warn of.
    """
    facts = {"waiting_messages": waiting.messages, "oldest_s": waiting.oldest_s, "consumers": waiting.consumers}
    says = f"{waiting.text()}; {records}"
    said = next(filter(None, (logged.about(each.name, table) for each in sources)), "") if waiting.messages else ""
    if said:
        says = f"{says}; its source's log says: {said}"
    if not waiting.consumers:
        if any(each.starts_for_s is not None for each in sources):
            return warning(table, f"its source is starting: {says}", "wait, and see the sources", **facts)
        return failure(
            table, f"no source reads its events: {says}", _remedy_of_unread(table, read_by, sources), **facts
        )
    is_stalled = waiting.stalled_s > STALLED_S
    if not said and not is_stalled and waiting.oldest_s <= _LATE_S:
        return ok(table, says, **facts)
    make = failure if _PARKED in said or waiting.oldest_s > _VERY_LATE_S else warning
    if said:
        return make(table, says, "do what the log says; nothing is lost, and other tables continue", **facts)
    if is_stalled:
        says = f"{says}; none of its events was acknowledged for {as_duration(waiting.stalled_s)}"
    return make(table, says, _remedy_of_late(sources, is_stalled=is_stalled), **facts)


def _remedy_of_late(sources: Sequence[SourceView], *, is_stalled: bool) -> str:
    place = f"{sources[0].log_path} on the worker" if sources else "the source's log"
    if is_stalled:
        return (
            f"see {place}: it says whether the table is parked, or why its rows cannot be read (functionsLogDir in line.yaml"
            " shows this here); nothing is lost, and other tables continue"
        )
    return (
        f"wait until it has caught up, or see {place}: it says which table is parked, and why (functionsLogDir in line.yaml"
        " shows this here); a row that cannot be read delays only its own key"
    )


def _remedy_of_unread(table: str, read_by: tuple[str, str], sources: Sequence[SourceView]) -> str:
    """What to do about a table whose events nobody reads.

    `read_by`: the events topic and the subscription that the agents keep for the connector. `sources`: those that serve
    the table.
    """
    running = next((each for each in sources if each.running), None)
    if running is not None:
        topic, subscription = read_by
        reads = sorted(events_of(running, table))
        if all(each != topic for each, _ in reads):
            return (
                f"its source {running.name} reads {reads[0][0].rpartition('/')[2]} instead of {topic.rpartition('/')[2]}:"
                " correct its option events.topic, or topicPrefix of the agents and of line.yaml"
            )
        if read_by not in reads:
            return (
                f"its source {running.name} reads with the subscription {reads[0][1]}, and the agents keep {subscription}:"
                " set events.subscription.name of the source and eventsSubscriptionName to the same name"
            )
        return f"its source {running.name} runs, and waits: {waits_for(running)}"
    if sources:
        return f"see its source {sources[0].name} above"
    return "deploy a source for it: pulsar-admin sources create (docs/connector.md)"


def waits_for(source: SourceView) -> str:
    """What to do about a source that runs and does not read its events topics."""
    nodes = ", ".join(names_in(source.options.get("contactPoints") or ()))
    asks = f"; it asks Cassandra at {nodes}: correct its option contactPoints if that is wrong" if nodes else ""
    return f"{source.log_path} on the worker says for what{asks}"
