"""The present state of the whole pipeline.

All parts are queried at the same time. A part that does not answer is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from cdc.health.agent_status import AgentStatus
from cdc.health.data_topics import named_tables, patterns_of
from cdc.health.dead_letter_topics import reads_line
from cdc.health.findings import Finding, Section, failure, ok, warning
from cdc.health.left_out import left_out_by
from cdc.health.line_config import LineConfig
from cdc.health.mirrors import mirror_finding
from cdc.health.nodes import Cluster, agents, agents_section, cluster_of
from cdc.health.pulsar_service import PulsarService, PulsarServiceError
from cdc.health.shared_events import shared_events
from cdc.health.sources import SourceView, names_in, sources_of, with_starts
from cdc.health.tables import dead_letters, expiries, gaps, tables
from cdc.health.unread_events import unread_events
from cdc.health.unwritten_events import unwritten_events
from cdc.health.wanted_tables import cdc_statement, is_of_system, not_captured
from schemas.similar_tables import hint_of

__all__ = ["is_of_other_cluster", "line_status", "uncaptured"]

_UNKNOWN: Final = "not known, because Pulsar does not say"


@dataclass(frozen=True, slots=True)
class _Answer:
    """Pulsar's answers. `problem`: why nothing is known. `sources_problem`: why the sources are not known. `remedy`: what to
    do about that.
    """

    topics: Sequence[str]
    sources: Sequence[SourceView]
    problem: str | None
    sources_problem: str | None
    remedy: str = ""


def line_status(config: LineConfig) -> list[Section]:
    """All sections of the screen. This takes a second or two, and up to 30 s more for each part that gives no answer."""
    now_s = time.time()
    with PulsarService(config) as service, ThreadPoolExecutor(4) as pool:
        asked_cluster = pool.submit(cluster_of, config)
        asked_agents = pool.submit(agents, config, now_s)
        pulsar = _pulsar(service, config)
        agent_findings, statuses = asked_agents.result()
        cluster = asked_cluster.result()
        return [
            Section(title="servers", findings=[cluster.finding(statuses, now_s), _broker(config, pulsar)]),
            agents_section(
                None if pulsar.problem else service,
                config,
                cluster,
                [
                    *agent_findings,
                    *(
                        each
                        for status in statuses
                        if status.is_current(now_s)
                        for each in left_out_by(status, cluster.tables)
                    ),
                ],
                statuses,
            ),
            Section(title="sources", findings=_sources(service, config, pulsar, cluster, now_s)),
            Section(
                title="tables",
                findings=[
                    *not_captured(cluster.tables, config.tables),
                    *_known(pulsar, lambda: _tables(service, config, pulsar, statuses, now_s)),
                ],
            ),
            Section(
                title="dead letters",
                findings=_known(pulsar, lambda: dead_letters(service, config, pulsar.sources, now_s)),
            ),
            Section(title="gaps", findings=_known(pulsar, lambda: gaps(service, config, now_s))),
            *_expiries(service, config, pulsar, now_s),
            *_mirrors(service, config, now_s),
        ]


def _pulsar(service: PulsarService, config: LineConfig) -> _Answer:
    namespace = config.topic_prefix.removeprefix("persistent://").rpartition("/")[0] or "public/default"
    topics: list[str] = []
    for each in dict.fromkeys([namespace, config.namespace]):
        try:
            topics += service.topics(each)
        except PulsarServiceError as error:
            remedy = "start it, or correct pulsarAdminUrl and credentials in line.yaml"
            if error.is_refusal:
                remedy = f"correct the credentials in line.yaml, or grant the role the right to list topics of {each}"
            return _Answer([], [], str(error), str(error), remedy)
    try:
        return _Answer(topics, with_starts(service, sources_of(service, config.sources)), None, None)
    except PulsarServiceError as error:
        remedy = "enable the functions worker, or wait until it has started; cdc doctor checks it"
        if error.is_refusal:
            remedy = f"pulsar-admin namespaces grant-permission --role ROLE --actions sources {config.namespace}"
        return _Answer(topics, [], None, str(error), remedy)


def _broker(config: LineConfig, pulsar: _Answer) -> Finding:
    if pulsar.problem is not None:
        return failure("Pulsar", pulsar.problem, pulsar.remedy)
    return ok("Pulsar", f"answers at {config.pulsar_admin_url}")


def _known(pulsar: _Answer, look: Callable[[], list[Finding]]) -> list[Finding]:
    if pulsar.problem is not None:
        return [warning("", _UNKNOWN, "see Pulsar above")]
    try:
        return look()
    except PulsarServiceError as error:
        return [failure("", str(error), "cdc doctor checks Pulsar's rights and state")]


def _sources(
    service: PulsarService, config: LineConfig, pulsar: _Answer, cluster: Cluster, now_s: float
) -> list[Finding]:
    if pulsar.problem is None and pulsar.sources_problem is not None:
        return [failure("functions worker", pulsar.sources_problem, pulsar.remedy)]

    def look() -> list[Finding]:
        found = [each for view in pulsar.sources for each in view.findings(config.functions_log_dir, now_s)]
        own = [view for view in pulsar.sources if not is_of_other_cluster(view, config)]
        found += [each for view in own for each in uncaptured(view, cluster.tables)]
        captured = [table for table, has_cdc in cluster.tables.items() if has_cdc]
        found += shared_events(own, captured)
        found += unwritten_events(service, own, captured, pulsar.topics, config.topic_prefix)
        found += unread_events(service, own, captured, pulsar.topics, config.events_subscription_name)
        missing = [name for name in config.sources if name not in {view.name for view in pulsar.sources}]
        found += [
            failure(name, "is not deployed", "pulsar-admin sources create (docs/connector.md)") for name in missing
        ]
        return found or [failure("", "none is deployed", "pulsar-admin sources create (docs/connector.md)")]

    return _known(pulsar, look)


def is_of_other_cluster(source: SourceView, config: LineConfig) -> bool:
    """Return True if the source reads neither events topics nor nodes of this line: clusters may share a namespace."""
    nodes = set(names_in(source.options.get("contactPoints") or ()))
    return not reads_line(source.options, config) and nodes.isdisjoint(config.contact_points)


def uncaptured(source: SourceView, tables: Mapping[str, bool]) -> Iterator[Finding]:
    """A finding for each table that a running source names, and that does not exist or has `cdc = false`, and for each of
    its patterns that selects no table.

    `tables`: all tables of the cluster by `keyspace.table`, with their option `cdc`; empty if they are not known. The
    source waits for such a table, and Pulsar reports that it runs.
    """
    for name in named_tables(source) if tables and source.running else ():
        if name not in tables:
            remedy = f"create it, or correct the option with pulsar-admin sources update {source.arguments}"
            text = f"waits for its table {name}, which does not exist{hint_of(name, tables)}"
            yield warning(source.name, text, remedy)
        elif not tables[name]:
            text = f"its table {name} has cdc = false: changes are not captured"
            yield warning(source.name, text, cdc_statement(name))
    if tables and source.running:
        yield from _patterns(source, tables)


def _patterns(source: SourceView, tables: Mapping[str, bool]) -> Iterator[Finding]:
    """A finding for each pattern that selects none of these tables. The source says nothing about it.

    Cassandra's own tables have no CDC.
    """
    users = sorted(name for name in tables if not is_of_system(name.partition(".")[0]))
    for pattern in patterns_of(source):
        found = [name for name in users if fnmatchcase(name, pattern)]
        if not found:
            remedy = f"correct its option tables with pulsar-admin sources update {source.arguments}, unless its table is still to come"
            yield warning(source.name, f"its pattern {pattern} matches no table{hint_of(pattern, tables)}", remedy)
        elif not any(tables[name] for name in found):
            text = f"its pattern {pattern} matches only tables with cdc = false, such as {found[0]}: changes are not captured"
            yield warning(source.name, text, cdc_statement(found[0]))


def _tables(
    service: PulsarService, config: LineConfig, pulsar: _Answer, statuses: Sequence[AgentStatus], now_s: float
) -> list[Finding]:
    told = {hazard for status in statuses if status.is_current(now_s) for hazard in status.hazards}
    found = tables(service, config, pulsar.topics, pulsar.sources, now_s, told)
    return found or [
        ok(
            "",
            "no events topic yet: an agent creates it with the first change of a table; cdc doctor lists tables without cdc",
        )
    ]


def _expiries(service: PulsarService, config: LineConfig, pulsar: _Answer, now_s: float) -> list[Section]:
    """The section of the expiry topics; none if there is no such topic."""
    if pulsar.problem is not None:
        return []
    found = _known(pulsar, lambda: expiries(service, config, pulsar.topics, now_s))
    return [Section(title="expiries", findings=found)] if found else []


def _mirrors(service: PulsarService, config: LineConfig, now_s: float) -> list[Section]:
    if not config.mirrors:
        return []
    found = []
    for target in config.mirrors:
        try:
            found.append(mirror_finding(service, target, now_s))
        except PulsarServiceError as error:
            found.append(warning(target, f"not known: {error}", "cdc doctor checks Pulsar's rights and state"))
    return [Section(title="mirrors", findings=found)]
