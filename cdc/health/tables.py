"""The state of the tables' topics: the connector's backlog, the size of data topics, dead letters and gaps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from cdc.health.completeness import completeness_of, with_completeness
from cdc.health.data_topics import data_topics, serves
from cdc.health.dead_letter_topics import dead_letter_topics
from cdc.health.findings import Finding, as_bytes, as_duration, failure, ok, warning
from cdc.health.line_config import LineConfig
from cdc.health.pulsar_service import NotThereError, PulsarService, PulsarServiceError
from cdc.health.shared_events import events_of
from cdc.health.source_log import SourceWarnings
from cdc.health.sources import SourceView, names_in
from cdc.health.topic_policies import EVENTS, as_hazard, asked_once, policy_warnings
from clients.topic_policies import Ask, Audience
from schemas.gap_record import GapRecord, MalformedGapError, decode_gap, gaps_topic, open_gaps
from schemas.topics import full_topic_name
from source_connector.events.dead_letters import RESEND_SUBSCRIPTION
from source_connector.events.expiry_messages import EXPIRY_SUBSCRIPTION

__all__ = ["dead_letters", "events_tables", "expiries", "gap_finding", "gaps", "tables", "waiting_finding", "waits_for"]

_LATE_S: Final = 60.0
# A truncation that a node does not confirm keeps all events of a table waiting for up to 15 s and 5 s.
_STALLED_S: Final = 20.0
_VERY_LATE_S: Final = 600.0
_SHOWN_GAPS: Final = 3
_MOST_GAP_RECORDS: Final = 5_000
# How the connector says that a table's events wait until an operator has done something.
_PARKED: Final = "is parked"
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
    """One finding for each expiry topic among these: how much waits in it, and whether a source delivers it.

    Raises PulsarServiceError.
    """
    full = f"{full_topic_name(config.topic_prefix)}{_EXPIRY}"
    return [
        finding
        for topic in sorted(topics)
        if topic.startswith(full)
        for finding in _expiries(service, config, topic, topic.removeprefix(full), now_s)
    ]


def _expiries(service: PulsarService, config: LineConfig, topic: str, table: str, now_s: float) -> Iterator[Finding]:
    try:
        waiting = Backlog.of(service.stats(topic), EXPIRY_SUBSCRIPTION, now_s)
    except NotThereError:
        return
    if waiting is None or not waiting.messages:
        yield ok(table, "no expiry waits", waiting_messages=0)
        return
    options = f"{_urls(config)} --table {table}"
    text = f"{waiting.messages:,} message{'s' if waiting.messages != 1 else ''} with expiries wait for their second"
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
    """One finding for each table, and warnings about policies of its topics. Raises PulsarServiceError.

    `told`: the hazards of events topics that agents have reported. An agent checks the policies once an hour.
    """
    events = events_tables(topics, config.topic_prefix)
    ask, logged = asked_once(service), SourceWarnings(config.functions_log_dir, now_s)
    checks, events_checks = _PolicyChecks(ask), _PolicyChecks(ask, EVENTS, told)
    now_s = _at_the_broker(service, now_s)

    def look(table: str) -> list[Finding]:
        data = _existing(service, data_topics(table, sources))
        its_own = [each for each in sources if serves(each, table)]
        checks.look(each.name for each in data)
        events_checks.look([events[table]])
        return list(_table(service, config, table, events[table], data, now_s, its_own, logged))

    with ThreadPoolExecutor(8) as pool:
        asked_completeness = pool.submit(
            completeness_of,
            config,
            sorted(events),
            dead_letter_topics(config, (each.options for each in sources)),
        )
        found = [finding for each in pool.map(look, sorted(events)) for finding in each]
        completeness = asked_completeness.result()
    if isinstance(completeness, Finding):
        completed = [*found, completeness]
    else:
        completed = with_completeness(found, completeness)
    return [*completed, *events_checks.findings(), *checks.findings()]


def _at_the_broker(service: PulsarService, now_s: float) -> float:
    """The time by Pulsar's clock, if this machine's is ahead: what has just happened would seem to be long ago."""
    try:
        return min(now_s, service.clock_s())
    except PulsarServiceError:
        return now_s


def _table(
    service: PulsarService,
    config: LineConfig,
    table: str,
    topic: str,
    data: Sequence[_DataTopic],
    now_s: float,
    sources: Sequence[SourceView],
    logged: SourceWarnings,
) -> Iterator[Finding]:
    try:
        stats = service.stats(topic)
    except NotThereError:
        return
    waiting = Backlog.of(stats, config.events_subscription_name, now_s)
    records = data[0].text if data else "no data topic"
    if waiting is None:
        text = f"its events topic has no subscription {config.events_subscription_name}: Pulsar deletes new events"
        remedy = "let the agent create it (createTopics), or correct eventsSubscriptionName"
        yield failure(table, text, remedy)
        return
    read_by = full_topic_name(topic), config.events_subscription_name
    yield waiting_finding(table, waiting, records, read_by, sources, logged)


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
    is_stalled = waiting.stalled_s > _STALLED_S
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


@dataclass(frozen=True, slots=True)
class _DataTopic:
    """An existing data topic. `text`: its size, or why this is not known."""

    name: str
    text: str


def _existing(service: PulsarService, topics: Sequence[str]) -> list[_DataTopic]:
    """Those of these topics that exist, and those that the role may not look at. Raises PulsarServiceError."""
    found = []
    for topic in topics:
        short = topic.rpartition("/")[2]
        try:
            text = f"{short} has {as_bytes(int(service.stats(topic)['storageSize']))}"
        except NotThereError:
            continue
        except PulsarServiceError as error:
            if not error.is_refusal:  # it may be of a tenant where the role has no rights
                raise
            text = f"the size of {short} is not known: {error}"
        found.append(_DataTopic(topic, text))
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
            found.append(
                warning(f"{self._kind} topics", text, "grant the right to read the topics' policies (tenant admin)")
            )
        return found


def _told_once(topics: Sequence[str], first: Finding, kind: str) -> Finding:
    """The finding about the first of these topics, with the number of the others of this kind."""
    if len(topics) == 1:
        return first
    others = f"{len(topics) - 1:,} other {kind} topic{'s' if len(topics) > 2 else ''}"
    text = f"{first.text}; the same holds for {others}, which `cdc doctor` lists"
    return replace(first, text=text, facts={"topics": list(topics)})


class Backlog:
    """The messages of a topic that a subscription has not acknowledged.

    `oldest_s`: the age of the oldest of them. `stalled_s`: the seconds for which some of them wait, and consumers are
    connected that acknowledge none.
    """

    def __init__(self, *, messages: int, oldest_s: float, consumers: int, stalled_s: float = 0.0) -> None:
        self.messages: Final = messages
        self.oldest_s: Final = oldest_s
        self.consumers: Final = consumers
        self.stalled_s: Final = stalled_s

    @classmethod
    def of(cls, stats: Mapping[str, Any], subscription: str, now_s: float) -> Backlog | None:
        """The backlog of a subscription, from a topic's statistics; None if the topic has no such subscription."""
        parts = list((stats.get("partitions") or {}).values()) or [stats]
        found = [each["subscriptions"][subscription] for each in parts if subscription in each["subscriptions"]]
        if not found:
            return None
        oldest = [
            int(each.get("earliestMsgPublishTimeInBacklog") or 0) for each in found if int(each["msgBacklog"]) > 0
        ]
        times = [each / 1000 for each in oldest if each > 0]
        consumers = [consumer for each in found for consumer in each.get("consumers") or ()]
        is_read = times and consumers
        return cls(
            messages=sum(int(each["msgBacklog"]) for each in found),
            oldest_s=max(0.0, now_s - min(times)) if times else 0.0,
            consumers=len(consumers),
            stalled_s=max(0.0, now_s - max(min(times), _last_sign_s(found, consumers))) if is_read else 0.0,
        )

    def text(self) -> str:
        """`nothing waits`, or the number of messages and the age of the oldest."""
        if not self.messages:
            return "nothing waits"
        age = f", the oldest for {as_duration(self.oldest_s)}" if self.oldest_s else ""
        return f"{self.messages:,} message{'s wait' if self.messages != 1 else ' waits'}{age}"


