"""A source that reads a topic that nobody writes is named, also if another source serves its table."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cdc.health.findings import Finding, Level
from cdc.health.line_config import LineConfig
from cdc.health.pulsar_service import PulsarService
from cdc.health.sources import SourceView
from cdc.health.unwritten_events import unwritten_events
from tests.servers.pages import Page, page, serving

_PREFIX = "persistent://public/default/cdc-events-"
_TABLES = ("crm.person", "shop.orders", "shop.parts")
_TOPICS = [f"{_PREFIX}{table}" for table in ("shop.orders", "shop.parts", "gaps")]
_STATS = "/admin/v2/persistent/public/default/events-shop.orders"


def _source(name: str = "s", *, is_running: bool = True, **options: object) -> SourceView:
    config = {"topicName": f"data-{name}", "configs": options or {"keyspace": "shop", "table": "orders"}}
    instances = [{"instanceId": 0, "status": {"running": is_running, "error": ""}}]
    return SourceView.of(name, config, {"numInstances": 1, "instances": instances})


def _found(
    *sources: SourceView, topics: list[str] | None = None, pages: Mapping[str, Page] | None = None
) -> list[Finding]:
    with serving(pages or {}) as url, PulsarService(LineConfig.from_mapping({"pulsarAdminUrl": url})) as service:
        return unwritten_events(service, sources, _TABLES, topics or _TOPICS, _PREFIX)


def test_a_mistyped_events_topic_is_named_although_another_source_serves_the_table() -> None:
    """The events of the table do not wait, both sources run, and the status said that all is well."""
    wrong = _source("wrong", keyspace="shop", table="orders", events={"topic": "cdc-event-shop.orders"})
    [found] = _found(_source("right"), wrong)
    assert (found.level, found.subject, found.facts["tables"]) == (Level.WARNING, "wrong", ["shop.orders"])
    assert found.text == (
        "reads cdc-event-shop.orders, which nobody writes: the agents write the events of shop.orders to cdc-events-shop.orders"
    )
    assert found.remedy == (
        "correct its option events.topic with pulsar-admin sources update --name wrong, or topicPrefix of the agents and of"
        " line.yaml"
    )


def test_a_mistyped_template_is_named_once_for_all_tables() -> None:
    """A table without an events topic has had no change yet."""
    wrong = _source(tables="*.*", **{"events.topic": "cdc-event-{keyspace}.{table}"})
    [found] = _found(wrong)
    assert found.text.endswith("the events of shop.orders to cdc-events-shop.orders; it is the same for shop.parts")


@pytest.mark.parametrize(
    "source",
    [
        _source(),
        _source(tables="*.*", **{"events.topic": ["events-{keyspace}.{table}", "cdc-events-{keyspace}.{table}"]}),
        _source(keyspace="crm", table="person", **{"events.topic": "cdc-event-crm.person"}),
        _source(is_running=False, keyspace="shop", table="orders", **{"events.topic": "cdc-event-shop.orders"}),
    ],
    ids=["the agents' topic", "both agents' topics", "a table without a change", "it does not run"],
)
def test_other_sources_are_not_named(source: SourceView) -> None:
    """One that does not run has another finding."""
    assert not _found(source)


@pytest.mark.parametrize(
    ("answer", "is_named"),
    [
        (page({"publishers": [{}], "storageSize": 0}), False),
        (page({"publishers": [], "storageSize": 9}), False),
        (page({"publishers": [], "storageSize": 0}), True),
        (page({"reason": "no right"}, 403), False),
    ],
    ids=["a producer", "messages", "an empty topic", "no right to look"],
)
def test_the_topic_of_other_agents_counts_as_written(answer: Page, is_named: bool) -> None:
    """During a migration, the agents of DataStax may still write the topic that the source reads."""
    source = _source(keyspace="shop", table="orders", **{"events.topic": "events-shop.orders"})
    pages = {f"{_STATS}/stats": answer, f"{_STATS}/partitions": page({"partitions": 0})}
    topics = [*_TOPICS, "persistent://public/default/events-shop.orders"]
    assert len(_found(source, topics=topics, pages=pages)) == is_named
