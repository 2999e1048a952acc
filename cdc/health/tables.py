"""The state of the tables' topics: the connector's backlog, the size of data topics, dead letters and gaps.

Each topic may be of another broker. One that gives no answer hides no other topic.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from cdc.health.backlog import Backlog
from cdc.health.completeness import completeness_of, with_completeness
from cdc.health.data_topics import data_topics, serves
from cdc.health.dead_letter_topics import dead_letter_topics
from cdc.health.findings import Finding, as_bytes, failure, ok, warning
from cdc.health.line_config import LineConfig
from cdc.health.pulsar_service import NotThereError, PulsarService, PulsarServiceError
from cdc.health.source_log import SourceWarnings
from cdc.health.source_pace import pace_of
from cdc.health.sources import SourceView
from cdc.health.topic_policies import EVENTS, as_hazard, asked_once, policy_warnings
from cdc.health.unanswered import TOGETHER, Unanswered, ask_each, remedy_of_topic
from cdc.health.waiting_events import waiting_finding
from clients.topic_policies import Ask, Audience
from schemas.gap_record import GapRecord, MalformedGapError, decode_gap, gaps_topic, open_gaps
from schemas.topics import full_topic_name
from source_connector.events.dead_letters import RESEND_SUBSCRIPTION
from source_connector.events.expiry_messages import EXPIRY_SUBSCRIPTION

__all__ = ["dead_letters", "events_tables", "expiries", "gap_finding", "gaps", "tables"]

_SHOWN_GAPS: Final = 3
_MOST_GAP_RECORDS: Final = 5_000
_NOT_KNOWN: Final = "whether a gap is open is not known"
# Stands between prefix and table in an expiry topic's name. No keyspace name can have a hyphen.
_EXPIRY: Final = "expiry-"


def events_tables(topics: Sequence[str], prefix: str) -> dict[str, str]:
    """The events topics among these, by `keyspace.table`.

    The other topics of the line have no dot behind the prefix, except the expiry topics.
    """
    full = full_topic_name(prefix)
    found = {topic.removeprefix(full): topic for topic in topics if topic.startswith(full)}
    return {table: topic for table, topic in found.items() if "." in table and not table.startswith(_EXPIRY)}


def expiries(service: PulsarService, config: LineConfig, topics: Sequence[str], now_s: float) -> list[Finding]:
    """One finding for each expiry topic among these: how much waits in it, and whether a source delivers it."""
    full = f"{full_topic_name(config.topic_prefix)}{_EXPIRY}"
    return ask_each(
        ((topic, topic.removeprefix(full)) for topic in sorted(topics) if topic.startswith(full)),
        lambda topic, table: _expiries(service, config, topic, table, now_s),
    )


def _expiries(service: PulsarService, config: LineConfig, topic: str, table: str, now_s: float) -> Iterator[Finding]:
    try:
        waiting = Backlog.of(service.stats(topic), EXPIRY_SUBSCRIPTION, now_s)
    except NotThereError:
        return
    if waiting is None or not waiting.messages:
        yield ok(table, "no expiry waits", waiting_messages=0)
        return
    options = f"{_urls(config)} --table {table}"
    text = (
        f"{waiting.messages:,} message{'s' if waiting.messages != 1 else ''} with expiries wait until their rows expire"
    )
    facts = {"waiting_messages": waiting.messages, "consumers": waiting.consumers}
    if waiting.consumers:
        yield ok(table, f"{text} (`cdc connector expiries {options}` counts the rows)", **facts)
    else:
        remedy = "start the table's source with expiry.publish: true; expiries that are due are then delivered at once"
        yield failure(table, f"no source delivers expiries: {text}", remedy, **facts)


def tables(
    service: PulsarService,
    config: LineConfig,
    topics: Sequence[str],
    sources: Sequence[SourceView],
    now_s: float,
    told: Collection[str] = (),
) -> list[Finding]:
    """One finding for each table, and warnings about policies of its topics.

    `told`: the hazards of events topics that agents have reported. An agent checks the policies once an hour.
    """
    events = events_tables(topics, config.topic_prefix)
    ask, logged = asked_once(service), SourceWarnings(config.functions_log_dir, now_s)
    checks, events_checks, unanswered = _PolicyChecks(ask), _PolicyChecks(ask, EVENTS, told), Unanswered()
    now_s = _at_the_broker(service, now_s)

    def look(table: str) -> _Table | None:
        if unanswered.skips(table):
            return None
        try:
            waiting = Backlog.of(service.stats(events[table]), config.events_subscription_name, now_s)
        except NotThereError:
            return None
        except PulsarServiceError as error:
            unanswered.add(table, events[table], error)
            return None
        data = _existing(service, data_topics(table, sources), unanswered)
        checks.look(each.name for each in data if each.is_known)
        events_checks.look([events[table]])
        its_own = [each for each in sources if serves(each, table)]
        return _Table(name=table, topic=events[table], waiting=waiting, data=data, sources=its_own)

    with ThreadPoolExecutor(TOGETHER) as pool:
        asked_completeness = pool.submit(
            completeness_of,
            config,
            sorted(events),
            dead_letter_topics(config, (each.options for each in sources)),
        )
        looked = [each for each in pool.map(look, sorted(events)) if each is not None]
        completeness = asked_completeness.result()
    found = [*(_table(each, looked, config, now_s, logged) for each in looked), *unanswered.findings()]
    if isinstance(completeness, Finding):
        completed = [*found, completeness]
    else:
        completed = with_completeness(found, completeness)
    return [*completed, *events_checks.findings(), *checks.findings()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """A table as Pulsar shows it. `waiting`: None if its events topic has no subscription of the connector.

    `data`: its data topics that exist. `sources`: those that serve it.
    """

    name: str
    topic: str
    waiting: Backlog | None
    data: Sequence[_DataTopic]
    sources: Sequence[SourceView]


def _at_the_broker(service: PulsarService, now_s: float) -> float:
    """The time by Pulsar's clock, if this machine's is ahead: what has just happened would seem to be long ago."""
    try:
        return min(now_s, service.clock_s())
    except PulsarServiceError:
        return now_s


def _table(table: _Table, every: Sequence[_Table], config: LineConfig, now_s: float, logged: SourceWarnings) -> Finding:
    """The finding about a table. `every`: all tables that Pulsar shows."""
    subscription = config.events_subscription_name
    if table.waiting is None:
        text = f"its events topic has no subscription {subscription}: Pulsar deletes new events"
        remedy = "set createTopics: true in agent.yaml, so that the agent creates it, or correct eventsSubscriptionName in line.yaml"
        return failure(table.name, text, remedy)
    names = {each.name for each in table.sources}
    others = [
        each.waiting
        for each in every
        if each is not table and each.waiting is not None and any(source.name in names for source in each.sources)
    ]
    records = table.data[0].text if table.data else "no data topic"
    read_by = full_topic_name(table.topic), subscription
    pace = pace_of(table.sources, others, now_s)
    return waiting_finding(table.name, table.waiting, records, read_by, table.sources, logged, pace)


@dataclass(frozen=True, slots=True)
class _DataTopic:
    """An existing data topic. `text`: its size, or why this is not known. `is_known`: False if Pulsar did not answer."""

    name: str
    text: str
    is_known: bool = True


def _existing(service: PulsarService, topics: Sequence[str], unanswered: Unanswered) -> list[_DataTopic]:
    """Those of these topics that exist, and those that the role may not look at, or that give no answer."""
    found = []
    for topic in topics:
        short = topic.rpartition("/")[2]
        try:
            found.append(_DataTopic(topic, f"{short} has {as_bytes(int(service.stats(topic)['storageSize']))}"))
        except NotThereError:
            continue
        except PulsarServiceError as error:
            if error.is_refusal:  # it may be of a tenant where the role has no rights
                found.append(_DataTopic(topic, f"the size of {short} is not known: {error}"))
            else:
                unanswered.add(short, topic, error)
                found.append(_DataTopic(topic, f"the size of {short} is not known", is_known=False))
    return found


class _PolicyChecks:
    """The policies that delete messages of data topics, or of events topics. Each is told once, with the number of its
    topics.

    `audience`: as for `policy_warnings`. `told`: hazards that are left out.
    """

    def __init__(self, ask: Ask, audience: Audience | None = None, told: Collection[str] = ()) -> None:
        self._audience: Final = audience
        self._kind: Final = "data" if audience is None else audience.messages
        self._told: Final = told
        self._ask: Final = ask
        self._deletions: Final[list[tuple[str, Finding]]] = []
        self._unread: Final[dict[str, PulsarServiceError]] = {}

    def look(self, topics: Iterable[str]) -> None:
        """Ask for the policies of these topics. Any thread may call this."""
        for topic in topics:
            try:
                found = policy_warnings(self._ask, topic, self._audience)
            except NotThereError:
                continue  # deleted just now
            except PulsarServiceError as error:
                self._unread[topic] = error
            else:
                self._deletions.extend((topic, each) for each in found if as_hazard(each) not in self._told)

    def findings(self) -> list[Finding]:
        """A warning for each policy, and one for all topics whose policies could not be read."""
        by_text: dict[str, list[tuple[str, Finding]]] = {}
        for topic, each in sorted(self._deletions, key=lambda found: found[0]):
            by_text.setdefault(each.text, []).append((topic, each))
        found = [_told_once([topic for topic, _ in group], group[0][1], self._kind) for group in by_text.values()]
        if self._unread:
            [first, *others] = sorted(self._unread)
            topics = first.rpartition("/")[2] + (f" and {len(others):,} other topics" if others else "")
            messages = "records" if self._audience is None else "unread events"
            text = f"it is not known whether Pulsar deletes {messages} of {topics}: {self._unread[first]}"
            remedy = remedy_of_topic(
                first, self._unread[first], "grant the right to read the topics' policies (tenant admin)"
            )
            found.append(warning(f"{self._kind} topics", text, remedy))
        return found


def _told_once(topics: Sequence[str], first: Finding, kind: str) -> Finding:
    """The finding about the first of these topics, with the number of the others of this kind."""
    if len(topics) == 1:
        return first
    others = f"{len(topics) - 1:,} other {kind} topic{'s' if len(topics) > 2 else ''}"
    text = f"{first.text}; the same holds for {others}, which `cdc doctor` lists"
    return replace(first, text=text, facts={"topics": list(topics)})


def dead_letters(
    service: PulsarService, config: LineConfig, sources: Sequence[SourceView], now_s: float
) -> list[Finding]:
    """One finding for each dead-letter topic."""
    topics = dead_letter_topics(config, (each.options for each in sources))
    return ask_each(
        ((topic, topic.rpartition("/")[2]) for topic in topics),
        lambda topic, short: [_dead_letters(service, config, topic, short, now_s)],
    )


def _dead_letters(service: PulsarService, config: LineConfig, topic: str, short: str, now_s: float) -> Finding:
    """The finding about a dead-letter topic. Raises PulsarServiceError."""
    try:
        stats = service.stats(topic)
    except NotThereError:
        return ok(short, "none", letters=0)
    waiting = Backlog.of(stats, RESEND_SUBSCRIPTION, now_s)
    if waiting is None and not _is_unused(stats):
        text = (
            f"whether there are any is not known: the topic has no subscription {RESEND_SUBSCRIPTION}, which keeps them"
        )
        remedy = f"pulsar-admin topics create-subscription -m earliest -s {RESEND_SUBSCRIPTION} {topic}"
        return warning(short, text, remedy)
    if waiting is None or not waiting.messages:
        return ok(short, "none", letters=0)
    options = f"{_urls(config)} --topic {topic}"
    text = f"{waiting.messages:,} changes could not be published and are dead letters"
    if waiting.messages == 1:
        text = "1 change could not be published and is a dead letter"
    remedy = f"`cdc connector dead-letters {options}` gives the reasons; then `cdc connector resend {options}`"
    return failure(short, text, remedy, letters=waiting.messages)


def _is_unused(stats: Mapping[str, Any]) -> bool:
    """Return True if a topic has no message, and got none since its broker loaded it.

    Pulsar creates the dead-letter topic when somebody lists dead letters before there is any. The connector creates the
    subscription before its first dead letter.
    """
    return not int(stats.get("storageSize") or 0) and not int(stats.get("msgInCounter") or 0)


def gaps(service: PulsarService, config: LineConfig, now_s: float) -> list[Finding]:
    """The reported gaps that are neither closed nor acknowledged. Raises PulsarServiceError."""
    topic, subscription = gaps_topic(config.topic_prefix), config.events_subscription_name
    try:
        waiting = Backlog.of(service.stats(topic), subscription, now_s)
    except NotThereError:
        waiting = None
    if waiting is None or not waiting.messages:
        return [ok("", "none", gaps=0)]
    count = service.partitions(topic)
    names = [f"{topic}-partition-{number}" for number in range(count)] or [topic]
    most = min(waiting.messages, _MOST_GAP_RECORDS)
    try:
        payloads = [payload for name in names for payload in service.peek(name, subscription, most)]
    except PulsarServiceError as error:
        if not error.is_refusal:
            raise
        remedy = f"pulsar-admin topics grant-permission --role ROLE --actions consume {topic}"
        return [failure("", f"{_NOT_KNOWN}: {error}", remedy)]
    return [gap_finding(payloads, waiting.messages, f"-s {subscription} {topic}")]


def gap_finding(payloads: Sequence[bytes], waiting: int, acknowledged_by: str) -> Finding:
    """The finding about gaps.

    `payloads`: the messages of the gaps topic that were read. `waiting`: the number of messages that wait in it.
    `acknowledged_by`: the options of `pulsar-admin topics clear-backlog` that acknowledge them.
    """
    records = []
    foreign = 0
    for payload in payloads:
        try:
            records.append(decode_gap(payload))
        except MalformedGapError:
            foreign += 1
    found = open_gaps(records)
    others = f"messages that are no gap records: {foreign}" if foreign else ""
    if len(payloads) < waiting:
        return _unread(found, f"of {waiting:,} messages {len(payloads):,} were read{f'; {others}' if others else ''}")
    clear = f"`pulsar-admin topics clear-backlog {acknowledged_by}`"
    if not found:
        closed = sum(not each.is_closing for each in records)
        text = f"none is open, {closed:,} {'is' if closed == 1 else 'are'} closed"
        if others:
            return warning("", f"{text}; {others}", f"see what they are, then {clear}", gaps=0)
        return ok("", text, gaps=0)
    text = f"{_gaps_text(found)}{f'. {others}' if others else ''}"
    remedy = (
        "`cdc spark resync` sends these changes again and closes them (docs/runbook.md); or `cdc spark verify --repair` the tables, then"
        f" {clear}, and run `cdc agent resume-progress` on {_nodes_text(found)}: it cannot see that the records were acknowledged"
    )
    return failure("", text, remedy, gaps=len(found))


def _unread(found: Sequence[GapRecord], read: str) -> Finding:
    """The finding if some messages were not read: they may report more gaps, or close gaps that were found."""
    text = f"{_NOT_KNOWN}: {read}{f'. {_gaps_text(found)}' if found else ''}"
    remedy = "`cdc spark resync` reads all of them and closes the gaps that are open; acknowledge no record before (docs/status.md)"
    return failure("", text, remedy)


def _gaps_text(found: Sequence[GapRecord]) -> str:
    shown = "; ".join(map(_gap_text, found[:_SHOWN_GAPS]))
    more = f"; and {len(found) - _SHOWN_GAPS:,} more" if len(found) > _SHOWN_GAPS else ""
    number = "1 gap is open" if len(found) == 1 else f"{len(found):,} gaps are open"
    return f"{number}: changes may be lost. {shown}{more}"


def _gap_text(gap: GapRecord) -> str:
    since = "the beginning" if gap.from_ms is None else _minute(gap.from_ms)
    return f"{gap.table_name} from {since} to {_minute(gap.to_ms)} UTC ({gap.reason})"


def _nodes_text(found: Sequence[GapRecord]) -> str:
    """The hosts, by the ids that `nodetool status` prints."""
    nodes = list(dict.fromkeys(str(each.node_id) for each in found))
    if len(nodes) > _SHOWN_GAPS:
        return f"the {len(nodes):,} nodes of these gaps"
    return f"node {nodes[0]}" if len(nodes) == 1 else f"the nodes {', '.join(nodes)}"


def _minute(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _urls(config: LineConfig) -> str:
    """The options of `cdc connector` for the line's Pulsar."""
    return f"--service-url {config.pulsar_service_url} --admin-url {config.pulsar_admin_url}"
