"""The checks of `cdc doctor`: whether a pipeline can work, before it runs and while it does.

The module has more than 500 lines because the checks of all parts are here, each with its remedy, in the screen's order.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import pulsar

from cdc.health.data_topics import data_topics
from cdc.health.dead_letter_topics import asked_dead_letter_topics
from cdc.health.findings import Finding, Level, Section, as_bytes, as_duration, failure, ok, warning
from cdc.health.left_out import left_out
from cdc.health.line_config import LineConfig
from cdc.health.nodes import agents, agents_section, cluster_of, unavailable
from cdc.health.own_address import elsewhere
from cdc.health.pulsar_service import NotThereError, PulsarService, PulsarServiceError
from cdc.health.sources import sources_of, with_starts
from cdc.health.tables import events_tables
from cdc.health.topic_policies import EVENTS, LETTERS, asked_once, policy_warnings
from cdc.health.unanswered import Unanswered, remedy_of_topic
from cdc.health.wanted_tables import NOT_CAPTURED, cdc_statement, is_of_system, not_captured
from cdc.sandbox.versions import CASSANDRA_VERSIONS, PULSAR_VERSION
from change_agent.cdc_raw.space import cdc_space_of
from change_agent.configuration.cassandra_yaml import CassandraYamlError, settings_of
from change_agent.configuration.config import AgentConfig
from change_agent.configuration.option_types import COMMIT_LOG_SETTING, is_same_folder
from change_agent.schema.node_connection import NodeConnection, NodeUnavailableError
from clients.topic_policies import Ask, Audience
from schemas.cql_identifier import cql_identifier
from schemas.errors import ConfigError
from schemas.system_schema import unlogged_keyspaces
from source_connector.events.pulsar_access import new_client

__all__ = ["agent_checks", "captured_tables", "doctor"]

_SETTINGS: Final = (
    "cdc_enabled",
    "cdc_raw_directory",
    COMMIT_LOG_SETTING,
    "cdc_block_writes",
    "commitlog_sync",
    "commitlog_sync_period",
    "commitlog_sync_period_in_ms",
    "cdc_total_space",
    "cdc_total_space_in_mb",
    "commitlog_segment_size",
    "commitlog_segment_size_in_mb",
)
_SLOW_SYNC_MS: Final = 1_000
_APART_S: Final = 2.0
_MOST_TABLES: Final = 20
_LITTLE_DISK: Final = 1024 * 1024 * 1024
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000}


def doctor(config: LineConfig) -> list[Section]:
    """All sections. Raises ConfigError."""
    now_s = time.time()
    with PulsarService(config) as service, ThreadPoolExecutor(4) as pool:
        asked_cassandra = pool.submit(lambda: list(_cassandra(config)))
        asked_broker = pool.submit(lambda: list(_broker(config)))
        asked_agents = pool.submit(agents, config, now_s)
        asked_cluster = pool.submit(cluster_of, config)
        pulsar_findings = list(_pulsar(service))
        answers = pulsar_findings[0].level is not Level.FAILURE
        if answers:
            topics = _topics(service, config) or [ok("", "there are none yet")]
            workers = list(_functions_worker(service, config))
        else:
            topics = workers = [warning("", "not checked", "see Pulsar above")]
        agent_findings, statuses = asked_agents.result()
        cluster = asked_cluster.result()
        nodes = cluster.finding(statuses, now_s)
        others = [] if cluster.problem or nodes.level is Level.OK else [nodes]
        machines = [finding for place in config.agents for finding in agent_machine(place)]
        return [
            Section(title="Cassandra", findings=[*asked_cassandra.result(), *others]),
            Section(title="Pulsar", findings=[*pulsar_findings, *asked_broker.result()]),
            Section(title="topics", findings=topics),
            Section(title="functions worker", findings=workers),
            agents_section(service if answers else None, config, cluster, agent_findings, statuses),
            Section(title="agents' machine", findings=machines or [ok("", "no agent of this machine is named")]),
        ]


def agent_checks(config: AgentConfig) -> list[Section]:
    """The checks of `cdc agent --check --connect`: the connections of one agent, with its credentials.

    Raises ConfigError.
    """
    shared = {
        field.alias: getattr(config, name)
        for name, field in AgentConfig.model_fields.items()
        if name in LineConfig.model_fields and not name.endswith("_file") and getattr(config, name) is not None
    }
    line = LineConfig.model_validate(shared)
    with PulsarService(line) as service:
        return [
            Section(title="Cassandra", findings=list(_cassandra(line, read_unsynced=config.read_unsynced))),
            Section(title="Pulsar", findings=[*_pulsar(service), *_broker(line)]),
            Section(title="this machine", findings=list(_machine(config))),
        ]


def _cassandra(config: LineConfig, *, read_unsynced: bool = False) -> Iterator[Finding]:
    is_schema_read = False
    for address in config.contact_points:
        connection = NodeConnection.of(config.model_copy(update={"contact_points": (address,)}))
        subject = f"node {address}"
        try:
            [version, *_] = [node.version for node in connection.nodes()]
            apart_s = time.time() - connection.clock_s()
            # The settings are asked for after the clock: a refusal closes the session, and the time to open the next
            # one would count as a difference of the clocks.
            settings = _settings_of(connection)
            schema = {} if is_schema_read else connection.read_schema().schema
            is_schema_read = True
        except NodeUnavailableError as error:
            yield failure(subject, *unavailable(str(error)))
            continue
        finally:
            connection.close()
        yield _version(subject, "Cassandra", version, tuple(CASSANDRA_VERSIONS.values()))
        yield from _settings(subject, settings, read_unsynced=read_unsynced)
        yield _clock(subject, apart_s)
        yield from captured_tables(schema, config.tables)


def _settings_of(connection: NodeConnection) -> Mapping[str, str] | None:
    """The node's settings; None if the role may not read them. The agent needs no such right.

    Raises NodeUnavailableError.
    """
    try:
        return connection.settings(_SETTINGS)
    except NodeUnavailableError as error:
        if not error.is_refusal:
            raise
        return None


def _version(subject: str, product: str, version: str, tested: Sequence[str]) -> Finding:
    lines = {each.rpartition(".")[0] for each in tested}
    if version.rpartition(".")[0] in lines:
        return ok(subject, f"answers, {product} {version}")
    text = f"{product} {version} was not tested; {', '.join(tested)} were"
    return warning(subject, text, "use a tested version, or try this one on a test cluster first")


def _settings(subject: str, settings: Mapping[str, str] | None, *, read_unsynced: bool) -> Iterator[Finding]:
    if settings is None:
        text = "its role may not read system_views.settings: cdc_enabled, cdc_block_writes and the sync period are not checked"
        yield warning(subject, text, "GRANT SELECT ON system_views.settings TO ROLE; or check them in cassandra.yaml")
        return
    if "cdc_enabled" not in settings:
        yield warning(
            subject, "Cassandra 3.11 does not show its settings", "check that cassandra.yaml has cdc_enabled: true"
        )
        return
    if settings["cdc_enabled"].lower() != "true":
        yield failure(
            subject,
            "cdc_enabled is false: nothing is captured",
            "set cdc_enabled: true in cassandra.yaml, and restart the node",
        )
    else:
        yield ok(subject, "cdc_enabled is true")
    if settings.get("cdc_block_writes", "true").lower() == "false":
        text = "cdc_block_writes is false: when cdc_raw is full Cassandra deletes changes that nobody has read"
        yield warning(
            subject,
            text,
            "set cdc_block_writes: true in cassandra.yaml and restart the node, or watch the gaps of cdc status",
        )
    period_ms = _period_ms(settings)
    if settings.get("commitlog_sync") == "periodic" and period_ms is not None:
        text = (
            f"the commit log is synced every {as_duration(period_ms / 1000)}: without readUnsynced, changes wait for it"
        )
        if period_ms > _SLOW_SYNC_MS and not read_unsynced:
            remedy = (
                "set readUnsynced: true in agent.yaml, or commitlog_sync_period: 1000ms (or less) in cassandra.yaml"
            )
            yield warning(subject, text, remedy)
        else:
            yield ok(subject, text)


def _period_ms(settings: Mapping[str, str]) -> int | None:
    old = settings.get("commitlog_sync_period_in_ms", "")
    if old.isdecimal():
        return int(old)
    found = re.fullmatch(r"(\d+)(ms|s|m)", settings.get("commitlog_sync_period", ""))
    return int(found[1]) * _UNITS_MS[found[2]] if found else None


def _clock(subject: str, apart_s: float) -> Finding:
    if abs(apart_s) < _APART_S:
        return ok(subject, "its clock and this one agree")
    text = f"its clock is {as_duration(abs(apart_s))} {'behind' if apart_s > 0 else 'ahead of'} that of this machine"
    return warning(
        subject,
        text,
        "synchronize the clocks (chrony, ntp): the connector judges by them whether it has read a row too early",
    )


def captured_tables(schema: Mapping[str, Sequence[Mapping[str, object]]], wanted: Sequence[str]) -> Iterator[Finding]:
    """Findings about the tables with CDC, and for each table without it the statement that enables it."""
    known = {f"{row['keyspace_name']}.{row['table_name']}": bool(row.get("cdc")) for row in schema.get("tables", ())}
    found = {table: has_cdc for table, has_cdc in known.items() if not is_of_system(table.partition(".")[0])}
    if not schema:
        return
    captured = sorted(table for table, has_cdc in found.items() if has_cdc)
    others = sorted(table for table, has_cdc in found.items() if not has_cdc)
    for keyspace in sorted(unlogged_keyspaces(schema) & {table.partition(".")[0] for table in captured}):
        yield failure(
            keyspace,
            "has durable_writes = false: Cassandra does not write its changes to the commit log, and nothing is captured",
            f"ALTER KEYSPACE {cql_identifier(keyspace)} WITH durable_writes = true; then backfill its tables",
        )
    if captured:
        names = ", ".join(captured[:_MOST_TABLES]) + (", ..." if len(captured) > _MOST_TABLES else "")
        yield ok("tables", f"{len(captured)} with cdc = true: {names}")
    else:
        yield failure("tables", "no table has cdc = true: nothing is captured", "ALTER TABLE ks.table WITH cdc = true;")
    if wanted:
        yield from not_captured(known, wanted)
        return
    for table in others[:_MOST_TABLES]:
        yield warning(table, NOT_CAPTURED, f"if they are wanted: {cdc_statement(table)}")
    if len(others) > _MOST_TABLES:
        yield warning(
            "tables",
            f"and {len(others) - _MOST_TABLES} tables more without cdc",
            "name those you want: tables in line.yaml",
        )


def _pulsar(service: PulsarService) -> Iterator[Finding]:
    try:
        version = service.version()
        apart_s = time.time() - service.clock_s()
    except PulsarServiceError as error:
        remedy = "start it, or correct pulsarAdminUrl and credentials"
        if error.is_refusal:
            remedy = "correct the credentials, or grant the role its rights"
        yield failure("admin service", str(error), remedy)
        return
    yield _version("admin service", "Pulsar", version, (PULSAR_VERSION,))
    yield _clock("admin service", apart_s)
    try:
        service.topics(service.namespace)
    except PulsarServiceError as error:
        remedy = f"create the namespace {service.namespace}, or grant the right to list its topics"
        yield failure("admin service", str(error), remedy)


def _broker(config: LineConfig) -> Iterator[Finding]:
    """Check the broker's binary protocol, by a request that creates no topic."""
    client = new_client(config.pulsar_options, is_quiet=True, timeout_s=10)
    try:
        client.get_topic_partitions(f"persistent://{config.namespace}/cdc-doctor")
        yield ok("broker", f"answers at {config.pulsar_service_url}")
    except (pulsar.AuthenticationError, pulsar.AuthorizationError) as error:
        yield failure("broker", f"refuses these credentials ({error})", "correct pulsarAuthParams, or grant the rights")
    except pulsar.PulsarException as error:
        text = f"{config.pulsar_service_url} does not answer ({error})"
        yield failure("broker", text, "start it, or correct pulsarServiceUrl, TLS and credentials")
    finally:
        client.shutdown()


