"""The trace of a row as sections of findings: where its changes were seen on the way, and what differs at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pulsar

from cdc.health.agent_status import NoStatusError
from cdc.health.backlog import Backlog
from cdc.health.data_topics import data_topics, serves
from cdc.health.dead_letter_topics import dead_letter_topics
from cdc.health.findings import Finding, Level, Section, as_duration, failure, ok, warning
from cdc.health.line_config import LineConfig
from cdc.health.pulsar_service import NotThereError, PulsarService, PulsarServiceError
from cdc.health.sources import SourceView, sources_of
from cdc.trace.current_row import CurrentRow, RowReadError, current_row
from cdc.trace.log_places import archived_segments, local_segments, places_in
from cdc.trace.newest_record import newest_record
from cdc.trace.removed_records import Removals, clearings_of
from cdc.trace.row_key import RowKey
from cdc.trace.topic_places import DataRecord, TopicEvent, TopicReadError, data_records, topic_events
from change_agent.configuration.config import AgentConfig
from change_agent.schema.schema_history import read_newest_tables
from change_agent.sqlite_file import DamagedFileError
from schemas.errors import ConfigError
from schemas.mutation_event import MalformedEventsError, MutationEvent, decode_events
from schemas.record_properties import COLUMNS_EXPIRE_AT, EXPIRES_AT, KIND, SEGPOS, SNAPSHOT, WRITETIME
from schemas.system_schema import SystemSchemaError
from schemas.topics import events_topic, full_topic_name
from source_connector.errors import DeadLettersError, DeploymentError, FetchError
from source_connector.events.dead_letters import dead_letters
from source_connector.events.pulsar_access import new_client
from spark_bridge.errors import SparkBridgeError

__all__ = ["TraceOptions", "difference", "trace", "with_waiting"]

_KINDS: Final = {
    "ROW": "written",
    "ROW_DELETION": "row deleted",
    "STATIC_ROW": "static columns written",
    "PARTITION_DELETION": "partition deleted",
    "RANGE_DELETION": "a range deleted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """The options of a trace.

    `since_s`: how far back topics are read, in seconds; None for all messages. `limit`: the highest number of places of
    each kind.
    """

    with_archive: bool
    since_s: float | None
    limit: int
    consistency: str
    data_topic: str | None


def trace(
    config: LineConfig, key: RowKey, data_center: str, options: TraceOptions, on_step: Callable[[str], None]
) -> list[Section]:
    """All sections except the one of mirrors. A part that does not answer becomes a finding.

    `on_step` is called with the name of each part before it is read.
    """
    sections = [Section(title="commit log", findings=_log(config, key, options, on_step))]
    client = new_client(config.pulsar_options, is_quiet=True, timeout_s=10)
    records: list[DataRecord] | None = None
    sources: Sequence[SourceView] = ()
    waiting = 0
    try:
        with PulsarService(config) as service:
            try:
                sources = sources_of(service)
            except PulsarServiceError:
                sources = ()  # the functions worker may be down: topics are read all the same
            on_step("events")
            sections.append(Section(title="events", findings=_events(service, client, config, key, options)))
            waiting = _waiting(service, config, key)
            on_step("records")
            records, findings = _records(service, client, config, key, options, sources)
            sections.append(Section(title="records", findings=findings))
            on_step("dead letters")
            sections.append(Section(title="dead letters", findings=_letters(service, config, key, sources)))
    finally:
        client.shutdown()
    on_step("the row")
    row, findings = _row(config, key, data_center, options)
    sections.append(Section(title="row", findings=findings))
    if key.is_row:
        found = with_waiting(difference(key, row, records, sources), waiting)
        sections.append(Section(title="what differs", findings=[found]))
    return sections


def _log(config: LineConfig, key: RowKey, options: TraceOptions, on_step: Callable[[str], None]) -> list[Finding]:
    found: list[Finding] = []
    for place in config.agents:
        agent = _agent_here(place)
        if isinstance(agent, str):
            remedy = (
                "run this command on the agent's machine, as its user, with its agent.yaml under agents in line.yaml"
            )
            found.append(warning(place, f"not read: {agent}", remedy))
            continue
        segments = local_segments(agent)
        if options.with_archive:
            try:
                segments += archived_segments(agent)
            except OSError as error:
                found.append(warning(place, f"its archive cannot be read ({error})", "check archiveUrl"))
        on_step(f"{len(segments)} segments of {agent.cdc_working_dir}")
        found += _of_segments(place, segments, agent, key, options)
        if agent.archive_url is not None and not options.with_archive:
            found.append(ok(place, "the archive was not read; --archive reads it"))
    return found or [warning("", "no agent is known here", "name it under agents in line.yaml")]


def _agent_here(place: str) -> AgentConfig | str:
    """The agent's options, or the reason why they are not known."""
    if place.startswith(("http://", "https://")):
        return "it is known by its URL only"
    try:
        if Path(place).is_dir():
            return "line.yaml names its working directory, and not its agent.yaml"
        if not Path(place).is_file():
            return "its agent.yaml is not on this machine"
        return AgentConfig.load(Path(place))
    except (ConfigError, NoStatusError) as error:
        return str(error)
    except OSError as error:
        return f"its agent.yaml cannot be read ({error.strerror})"