def _last_sign_s(subscriptions: Iterable[Mapping[str, Any]], consumers: Iterable[Mapping[str, Any]]) -> float:
    """When a message was acknowledged last, or a consumer connected, in seconds since the epoch.

    Statistics of the subscription in each partition, and of its consumers. Pulsar forgets the time of the last
    acknowledgement when a topic moves to another broker. Then the consumers connect anew.
    """
    names = ("lastAckedTimestamp", "lastMarkDeleteAdvancedTimestamp")
    acknowledged = [int(each.get(name) or 0) / 1000 for each in subscriptions for name in names]
    connected = [datetime.fromisoformat(each["connectedSince"]) for each in consumers if each.get("connectedSince")]
    return max(*acknowledged, *(each.timestamp() for each in connected))


def dead_letters(
    service: PulsarService, config: LineConfig, sources: Sequence[SourceView], now_s: float
) -> list[Finding]:
    """One finding for each dead-letter topic. Raises PulsarServiceError."""
    found = []
    for topic in dead_letter_topics(config, (each.options for each in sources)):
        short = topic.rpartition("/")[2]
        try:
            stats = service.stats(topic)
            waiting = Backlog.of(stats, RESEND_SUBSCRIPTION, now_s)
        except NotThereError:
            found.append(ok(short, "none", letters=0))
            continue
        if waiting is None and _is_unused(stats):
            found.append(ok(short, "none", letters=0))
            continue
        if waiting is None:
            text = f"whether there are any is not known: the topic has no subscription {RESEND_SUBSCRIPTION}, which keeps them"
            remedy = f"pulsar-admin topics create-subscription -m earliest -s {RESEND_SUBSCRIPTION} {topic}"
            found.append(warning(short, text, remedy))
            continue
        if not waiting.messages:
            found.append(ok(short, "none", letters=0))
            continue
        options = f"{_urls(config)} --topic {topic}"
        text = f"{waiting.messages:,} changes could not be published and are dead letters"
        if waiting.messages == 1:
            text = "1 change could not be published and is a dead letter"
        remedy = f"`cdc connector dead-letters {options}` gives the reasons; then `cdc connector resend {options}`"
        found.append(failure(short, text, remedy, letters=waiting.messages))
    return found


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