def _topics(service: PulsarService, config: LineConfig) -> list[Finding]:
    namespace = config.topic_prefix.removeprefix("persistent://").rpartition("/")[0] or "public/default"
    try:
        names = service.topics(namespace)
    except PulsarServiceError as error:
        right = f"grant the right to list topics of {namespace}"
        return [failure("", str(error), right if error.is_refusal else "see Pulsar above")]
    events = events_tables(names, config.topic_prefix)
    data = [name for name in names if name.rpartition("/")[2].startswith("data-")]
    with suppress(PulsarServiceError):  # reported by another section
        sources = sources_of(service, config.sources)
        data += [topic for table in sorted(events) for topic in data_topics(table, sources)]

    audiences = dict.fromkeys(sorted(events.values()), EVENTS)
    with suppress(PulsarServiceError):  # reported by another section
        audiences |= dict.fromkeys(asked_dead_letter_topics(config, service), LETTERS)

    ask, silent = asked_once(service), Unanswered()

    def look(topic: str) -> list[Finding]:
        return list(_topic(service, ask, topic, audiences.get(topic), silent))

    with ThreadPoolExecutor(8) as pool:
        found = [finding for each in pool.map(look, dict.fromkeys([*audiences, *data])) for finding in each]
    return [*found, *silent.not_asked()]


