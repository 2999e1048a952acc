"""Which tables are selected by names and patterns, and the topics of their events and records."""

from __future__ import annotations

import pytest

from schemas.errors import ConfigError
from source_connector.configuration.config import SourceConfig
from source_connector.configuration.table_selection import TablePlace, TableSelection

_PLACE = {"contactPoints": "c", "loadBalancing.localDc": "dc1"}


def selection(**options: object) -> TableSelection:
    given = {name.replace("__", "."): value for name, value in options.items()}
    return SourceConfig.from_mapping({**_PLACE, **given}, {"getServiceUrl": "pulsar://b:6650"})[0].selection


def test_one_table_goes_where_the_source_was_deployed_to() -> None:
    """The events topics are used as given."""
    only = TablePlace(keyspace="ks", table="t", events_topics=("persistent://public/default/a", "persistent://x/y/b"))
    assert selection(keyspace="ks", table="t", events__topic="a, x/y/b").named() == [only]


def test_names_are_served_at_once_and_patterns_when_a_table_with_cdc_matches() -> None:
    """Each table has its own topics by the templates; system tables are never selected."""
    chosen = selection(tables="shop.orders, shop.line_*, s?op.x", destination="t/n/{keyspace}-{table}")
    (orders,) = chosen.named()
    assert orders.events_topics == ("persistent://public/default/cdc-events-shop.orders",)
    assert orders.destination == "persistent://t/n/shop-orders"
    found = chosen.found(
        [
            ("shop", "line_items", True),
            ("shop", "line_no_cdc", False),
            ("shop", "online_x", True),
            ("stop", "x", True),
            ("system", "local", True),
        ]
    )
    assert [(place.keyspace, place.table) for place in found] == [("shop", "line_items"), ("stop", "x")]
    mixed = selection(tables="shop.orders", events__topic=["events-{keyspace}.{table}", "t/n/ours-{keyspace}.{table}"])
    assert mixed.named()[0].events_topics == (
        "persistent://public/default/events-shop.orders",
        "persistent://t/n/ours-shop.orders",
    )
    assert [*selection(tables=["*.*"]).found([("system", "local", True)])] == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tables": "orders"}, "tables: each entry is keyspace.table, where * and ? match any characters (got 'o"),
        ({"tables": "a.b.c"}, "tables: each entry"),
        ({"tables": "a.*", "table": "t"}, "table: cannot be given together with tables"),
        (
            {"tables": "a.*", "destination": "data"},
            "destination: with tables it is a template, a topic that contains {",
        ),
        ({"tables": "a.*", "destination": "data-{table"}, "destination: with tables it is a template"),
        ({"tables": "a.*", "destination": "data-{keyspace.table}"}, "destination: with tables it is a template"),
        ({"tables": "a.*", "destination": "data-{keyspace[x]}.{table}"}, "destination: with tables it is a template"),
        ({"tables": "a.*", "events.topic": "x-{keyspace.x}.{table}"}, "events.topic: with tables it is a template"),
        (
            {"keyspace": "ks", "table": "t", "events.topic": "cdc-events-ks.t, cdc-events-ks.t-partition-0"},
            "events.topic: name the topic, not its partition: its partitions are divided by --parallelism among the "
            "instances (got 'cdc-events-ks.t-partition-0')",
        ),
        (
            {"tables": "ks.t", "events.topic": "x-{keyspace}.{table}-partition-12"},
            "events.topic: name the topic, not its partition",
        ),
        ({"tables": "a.*", "destination": "data-{keyspace}"}, "destination: with tables it is a template"),
        ({"tables": "a.*", "events.topic": "x"}, "events.topic: with tables it is a template"),
        ({"tables": "a.*", "events.topic": "x{keyspace}.{table},y"}, "events.topic: with tables it is a template"),
        ({}, "keyspace: is required"),
    ],
)
def test_a_selection_that_cannot_work_is_refused(options: dict[str, object], problem: str) -> None:
    """The error says what is expected."""
    with pytest.raises(ConfigError) as raised:
        SourceConfig.from_mapping({**_PLACE, **options}, {"getServiceUrl": "pulsar://b:6650"})
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("events", "topic"),
    [
        ("persistent://public/default/cdc-events-ks.t", "persistent://public/default/cdc-events-expiry-ks.t"),
        ("persistent://a/b/mine-ks.t", "persistent://a/b/mine-expiry-ks.t"),
        ("persistent://a/b/elsewhere", "persistent://public/default/cdc-events-expiry-ks.t"),
    ],
)
def test_rows_wait_for_their_expiry_beside_their_events(events: str, topic: str) -> None:
    """The topic has the same prefix as the events topic, or the default prefix if that topic has a name of its own."""
    assert TablePlace(keyspace="ks", table="t", events_topics=(events,)).expiry_topic == topic
