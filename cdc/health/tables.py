"""How it stands with the tables' topics: what waits for the connector, what the data topics hold, what was set aside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Final

from cdc.health.findings import Finding, as_bytes, as_duration, failure, ok, warning
from cdc.health.line_config import LineConfig
from cdc.health.pulsar_service import NotThereError, PulsarService
from cdc.health.sources import SourceView
from schemas.gap_record import MalformedGapError, decode_gap, gaps_topic
from schemas.topics import full_topic_name
from source_connector.events.dead_letters import RESEND_SUBSCRIPTION

__all__ = ["dead_letters", "events_tables", "gaps", "tables"]

_LATE_S: Final = 60.0
_VERY_LATE_S: Final = 600.0
_SHOWN_GAPS: Final = 3


def events_tables(topics: Sequence[str], prefix: str) -> dict[str, str]:
    """The events topics among these: `keyspace.table` -> topic. Topics of the line's own have no dot behind the prefix."""
    full = full_topic_name(prefix)
    found = {topic.removeprefix(full): topic for topic in topics if topic.startswith(full)}
    return {table: topic for table, topic in found.items() if "." in table}


def tables(
    service: PulsarService, config: LineConfig, topics: Sequence[str], sources: Sequence[SourceView], now_s: float
) -> list[Finding]:
    """One finding a table. Raises PulsarServiceError."""
    events = events_tables(topics, config.topic_prefix)
    known = set(topics)

    def look(table: str) -> list[Finding]:
        return list(_table(service, config, table, events[table], _data_topic(table, sources, known), now_s))

    with ThreadPoolExecutor(8) as pool:
        return [finding for found in pool.map(look, sorted(events)) for finding in found]


def _data_topic(table: str, sources: Sequence[SourceView], known: set[str]) -> str | None:
    """The one that is there: as the table's own source has it, or by the connector's default."""
    own = [
        source.topic for source in sources if f"{source.options.get('keyspace')}.{source.options.get('table')}" == table
    ]
    candidates = [*own, full_topic_name(f"data-{table}")]
    return next((each for each in candidates if each in known), None)


def _table(
    service: PulsarService, config: LineConfig, table: str, topic: str, data: str | None, now_s: float
) -> Iterator[Finding]:
    try:
        stats = service.stats(topic)
    except NotThereError:
        return
    waiting = Backlog.of(stats, config.events_subscription_name, now_s)
    records = _records(service, data)
    if waiting is None:
        text = f"its events topic has no subscription {config.events_subscription_name}: Pulsar deletes what comes"
        remedy = "let the agent make it (createTopics), or name the right eventsSubscriptionName"
        yield failure(table, text, remedy)
        return
    facts = {"waiting_messages": waiting.messages, "oldest_s": waiting.oldest_s, "consumers": waiting.consumers}
    says = f"{waiting.text()}; {records}"
    if not waiting.consumers:
        remedy = "see the sources: none that runs reads this table (pulsar-admin sources create, docs/connector.md)"
        yield failure(table, f"no source reads its events: {says}", remedy, **facts)
    elif waiting.oldest_s > _LATE_S:
        make = failure if waiting.oldest_s > _VERY_LATE_S else warning
        remedy = "it catches up, or see the source's log: a row that cannot be read holds its own key only"
        yield make(table, says, remedy, **facts)
    else:
        yield ok(table, says, **facts)


class Backlog:
    """What of a topic a subscription has not acknowledged."""

    def __init__(self, *, messages: int, oldest_s: float, consumers: int) -> None:
        self.messages: Final = messages
        self.oldest_s: Final = oldest_s
        self.consumers: Final = consumers

    @classmethod
    def of(cls, stats: Mapping[str, Any], subscription: str, now_s: float) -> Backlog | None:
        """From a topic's statistics; None where it has no such subscription."""
        parts = list((stats.get("partitions") or {}).values()) or [stats]
        found = [each["subscriptions"][subscription] for each in parts if subscription in each["subscriptions"]]
        if not found:
            return None
        oldest = [
            int(each.get("earliestMsgPublishTimeInBacklog") or 0) for each in found if int(each["msgBacklog"]) > 0
        ]
        times = [each / 1000 for each in oldest if each > 0]
        return cls(
            messages=sum(int(each["msgBacklog"]) for each in found),
            oldest_s=max(0.0, now_s - min(times)) if times else 0.0,
            consumers=sum(len(each.get("consumers") or ()) for each in found),
        )

    def text(self) -> str:
        """`nothing waits`, or how much and how long."""
        if not self.messages:
            return "nothing waits"
        age = f", the oldest for {as_duration(self.oldest_s)}" if self.oldest_s else ""
        return f"{self.messages:,} message{'s wait' if self.messages != 1 else ' waits'}{age}"


def _records(service: PulsarService, topic: str | None) -> str:
    if topic is None:
        return "no data topic yet"
    try:
        stats = service.stats(topic)
    except NotThereError:
        return "no data topic yet"
    return f"{topic.rpartition('/')[2]} holds {as_bytes(int(stats['storageSize']))}"


def dead_letters(
    service: PulsarService, config: LineConfig, sources: Sequence[SourceView], now_s: float
) -> list[Finding]:
    """One finding a topic of dead letters. Raises PulsarServiceError."""
    named = [str(each.options["deadLetter.topic"]) for each in sources if each.options.get("deadLetter.topic")]
    found = []
    for topic in dict.fromkeys(full_topic_name(each) for each in (config.dead_letters_topic, *named)):
        try:
            waiting = Backlog.of(service.stats(topic), RESEND_SUBSCRIPTION, now_s)
        except NotThereError:
            waiting = None
        short = topic.rpartition("/")[2]
        if waiting is None or not waiting.messages:
            found.append(ok(short, "none", letters=0))
            continue
        options = f"--service-url {config.pulsar_service_url} --topic {topic}"
        text = f"{waiting.messages:,} changes could not be published and are dead letters"
        remedy = f"`cdc connector dead-letters {options}` says why; then `cdc connector resend {options}`"
        found.append(failure(short, text, remedy, letters=waiting.messages))
    return found


def gaps(service: PulsarService, config: LineConfig, now_s: float) -> list[Finding]:
    """What agents have told about lost changes, and nobody has acknowledged. Raises PulsarServiceError."""
    topic, subscription = gaps_topic(config.topic_prefix), config.events_subscription_name
    try:
        waiting = Backlog.of(service.stats(topic), subscription, now_s)
    except NotThereError:
        waiting = None
    if waiting is None or not waiting.messages:
        return [ok("", "none", gaps=0)]
    remedy = f"`cdc spark verify --repair` (or backfill) the tables, then `pulsar-admin topics clear-backlog -s {subscription} {topic}`"
    text = (
        f"{waiting.messages:,} gap records: changes may be lost. {'; '.join(_told_gaps(service, topic, subscription))}"
    )
    return [failure("", text.strip(), remedy, gaps=waiting.messages)]


def _told_gaps(service: PulsarService, topic: str, subscription: str) -> Iterator[str]:
    """The first ones, in words."""
    count = service.partitions(topic)
    names = [f"{topic}-partition-{number}" for number in range(count)] or [topic]
    told = 0
    for name in names:
        for payload in service.peek(name, subscription, _SHOWN_GAPS - told):
            try:
                gap = decode_gap(payload)
            except MalformedGapError:
                continue
            told += 1
            since = "the beginning" if gap.from_ms is None else _minute(gap.from_ms)
            yield f"{gap.keyspace}.{gap.table} from {since} to {_minute(gap.to_ms)} UTC ({gap.reason})"


def _minute(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
