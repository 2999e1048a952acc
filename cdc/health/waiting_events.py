"""Whether the events of a table are read, and what to do if they are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cdc.health.backlog import Backlog
from cdc.health.findings import Finding, as_duration, failure, ok, warning
from cdc.health.shared_events import events_of
from cdc.health.source_log import SourceWarnings
from cdc.health.source_pace import STALLED_S, SourcePace
from cdc.health.sources import SourceView, names_in

__all__ = ["waiting_finding", "waits_for"]

_LATE_S: Final = 60.0
_VERY_LATE_S: Final = 600.0
# How the connector says that a table's events wait until an operator has done something.
_PARKED: Final = "is parked"
_NO_PACE: Final = SourcePace()


def waiting_finding(
    table: str,
    waiting: Backlog,
    records: str,
    read_by: tuple[str, str],
    sources: Sequence[SourceView],
    logged: SourceWarnings,
    pace: SourcePace = _NO_PACE,
) -> Finding:
    """Whether the events of a table are read.

    `records`: the size of its data topic, as text. `read_by`: its events topic, and the subscription that the agents keep
    for the connector. `sources`: those that serve it. `logged`: what they warn of. `pace`: what they do for their other
    tables.
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
    is_very_late = waiting.oldest_s > _VERY_LATE_S
    if said:
        make = failure if _PARKED in said or is_very_late else warning
        return make(table, says, "do what the log says; nothing is lost, and other tables continue", **facts)
    # After ten minutes a table counts as stalled, even if its source is busy with other tables.
    is_stalled = waiting.stalled_s > STALLED_S and (is_very_late or not pace.is_busy)
    if not is_stalled and waiting.oldest_s <= _LATE_S:
        return ok(table, says, **facts)
    make = failure if is_very_late else warning
    log = f"{sources[0].log_path} on the worker" if sources else "the source's log"
    if is_stalled:
        says, remedy = f"{says}; {_stalled_text(waiting, pace)}", _remedy_of_stalled(log, pace)
    else:
        says, remedy = f"{says}{_busy_text(pace)}", _remedy_of_late(log)
    hint = "" if logged.is_known else " (functionsLogDir in line.yaml shows this here)"
    return make(table, says, f"{remedy}{hint}", **facts)


def _busy_text(pace: SourcePace) -> str:
    if not pace.behind:
        return ""
    return f"; its source catches up with {pace.behind:,} other table{'' if pace.behind == 1 else 's'}"


def _stalled_text(waiting: Backlog, pace: SourcePace) -> str:
    text = f"none of its events was acknowledged for {as_duration(waiting.stalled_s)}"
    if pace.moving:
        return f"{text}, while {pace.moving:,} other table{' goes' if pace.moving == 1 else 's go'} on"
    if pace.still:
        return f"{text}, and none of {pace.still:,} other table{'' if pace.still == 1 else 's'} of its source"
    return text


def _remedy_of_stalled(log: str, pace: SourcePace) -> str:
    if pace.still and not pace.moving:
        return f"see that Cassandra and Pulsar answer (cdc doctor), and {log}: it says what the source waits for; nothing is lost"
    return (
        f"see {log}: it says whether the table is parked, or why its rows cannot be read; nothing is lost, and other"
        " tables continue"
    )


def _remedy_of_late(log: str) -> str:
    return f"wait until it has caught up; if the age grows, see {log}: it says which table is parked, and which rows cannot be read"


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
