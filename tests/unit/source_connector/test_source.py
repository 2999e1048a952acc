"""The source's own thread while Cassandra hangs: it continues, and receives the request to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest

from source_connector.assembly import assemble
from source_connector.configuration.config import SourceConfig
from source_connector.errors import FetchError
from source_connector.host.host_connection import HostConnection
from source_connector.host.host_protocol import Close
from source_connector.rows.cassandra_client import CassandraClient
from source_connector.source import Inbox, _base_name, _tables_since
from tests.topics.events_topic import wait_until

_OPTIONS = {
    "contactPoints": "node",
    "loadBalancing.localDc": "dc1",
    "pulsarServiceUrl": "pulsar://broker:6650",
    "schema.changes.topic": "none",
}


def test_a_cassandra_that_hangs_holds_up_neither_acknowledgements_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 50 tables is looked up at the start: one missing answer counts for all of them."""
    asked: list[str] = []
    goes_on = threading.Event()

    def hang(client: CassandraClient, select: str, values: Sequence[object] = ()) -> list[Mapping[str, object]]:
        asked.append(select)
        goes_on.wait(60)
        raise FetchError("system_schema", "OperationTimedOut")

    monkeypatch.setattr(CassandraClient, "connect", lambda client: None)
    monkeypatch.setattr(CassandraClient, "system_rows", hang)
    options = _OPTIONS | {"tables": ",".join(f"ks.t{number}" for number in range(50))}
    host = cast("HostConnection", SimpleNamespace(send=lambda frame: None, flush=lambda: None))
    inbox = Inbox()
    source = assemble(SourceConfig.from_mapping(options)[0], None, inbox, host, "out")
    running = threading.Thread(target=source.run, daemon=True)
    running.start()
    wait_until(lambda: bool(asked), "the first table is looked up")
    time.sleep(0.5)
    assert len(asked) == 1
    inbox.put(Close())
    running.join(timeout=0.5)
    assert not running.is_alive()
    goes_on.set()
    time.sleep(1)
    assert len(asked) == 1


def test_a_source_that_reaches_cassandra_after_it_has_waited_logs_that(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A source without a table logs nothing else, and `cdc status` said for two minutes that it waits for Cassandra."""
    caplog.set_level("INFO")
    answers = iter([FetchError("node", "Connection refused"), None])

    def connect(client: CassandraClient) -> None:
        if (error := next(answers)) is not None:
            raise error

    def refuse(client: CassandraClient) -> UUID:
        raise FetchError("system_schema", "Connection refused")

    monkeypatch.setattr(CassandraClient, "connect", connect)
    monkeypatch.setattr(CassandraClient, "schema_version", refuse)
    host = cast("HostConnection", SimpleNamespace(send=lambda frame: None, flush=lambda: None))
    inbox = Inbox()
    source = assemble(SourceConfig.from_mapping(_OPTIONS | {"tables": "ks.*"})[0], None, inbox, host, "out")
    running = threading.Thread(target=source.run, daemon=True)
    running.start()
    wait_until(lambda: "Cassandra answers" in caplog.messages, "the line after the wait")
    waited = [number for number, text in enumerate(caplog.messages) if text.startswith("waiting: ")]
    assert waited[-1] < caplog.messages.index("Cassandra answers")
    inbox.put(Close())
    running.join(timeout=5)
    assert not running.is_alive()


class LaggingNode:
    """A client whose tables come from a node without the newest schema, until that node has it."""

    def __init__(self) -> None:
        self.versions = {UUID(int=1), UUID(int=2)}

    def schema_version(self) -> UUID:
        return UUID(int=2)

    def schema_versions(self) -> set[UUID]:
        return self.versions

    def tables(self) -> list[tuple[str, str, bool]]:
        return [] if len(self.versions) > 1 else [("ks", "new", True)]


def test_tables_of_a_node_that_lags_are_asked_for_again() -> None:
    """The schema's version is of another node, so it counts as seen only when all nodes have it."""
    node = LaggingNode()
    client = cast("CassandraClient", node)
    assert _tables_since(client, UUID(int=1)) == (None, [])
    node.versions = {UUID(int=2)}
    seen_at, tables = _tables_since(client, None)
    assert (seen_at, tables) == (UUID(int=2), [("ks", "new", True)])
    assert _tables_since(client, seen_at) == (seen_at, ())


def test_of_two_tables_with_one_topic_the_second_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Both `shop`.`eu_orders` and `shop_eu`.`orders` would have the topic `data-shop_eu_orders`."""
    options = {
        "tables": "shop.eu_orders,shop_eu.orders",
        "destination": "data-{keyspace}_{table}",
        "contactPoints": "node",
        "loadBalancing.localDc": "dc1",
        "pulsarServiceUrl": "pulsar://broker:6650",
        "schema.changes.topic": "none",
    }
    host = cast("HostConnection", SimpleNamespace(send=lambda frame: None, flush=lambda: None))
    source = assemble(SourceConfig.from_mapping(options)[0], None, Inbox(), host, "out")
    shared = [source._shares_a_topic(place) for place in source._selection.named()]
    assert shared == [False, True]
    assert "shop_eu.orders is not served: its topic persistent://public/default/data-shop_eu_orders" in caplog.text


@pytest.mark.parametrize(
    ("topic", "base"),
    [
        ("persistent://public/default/cdc-events-ks.t-partition-12", "persistent://public/default/cdc-events-ks.t"),
        ("persistent://public/default/cdc-events-ks.t", "persistent://public/default/cdc-events-ks.t"),
        ("persistent://a/b/of-partition-ks.t", "persistent://a/b/of-partition-ks.t"),
    ],
)
def test_a_message_is_of_the_topic_whose_partition_it_comes_from(topic: str, base: str) -> None:
    """Only a number after `-partition-` is a partition."""
    assert _base_name(topic) == base
