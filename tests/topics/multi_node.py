"""Helpers of tests with several nodes: sessions with one node, rows, and their events and records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.policies import WhiteListRoundRobinPolicy

from cdc.sandbox.cassandra_node import CassandraNode
from tests.fault_kit.oracle.cassandra_rows import select_all, table_shape
from tests.fault_kit.oracle.comparison import compare
from tests.fault_kit.oracle.folding import fold
from tests.fault_kit.oracle.topics import Event, TopicReader
from tests.servers.interface import PulsarServer
from tests.topics.events_topic import wait_until

__all__ = ["WAIT_S", "connected", "events_of", "key_hex", "wait_for_equal_data", "wait_for_keys", "write"]

WAIT_S: Final = 600


def connected(node: CassandraNode) -> Cluster:
    """The driver's cluster object that connects only to this node."""
    profile = ExecutionProfile(
        load_balancing_policy=WhiteListRoundRobinPolicy([node.address]),
        request_timeout=120,
        consistency_level=ConsistencyLevel.ONE,
    )
    return Cluster(
        [node.address], port=node.native_port, connect_timeout=60, execution_profiles={EXEC_PROFILE_DEFAULT: profile}
    )


def write(session: Session, keyspace: str, keys: Sequence[int], value: str = "v") -> None:
    """Write a row of table `t` for each key."""
    insert = session.prepare(f"INSERT INTO {keyspace}.t (pk, v) VALUES (?, ?)")
    execute_concurrent_with_args(session, insert, [(key, f"{value}-{key}") for key in keys], concurrency=32)


def key_hex(key: int) -> str:
    """The partition key as events have it, in hexadecimal."""
    return key.to_bytes(4, "big").hex()


def events_of(pulsar: PulsarServer, keyspace: str, node_id: str | None = None) -> list[Event]:
    """All events of table `t`, or those of one node."""
    with TopicReader(pulsar.service_url, pulsar.admin_url) as topics:
        events = topics.events(f"cdc-events-{keyspace}.t")
    return [event for event in events if node_id in (None, event.node)]


def wait_for_keys(pulsar: PulsarServer, keyspace: str, keys: Sequence[int], node_id: str | None = None) -> list[Event]:
    """Wait until every key has an event, and return all events. `node_id`: count only events of this node."""
    wanted = set(map(key_hex, keys))
    found: list[Event] = []

    def is_told() -> bool:
        found[:] = events_of(pulsar, keyspace, node_id)
        return wanted <= {event.partition_key for event in found}

    wait_until(is_told, f"{len(keys)} keys of {keyspace} on the events topic", WAIT_S)
    return found


def wait_for_equal_data(pulsar: PulsarServer, session: Session, keyspace: str) -> None:
    """Wait until the folded data topic is equal to the table."""
    last: list[str] = []

    def is_equal() -> bool:
        with TopicReader(pulsar.service_url, pulsar.admin_url) as topics:
            records = list(topics.data_records(f"persistent://public/default/data-{keyspace}.t"))
        shape = table_shape(session, keyspace, "t")
        last[:] = compare(shape, select_all(session, keyspace, shape), fold(shape, records)).differences
        return not last

    try:
        wait_until(is_equal, f"the data topic of {keyspace} is the table", WAIT_S)
    except AssertionError as error:
        raise AssertionError(f"{len(last)} differences, the first: {last[:1]}") from error