def _topic(
    service: PulsarService, ask: Ask, topic: str, audience: Audience | None, silent: Unanswered
) -> Iterator[Finding]:
    """Check the policies of a topic. `ask` and `audience` are those of `policy_warnings`.

    `silent`: the requests about topics that had no answer.
    """
    short = topic.rpartition("/")[2]
    if silent.skips(short):
        return
    try:
        if audience is not EVENTS:
            service.stats(topic)  # the topic is created with its first dead letter or record
        partitions = service.partitions(topic)
        warnings = policy_warnings(ask, topic, audience)
    except NotThereError:
        return
    except PulsarServiceError as error:
        silent.add(short, topic, error)
        yield warning(
            short,
            f"its policies cannot be read: {error}",
            remedy_of_topic(topic, error, "grant the right to read them"),
        )
        return
    yield from warnings
    if not warnings:
        count = f"{partitions} partitions" if partitions else "no partitions"
        yield ok(short, f"{count}, no policy deletes unread messages")


def _functions_worker(service: PulsarService, config: LineConfig) -> Iterator[Finding]:
    try:
        yield from _workers(service)
        views = with_starts(service, sources_of(service, config.sources))
    except PulsarServiceError as error:
        remedy = "set functionsWorkerEnabled=true in broker.conf (or start a worker), and wait until it is ready"
        if error.is_refusal:
            remedy = _grant("sources", config)
        yield failure("", str(error), remedy)
        return
    for view in views:
        yield from view.findings(config.functions_log_dir, time.time())
    yield from _left_packages(service, config)


