"""A strict Pulsar and a strict node, and what tests ask of an agent between them.

The broker takes messages up to 100 kB, de-duplicates, and gives clients with a token the rights of its role only; without
a token everything is allowed, which is how these tests change things. The node asks for a password, and over TLS for a
certificate, too.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import cast

from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args
from prometheus_client.parser import text_string_to_metric_families

from cdc.agent_process import AgentProcess
from cdc.rest import rest
from cdc.sandbox import SandboxOptions
from cdc.sandbox.options import Json
from tests.certificates import STORE_PASSWORD, CertificateAuthority
from tests.events_topic import EventsTopic

__all__ = [
    "HTTPS_PORT", "NAMESPACE", "NODE_PASSWORD", "PREFIX", "TLS_PORT", "TopicOf", "keys_of", "metric_of", "strict_options",
    "token_of", "topic_state", "write",
]  # fmt: skip

_SECRET = b"not a secret: it is for a test's own server"
NODE_PASSWORD = "open sesame"
NAMESPACE = "public/strict"
PREFIX = f"persistent://{NAMESPACE}/cdc-events-"
# The sandbox's Pulsar has an address of its own.
TLS_PORT = 6651
HTTPS_PORT = 8443
TopicOf = Callable[[str], EventsTopic]


def token_of(role: str) -> str:
    """A JWT of this role, HS256."""

    def part(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    signed = part(json.dumps({"alg": "HS256"}).encode()) + b"." + part(json.dumps({"sub": role}).encode())
    return (signed + b"." + part(hmac.new(_SECRET, signed, hashlib.sha256).digest())).decode()


def strict_options(authority: CertificateAuthority) -> SandboxOptions:
    """A node and a Pulsar that both take TLS, too; Pulsar with authorization, de-duplication and small messages."""
    authentication = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
    pulsar_settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationProviders": f"{authentication}Tls,{authentication}Token",
        "brokerServicePortTls": str(TLS_PORT),
        "webServicePortTls": str(HTTPS_PORT),
        "tlsCertificateFilePath": str(authority.folder / "broker.pem"),
        "tlsKeyFilePath": str(authority.folder / "broker.key"),
        "tlsTrustCertsFilePath": str(authority.trusted),
        "tokenSecretKey": "data:;base64," + base64.b64encode(_SECRET).decode(),
        "superUserRoles": "admin",
        "anonymousUserRole": "admin",
        "brokerDeduplicationEnabled": "true",
        "maxMessageSize": "100000",
    }
    node_settings: dict[str, Json] = {
        "client_encryption_options": {
            "enabled": True,
            "optional": True,
            "keystore": str(authority.folder / "node.p12"),
            "keystore_password": STORE_PASSWORD,
            "truststore": str(authority.folder / "ca.p12"),
            "truststore_password": STORE_PASSWORD,
            "store_type": "PKCS12",
            "require_client_auth": True,
        }
    }
    return SandboxOptions(
        commitlog_sync_ms=100,
        functions_runtime="thread",
        pulsar_settings=pulsar_settings,
        cassandra_settings=node_settings,
        cassandra_passwords=True,
    )


def write(session: Session, table: str, keys: list[str]) -> None:
    """Insert rows with these keys."""
    insert = session.prepare(f"INSERT INTO {table} (pk, v) VALUES (?, 'v')")
    execute_concurrent_with_args(session, insert, [(key,) for key in keys], concurrency=32)


def keys_of(topic: EventsTopic) -> list[str]:
    """Keys of all events on a topic now, in order."""
    return sorted(each.event.partition_key.decode() for each in topic.read())


def topic_state(agent: AgentProcess, table: str) -> dict[str, object]:
    """What the status says of a table's topic; empty while it says nothing."""
    topics = cast("dict[str, dict[str, object]]", agent.status()["topics"])
    return topics.get(table, {})


def metric_of(agent: AgentProcess, name: str, table: str) -> float:
    """A metric of one table; 0 while it is not there."""
    page = rest().get(f"http://{agent.status()['http']}/metrics").raise_for_status().text
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == name and sample.labels.get("table") == table:
                return sample.value
    return 0.0
