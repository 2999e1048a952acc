"""A source with a subscription of its own that runs and reads nothing is named."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cdc.health.findings import Finding, Level
from cdc.health.line_config import LineConfig
from cdc.health.line_status import _Answer, _sources
from cdc.health.nodes import Cluster
from cdc.health.pulsar_service import PulsarService
from cdc.health.sources import SourceView
from cdc.health.unread_events import unread_events
from tests.servers.pages import Page, page, serving

_TOPIC = "persistent://public/default/cdc-events-shop.orders"
_PAGES = "/admin/v2/persistent/public/default/cdc-events-shop.orders"


def _source(subscription: str, *, name: str = "audit", table: str = "shop.*", is_running: bool = True) -> SourceView:
    options = {
        "tables": table,
        "contactPoints": "10.9.9.9",
        "events.subscription.name": subscription,
    }
    instances = [{"instanceId": 0, "status": {"running": is_running, "error": ""}}]
    return SourceView.of(name, {"configs": options}, {"numInstances": 1, "instances": instances})


def _found(source: SourceView, stats: Page, topics: tuple[str, ...] = (_TOPIC,)) -> list[Finding]:
    pages: Mapping[str, Page] = {f"{_PAGES}/partitions": page({"partitions": 1}), f"{_PAGES}/partitioned-stats": stats}
    with serving(pages) as url, PulsarService(LineConfig.from_mapping({"pulsarAdminUrl": url})) as service:
        return unread_events(service, [source], ["shop.orders"], topics, "sub")


def _stats(subscription: str) -> Page:
    return page({"partitions": {f"{_TOPIC}-partition-0": {"subscriptions": {subscription: {"consumers": [{}]}}}}})


def test_a_source_that_waits_is_named_although_another_one_reads_the_table() -> None:
    """With a wrong address of Cassandra it was said to run until it had ended, which took a minute."""
    [found] = _found(_source("audit"), _stats("sub"))
    assert (found.level, found.subject) == (Level.WARNING, "audit")
    assert found.text == "runs, and does not read cdc-events-shop.orders with its subscription audit"
    assert found.remedy == (
        "it waits: logs/functions/public/default/audit/audit-0.log on the worker says for what; it asks Cassandra at 10.9.9.9:"
        " correct its option contactPoints if that is wrong"
    )


@pytest.mark.parametrize(
    ("source", "stats", "topics"),
    [
        (_source("audit"), _stats("audit"), (_TOPIC,)),
        (_source("sub"), _stats("other"), (_TOPIC,)),
        (_source("audit", is_running=False), _stats("sub"), (_TOPIC,)),
        (_source("audit"), _stats("sub"), ()),
        (_source("audit"), page({"reason": "no right"}, 403), (_TOPIC,)),
    ],
    ids=["it reads", "the agents' subscription", "it does not run", "no change yet", "no right to look"],
)
def test_other_sources_are_not_named(source: SourceView, stats: Page, topics: tuple[str, ...]) -> None:
    """What nobody reads with the agents' subscription is a finding of the table."""
    assert not _found(source, stats, topics)


def test_a_topic_whose_broker_fails_does_not_hide_the_states_of_the_sources() -> None:
    """The whole section was one failure about the topic, also when a source was down."""
    sources = [_source("audit"), _source("sub", is_running=False)]
    answer = _Answer([_TOPIC], sources, None, None)
    pages = {f"{_PAGES}/partitions": page({"reason": "no bookie"}, 500)}
    with serving(pages) as url:
        config = LineConfig.from_mapping({"pulsarAdminUrl": url})
        with PulsarService(config) as service:
            found = _sources(service, config, answer, Cluster(port=9042, tables={"shop.orders": True}), 0.0)
    states = [("audit", Level.OK), ("audit", Level.FAILURE), ("audit", Level.FAILURE)]
    assert [(each.subject, each.level) for each in found] == states
    assert "whether it reads its events is not known" in found[-1].text
    assert "no bookie" in found[-1].text


def test_a_topic_whose_broker_fails_hides_no_other_source() -> None:
    """The first error was the only finding of all sources."""
    broken, waiting = _source("audit"), _source("copy", name="copies", table="shop.items")
    items = _PAGES.replace("orders", "items")
    pages = {
        f"{_PAGES}/partitions": page({"reason": "no bookie"}, 500),
        f"{items}/partitions": page({"partitions": 1}),
        f"{items}/partitioned-stats": _stats("sub"),
    }
    topics = (_TOPIC, _TOPIC.replace("orders", "items"))
    with serving(pages) as url, PulsarService(LineConfig.from_mapping({"pulsarAdminUrl": url})) as service:
        found = unread_events(service, [broken, waiting], ["shop.orders", "shop.items"], topics, "sub")
    assert [(each.subject, each.level) for each in found] == [("copies", Level.WARNING), ("audit", Level.FAILURE)]


@pytest.mark.parametrize(("reader", "is_named"), [("audit", False), ("sub", True)])
def test_a_source_that_has_not_found_a_new_table_yet_is_not_named(reader: str, is_named: bool) -> None:
    """It looks for tables every 5 s. Until then it was said to wait, perhaps for a wrong address of Cassandra."""
    new = "/admin/v2/persistent/public/default/cdc-events-shop.new"
    one = page({"partitions": 1})
    pages = {
        f"{new}/partitions": one,
        f"{new}/partitioned-stats": _stats("sub"),
        f"{_PAGES}/partitions": one,
        f"{_PAGES}/partitioned-stats": _stats(reader),
    }
    topics = (_TOPIC.replace("orders", "new"), _TOPIC)
    with serving(pages) as url, PulsarService(LineConfig.from_mapping({"pulsarAdminUrl": url})) as service:
        found = unread_events(service, [_source("audit")], ["shop.new", "shop.orders"], topics, "sub")
    assert [each.subject for each in found] == ["audit"] * is_named