def _workers(service: PulsarService) -> Iterator[Finding]:
    """Check the functions workers. Raises PulsarServiceError if none serves.

    Only a superuser may list workers. Without this right there is a warning, because sources do not need it.
    """
    try:
        workers = service.workers()
        service.ask("/v2/worker/cluster/leader/ready")
    except PulsarServiceError as error:
        if not error.is_refusal:
            raise
        remedy = (
            "nothing to do if its sources are listed here; else correct pulsarAuthParams (superusers may list workers)"
        )
        yield warning("", f"its state is not known: {error}", remedy)
    else:
        yield ok("", f"{len(workers)} worker{'' if len(workers) == 1 else 's'}, ready")


def _left_packages(service: PulsarService, config: LineConfig) -> Iterator[Finding]:
    """Find the packages that deleted sources have left.

    By default a broker has no packages (enablePackagesManagement=false), and does not list them.
    """
    try:
        packages = set(service.ask(f"/v3/packages/source/{config.namespace}") or ())
        left = packages - set(service.sources())
    except PulsarServiceError as error:
        text = f"those of deleted sources are not known: {error}"
        if error.status is None or error.is_refusal:
            yield warning("packages", text, _grant("packages", config) if error.is_refusal else "see Pulsar above")
        else:
            yield ok("packages", text)
        return
    for name in sorted(left):
        text = "was deleted and its package is still there: sources create refuses it (metadata already exists)"
        remedy = f"before you create it again, run pulsar-admin packages delete source://{config.namespace}/{name}@0"
        yield warning(name, text, remedy)


def _grant(right: str, config: LineConfig) -> str:
    return f"pulsar-admin namespaces grant-permission --role ROLE --actions {right} {config.namespace}"


