"""Two sources that read one events topic by one subscription are told: each publishes a part of the changes only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc.health.findings import Level
from cdc.health.shared_events import shared_events
from cdc.health.sources import SourceView

_TABLES = ("crm.person", "shop.Orders", "shop.orders")


def _source(name: str, topic: str = "persistent://public/default/data-shop.orders", **options: object) -> SourceView:
    config = {"topicName": topic, "configs": options or {"keyspace": "shop", "table": "orders"}}
    instances = [{"instanceId": 0, "status": {"running": True, "error": ""}}]
    return SourceView.of(name, config, {"numInstances": 1, "instances": instances})


def test_two_sources_of_one_table_with_two_topics_are_a_failure() -> None:
    """Neither topic has all changes, and nothing else shows it: both sources run, and no event waits."""
    [finding] = shared_events([_source("a"), _source("b", "other")], _TABLES)
    assert (finding.level, finding.subject) == (Level.FAILURE, "a")
    assert finding.text == (
        "reads the events of shop.orders together with the source b: each gets only a part of them, and neither "
        "data-shop.orders nor other has all changes"
    )
    assert finding.remedy.startswith(
        "pulsar-admin sources delete --name b, or --name a; or take the table out of its options"
    )
    assert finding.remedy.endswith("then `cdc spark verify --repair` the table")


def test_two_sources_with_one_data_topic_are_a_warning() -> None:
    """A source of a pattern serves the table of the other one as well. The data topic has all changes."""
    pattern = _source("all", "shop", tables="shop.*,crm.person")
    [finding] = shared_events([_source("a"), pattern], _TABLES)
    assert (finding.level, finding.facts["tables"]) == (Level.WARNING, ["shop.orders"])
    assert "publish to the same data topic" in finding.text


@pytest.mark.parametrize(
    "other",
    [
        _source("b", keyspace="shop", table="Orders"),
        _source("b", keyspace="shop", table="orders", **{"events.subscription.name": "audit"}),
        _source("b", keyspace="shop", table="orders", events={"topic": "other-shop.orders"}),
        _source("b", "x", tables="crm.*"),
        replace(_source("b", "other"), instances=[]),
    ],
    ids=[
        "another table",
        "another subscription",
        "another events topic, in a nested map",
        "other tables",
        "it does not run",
    ],
)
def test_sources_that_share_nothing_are_not_told(other: SourceView) -> None:
    """Names of tables are case-sensitive."""
    assert not list(shared_events([_source("a"), other], _TABLES))


def test_templates_of_events_topics_are_filled_in() -> None:
    """A list of templates may have the topic of DataStax's agents as well."""
    one = _source("a", "x", tables="shop.*", **{"events.topic": ["e-{keyspace}.{table}", "events-{keyspace}.{table}"]})
    other = _source("b", keyspace="shop", table="orders", **{"events.topic": "events-shop.orders"})
    [finding] = shared_events([one, other], _TABLES)
    assert finding.facts["tables"] == ["shop.orders"]
