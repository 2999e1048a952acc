"""The gaps topic, as an agent creates and writes it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final
from uuid import UUID

from cdc.rest import rest
from clients.pulsar_schema import ReadyBytes
from schemas.gap_record import GAP_SCHEMA_TEXT, GapRecord, gaps_topic
from tests.servers.interface import PulsarServer
from tests.topics.client import client_of

__all__ = ["GAP", "gap", "make_gaps_topic", "messages_in", "report_gaps"]

GAP: Final = GapRecord(
    node_id=UUID(int=1),
    keyspace="shop",
    table="orders",
    table_id=UUID(int=2),
    first_segment_id=10,
    first_position=0,
    last_segment_id=12,
    from_ms=100_000,
    to_ms=160_000,
    detected_ms=160_001,
    reason="gone",
)


def make_gaps_topic(pulsar: PulsarServer, prefix: str) -> None:
    """Create the gaps topic as an agent does: with four partitions and the connector's subscription."""
    url = f"{pulsar.admin_url}/admin/v2/{gaps_topic(prefix).replace('://', '/')}"
    rest().put(f"{url}/partitions", json=4).raise_for_status()
    rest().put(f"{url}/subscription/sub", json={"ledgerId": -1, "entryId": -1}).raise_for_status()


def report_gaps(pulsar: PulsarServer, prefix: str, payloads: list[bytes]) -> None:
    """Publish gap records as an agent does: all to the first partition."""
    with client_of(pulsar.service_url) as client:
        producer = client.create_producer(
            f"{gaps_topic(prefix)}-partition-0", schema=ReadyBytes.of("Gap", GAP_SCHEMA_TEXT), batching_enabled=False
        )
        for each in payloads:
            producer.send(each)


def gap(node: UUID, keyspace: str, table: str, table_id: UUID, since_ms: int) -> GapRecord:
    """A gap of two segments of this node, from `since_ms` (milliseconds since the epoch) until now."""
    now_ms = int(time.time() * 1000)
    return replace(
        GAP,
        node_id=node,
        keyspace=keyspace,
        table=table,
        table_id=table_id,
        first_segment_id=7,
        last_segment_id=8,
        from_ms=since_ms,
        to_ms=now_ms,
        detected_ms=now_ms,
        reason="2 commit log segments went from cdc_raw before they were read to their end",
    )


def messages_in(pulsar: PulsarServer, topic: str) -> int:
    """The number of messages that were published to this topic."""
    url = f"{pulsar.admin_url}/admin/v2/{topic.replace('://', '/')}/partitioned-stats"
    found: int = rest().get(url, timeout=30).raise_for_status().json()["msgInCounter"]
    return found