def agent_machine(place: str) -> Iterator[Finding]:
    """Check the folders and disks of an agent on this machine.

    `place`: its agent.yaml or its working directory. An agent that is named by a URL is not checked.
    """
    if place.startswith(("http://", "https://")):
        return
    try:
        yield from _of_place(place)
    except OSError as error:
        where = "" if error.filename in (None, place) else f"{error.filename} "
        yield failure(place, f"{where}cannot be read ({error.strerror})", "run this as the agent's user")


def _of_place(place: str) -> Iterator[Finding]:
    """Check the agent of a place on this machine. Raises OSError for a folder that this user may not enter."""
    path = Path(place)
    is_folder, is_file = path.is_dir(), path.is_file()
    if is_folder:
        yield from _disk(path)
    elif is_file:
        try:
            config = AgentConfig.load(path)
        except ConfigError as error:
            for problem in error.problems:
                text = f"{problem.option}: {problem.reason}"  # the place is the file
                yield failure(place, text, "correct it there, or run this as the agent's user")
            return
        yield from _machine(config)
    else:
        text = "does not exist; an agent is named by its working directory, its agent.yaml or a URL"
        yield failure(place, text, "start it, or correct agents in line.yaml")


def _machine(config: AgentConfig) -> Iterator[Finding]:
    raw = config.cdc_raw_directory
    settings, tables = _node_of_agent(config)
    yield from _folder(raw, settings)
    used = sum(map(_size, raw.iterdir()))
    limit = config.cdc_total_space_bytes or cdc_space_of(settings, shutil.disk_usage(raw).total).total_bytes
    text = f"{as_bytes(used)} of {as_bytes(limit)}"
    if used > limit // 2:
        yield warning(
            str(raw),
            f"has {text}",
            "cdc status says why events are not sent; to gain time, raise cdc_total_space in cassandra.yaml",
        )
    else:
        yield ok(str(raw), f"can be read and written, has {text}")
    folder = config.cdc_working_dir
    if folder.exists():
        yield from _disk(folder)
    if not folder.exists() or folder.stat().st_dev != raw.stat().st_dev:
        yield from _disk(raw, "make room: without it, Cassandra can write no commit log, and refuses writes")
    yield from left_out(config.include_tables, config.exclude_tables, tables)
    yield from elsewhere(config.contact_points)


def _node_of_agent(config: AgentConfig) -> tuple[Mapping[str, object], Mapping[str, bool]]:
    """The settings of the agent's node by the names of cassandra.yaml, and its tables with their option `cdc`.

    The node's own settings take precedence over the file. No tables if the node does not answer.
    """
    given: Mapping[str, object] = {}
    with suppress(CassandraYamlError):
        given = {} if config.cassandra_yaml is None else settings_of(config.cassandra_yaml)
    connection = NodeConnection.of(config)
    try:
        return {**given, **(_settings_of(connection) or {})}, connection.captured_tables()
    except NodeUnavailableError:
        return given, {}  # the section about Cassandra has the reason
    finally:
        connection.close()


def _folder(raw: Path, settings: Mapping[str, object]) -> Iterator[Finding]:
    """A finding if the agent's folder is the commit log, or if the node's cdc_raw is another folder of this machine."""
    commit_log = Path(str(settings.get(COMMIT_LOG_SETTING, "")))
    if commit_log.is_absolute() and is_same_folder(commit_log, raw):
        text = "is the node's commit log, whose segments the agent would delete"
        yield failure(str(raw), text, "set cdcRawDirectory to the node's cdc_raw_directory")
        return
    its_own = Path(str(settings.get("cdc_raw_directory", "")))
    # os.path: False also where this user may not look.
    if its_own.is_absolute() and os.path.isdir(its_own) and not is_same_folder(its_own, raw):  # noqa: PTH112
        text = f"the node writes to {its_own}, and the agent reads {raw}"
        yield warning(
            str(raw), text, "set cdcRawDirectory to the node's folder, unless the node sees it under another name"
        )


def _size(path: Path) -> int:
    """The size of a file; 0 if it has just been deleted."""
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _disk(folder: Path, remedy: str = "make room: positions and held events go there") -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    if free < _LITTLE_DISK:
        yield warning(str(folder), f"{as_bytes(free)} are free on its disk", remedy)
    else:
        yield ok(str(folder), f"{as_bytes(free)} are free on its disk")