def _of_segments(
    place: str, segments: Sequence[str], agent: AgentConfig, key: RowKey, options: TraceOptions
) -> Iterator[Finding]:
    tables = {key.table.table_id: key.table}
    history = agent.cdc_working_dir / "schema.sqlite"
    try:
        tables |= read_newest_tables(history) if history.is_file() else {}
    except (DamagedFileError, SystemSchemaError) as error:
        yield warning(place, f"{history} cannot be read ({error})", "only mutations of this table alone are read")
    found = list(places_in(segments, tables, agent.segment_options, key))
    events = [each for each in found if each.event is not None]
    for each in found:
        if each.fault:
            yield warning(each.segment, each.fault, "`cdc decode` prints the readable part")
    yield from _cut(len(events), options.limit)
    for each in events[-options.limit :]:
        assert each.event is not None
        yield ok(f"{each.segment}:{each.event.position}", _mutation_text(each.event))
    if not events:
        yield ok(place, f"no change of it in {len(segments)} segments: published segments are deleted, or archived")


def _events(
    service: PulsarService, client: pulsar.Client, config: LineConfig, key: RowKey, options: TraceOptions
) -> list[Finding]:
    unread: list[str] = []
    topic = full_topic_name(events_topic(key.table.keyspace, key.table.name, config.topic_prefix))
    try:
        found = list(topic_events(client, topic, service.partitions(topic), key, options.since_s, unread))
    except NotThereError:
        return [failure("", f"{topic} does not exist", "see cdc doctor: does the table have cdc = true, and an agent?")]
    except (PulsarServiceError, TopicReadError) as error:
        return [failure("", str(error), "cdc doctor checks Pulsar's rights and state")]
    if not found:
        text = "Pulsar has none any more: it deletes events that the connector has acknowledged"
        return _unread(unread) or [ok("", text)]
    shown = found[-options.limit :]
    return [*_cut(len(found), options.limit), *_unread(unread), *(ok(each.place, _event_text(each)) for each in shown)]


def _waiting(service: PulsarService, config: LineConfig, key: RowKey) -> int:
    """The number of messages of the table that the connector has not acknowledged; 0 if it is not known."""
    topic = events_topic(key.table.keyspace, key.table.name, config.topic_prefix)
    with suppress(PulsarServiceError):
        found = Backlog.of(service.stats(topic), config.events_subscription_name, time.time())
        return 0 if found is None else found.messages
    return 0


def with_waiting(found: Finding, count: int) -> Finding:
    """A difference, with what to do first while `count` messages of the table wait for the connector."""
    if found.level is not Level.FAILURE or not count:
        return found
    wait = "1 message of its table waits" if count == 1 else f"{count:,} messages of its table wait"
    remedy = (
        f"{wait} for the connector: see the table in `cdc status`. If it stays so when they are read: {found.remedy}"
    )
    return replace(found, remedy=remedy)


