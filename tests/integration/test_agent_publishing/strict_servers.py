"""A strict Pulsar and a strict node, and helpers for tests of an agent between them.

The broker takes messages up to 100 kB and de-duplicates. A client with a token has only the rights of its role. A
client without a token may do everything, which the tests use to change the servers. The node requires a password, and
over TLS also a certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args
from prometheus_client.parser import text_string_to_metric_families

from cdc.agent_process import AgentProcess
from cdc.rest import rest
from cdc.sandbox import SandboxOptions
from tests.servers.certificates import CertificateAuthority
from tests.servers.security_settings import node_tls, pulsar_tls, pulsar_tokens
from tests.topics.events_topic import EventsTopic

__all__ = [
    "NAMESPACE",
    "NODE_PASSWORD",
    "PREFIX",
    "TopicOf",
    "keys_of",
    "metric_of",
    "strict_options",
    "topic_state",
    "write",
]

NODE_PASSWORD = "open sesame"
NAMESPACE = "public/strict"
PREFIX = f"persistent://{NAMESPACE}/cdc-events-"
TopicOf = Callable[[str], EventsTopic]


def strict_options(authority: CertificateAuthority) -> SandboxOptions:
    """A node and a Pulsar that both take TLS, too; Pulsar with authorization, de-duplication and small messages."""
    pulsar_settings = {
        **pulsar_tls(authority.folder),
        **pulsar_tokens(super_users="admin", certificates_too=True),
        "anonymousUserRole": "admin",
        "brokerDeduplicationEnabled": "true",
        "maxMessageSize": "100000",
    }
    return SandboxOptions(
        commitlog_sync_ms=100,
        functions_runtime="thread",
        pulsar_settings=pulsar_settings,
        cassandra_settings=node_tls(authority.folder, optional=True),
        cassandra_passwords=True,
    )


def write(session: Session, table: str, keys: list[str]) -> None:
    """Insert rows with these keys."""
    insert = session.prepare(f"INSERT INTO {table} (pk, v) VALUES (?, 'v')")
    execute_concurrent_with_args(session, insert, [(key,) for key in keys], concurrency=32)


def keys_of(topic: EventsTopic) -> list[str]:
    """Keys of all events on a topic now, sorted."""
    return sorted(each.event.partition_key.decode() for each in topic.read())


def topic_state(agent: AgentProcess, table: str) -> dict[str, object]:
    """The status of a table's topic; empty while the status does not have it."""
    topics = cast("dict[str, dict[str, object]]", agent.status()["topics"])
    return topics.get(table, {})


def metric_of(agent: AgentProcess, name: str, table: str) -> float:
    """A metric of one table; 0 while the metric does not exist."""
    page = rest().get(f"http://{agent.status()['http']}/metrics").raise_for_status().text
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == name and sample.labels.get("table") == table:
                return sample.value
    return 0.0