def _unread(names: Sequence[str]) -> list[Finding]:
    return [warning(each, "was not read to its end: the broker stopped sending", "try again") for each in names]


def _event_text(found: TopicEvent) -> str:
    if found.message.segment_id < 0:
        return f"sent again (resend, repair or backfill); published {_moment(found.published_ms * 1000)}"
    origin = f"node {found.message.node_id}, {found.message.segment_id}:{found.event.position}"
    return f"{_mutation_text(found.event)}; {origin}; published {_moment(found.published_ms * 1000)}"


def _records(
    service: PulsarService,
    client: pulsar.Client,
    config: LineConfig,
    key: RowKey,
    options: TraceOptions,
    sources: Sequence[SourceView],
) -> tuple[list[DataRecord] | None, list[Finding]]:
    """The records of the row that still count (None if they are not known), and the findings about all of them."""
    unread: list[str] = []
    topic = full_topic_name(options.data_topic or data_topics(key.table.full_name, sources)[0])
    try:
        found = list(data_records(client, topic, service.partitions(topic), key, options.since_s, unread))
    except NotThereError:
        remedy = "see the source in cdc status, or name the topic by --data-topic"
        return None, [failure("", f"{topic} does not exist: nothing was published", remedy)]
    except (PulsarServiceError, TopicReadError) as error:
        return None, [failure("", str(error), "cdc doctor checks Pulsar's rights and state")]
    if not found:
        return None if unread else found, _unread(unread) or [ok("", f"{topic.rpartition('/')[2]} has none")]
    try:
        clearings = clearings_of(config, topic, _schema_changes_topic(key, sources))
    except (ConfigError, SparkBridgeError) as error:
        unread.append(topic)
        clearings = ()
        said = [warning("", f"truncations of the table are not known: {error}", "cdc doctor checks Pulsar's rights")]
    else:
        said = _unread(unread)
    reasons = Removals(key.table.table_id, found, clearings)
    records = [ok(each.place, _record_text(each, reasons.reason(each))) for each in found[-options.limit :]]
    valid = [each for each in found if not reasons.reason(each)]
    return None if unread else valid, [*_cut(len(found), options.limit), *said, *records]


def _schema_changes_topic(key: RowKey, sources: Sequence[SourceView]) -> str | None:
    """The option `schema.changes.topic` of the table's source; None if it has none."""
    named = (each.options.get("schema.changes.topic") for each in sources if serves(each, key.table.full_name))
    return next((str(each) for each in named if each), None)


def _record_text(found: DataRecord, removed: str) -> str:
    kind = found.properties.get(KIND, "row").replace("_", " ")
    written = found.properties.get(WRITETIME)
    parts = [kind, "no row" if found.value is None else json.dumps(found.value, ensure_ascii=False)]
    parts += [f"written {_moment(int(written))}"] if written else []
    told = (SEGPOS, SNAPSHOT, EXPIRES_AT, COLUMNS_EXPIRE_AT)
    parts += [f"{name} {found.properties[name]}" for name in told if name in found.properties]
    parts += [f"published {_moment(found.published_ms * 1000)}"]
    return "; ".join([*parts, removed] if removed else parts)


def _letters(service: PulsarService, config: LineConfig, key: RowKey, sources: Sequence[SourceView]) -> list[Finding]:
    found: list[Finding] = []
    for topic in dead_letter_topics(config, (each.options for each in sources)):
        try:
            service.stats(topic)  # raises NotThereError, where `dead_letters` would create the topic
            with closing(dead_letters(config.pulsar_options, topic)) as letters:
                for letter in letters:
                    if letter.table == key.table.full_name and _is_about(key, letter.data, letter.key):
                        remedy = f"mend the cause, then `cdc resend {key.arguments}`, or cdc connector resend"
                        found.append(failure(letter.message_id, letter.reason, remedy))
        except NotThereError:
            continue
        except PulsarServiceError as error:
            found.append(warning("", str(error), "try again"))
        except DeadLettersError as error:
            found.append(
                warning("", str(error), "follow the advice of this text, or run the command again if it has none")
            )
    return found or [ok("", "none")]


def _is_about(key: RowKey, data: bytes, partition_key: str) -> bool:
    try:
        return any(key.concerns(event) for event in decode_events(data).events)
    except MalformedEventsError:
        return partition_key == key.partition_key.hex()


def _row(
    config: LineConfig, key: RowKey, data_center: str, options: TraceOptions
) -> tuple[CurrentRow | None, list[Finding]]:
    if not key.is_row:
        return None, [ok("", "not read: the key names a partition")]
    try:
        row = current_row(config, key, data_center, options.consistency)
    except (RowReadError, FetchError, DeploymentError) as error:
        return None, [failure("", str(error), "see cdc status, or give --consistency")]
    if row.values is None:
        return row, [ok("", f"Cassandra has no such row (read at {row.consistency})")]
    text = json.dumps(row.values, ensure_ascii=False)
    written = "" if row.writetime_us is None else f"; written {_moment(row.writetime_us)}"
    return row, [ok("", f"{text}{written} (read at {row.consistency})")]


def difference(
    key: RowKey, row: CurrentRow | None, records: Sequence[DataRecord] | None, sources: Sequence[SourceView]
) -> Finding:
    """The finding about the difference between the row in Cassandra and its newest record.

    `records`: those that count. Records that a truncation has removed are not among them.
    """
    now_s = time.time()
    if row is None or records is None:
        return warning("", "not known: the row or its records could not be read", "see above")
    newest = newest_record(key, records)
    is_equal = newest is not None and newest.is_equal(row, now_s)
    if any(_changes_columns(each, key) for each in sources) and not is_equal:
        text = "not known: the source hides columns, or publishes only some of them (columns...)"
        return warning("", text, "compare by eye; `cdc spark verify` compares hidden columns, too")
    resend = f"`cdc resend {key.arguments}` publishes the row as it is now"
    if newest is None:
        if row.values is None:
            return ok("", "nothing: there is no row, and no record that counts")
        remedy = f"{resend}; for all rows that are older than the pipeline: `cdc spark backfill`"
        return failure("", "Cassandra has the row, and the data topic has no record of it", remedy)
    if row.records is None:
        if newest.is_gone:
            return ok("", "nothing: the row is gone, and the newest record says so")
        if newest.expires_by(now_s):
            return ok("", "nothing: the row has expired, as its newest record says (expires_at)")
        return failure("", "Cassandra has no row, and the newest record has one", f"if it stays so: {resend}")
    if newest.is_gone:
        return failure("", "Cassandra has the row, and the newest record says that it is gone", resend)
    if is_equal:
        return ok("", "nothing: the newest record is the row as Cassandra has it")
    text = "the newest record has other values than Cassandra"
    return failure("", f"{text}{_late(row, newest.record)}", f"if it stays so: {resend}")


def _changes_columns(source: SourceView, key: RowKey) -> bool:
    """Return True if the source publishes the table, or may do so, and hides or leaves out columns."""
    options = source.options
    is_its = (options.get("keyspace"), options.get("table")) == (key.table.keyspace, key.table.name)
    changed = [name for name, value in options.items() if name.startswith("columns") and value not in ("", ".*")]
    return bool(changed) and (is_its or bool(options.get("tables")))


def _late(row: CurrentRow, newest: DataRecord) -> str:
    written = newest.properties.get(WRITETIME)
    if row.writetime_us is None or written is None or int(written) >= row.writetime_us:
        return ""
    return f"; it is {as_duration((row.writetime_us - int(written)) / 1e6)} older than the row's last write"


def _cut(count: int, limit: int) -> list[Finding]:
    return [ok("", f"{count:,} in all; the newest {limit} are shown (--limit)")] if count > limit else []


def _mutation_text(event: MutationEvent) -> str:
    written = "" if event.writetime_us is None else f" {_moment(event.writetime_us)}"
    columns = f" ({', '.join(event.columns)})" if event.columns else ""
    return f"{_KINDS[event.kind.value]}{written}{columns}"


def _moment(time_us: int) -> str:
    try:
        return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
    except (ValueError, OverflowError, OSError):
        return f"{time_us} us"  # a writer may give any time
