"""The rights that a role needs, and the logins of agent and Spark reader: tokens, certificates, OAuth2, passwords."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
import yaml
from cassandra.cluster import Session

from cdc.agent_process import AgentProcess
from cdc.rest import rest
from cdc.sandbox import Sandbox
from cdc.sandbox.native_protocol import DEFAULT_LOGIN
from spark_bridge.errors import EventSendError, PulsarUnreachableError
from spark_bridge.jobs.cassandra_rows import ALL_TOKENS, CassandraAccess, table_metadata
from spark_bridge.jobs.cassandra_tls import CassandraTls
from spark_bridge.jobs.row_sender import RowSender
from spark_bridge.reading.planning import plan_batch
from spark_bridge.reading.topic_reader import read_range
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.options import BridgeOptions
from tests.integration.test_agent_publishing.strict_servers import (
    NAMESPACE,
    NODE_PASSWORD,
    PREFIX,
    TopicOf,
    keys_of,
    topic_state,
    write,
)
from tests.servers.certificates import CertificateAuthority
from tests.servers.security_settings import HTTPS_PORT, TLS_PORT, token
from tests.servers.token_issuer import CLIENT_SECRET, OAUTH2_PLUGIN, Issuer, key_file, token_issuer
from tests.topics.events_topic import wait_until


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    """A running issuer that gives each client a token of the client's own role."""
    with token_issuer(token) as running:
        yield running


@pytest.fixture(params=["token", "certificate", "oauth2"])
def credentials(
    request: pytest.FixtureRequest, authority: CertificateAuthority, issuer: Issuer, servers: Sandbox, tmp_path: Path
) -> dict[str, object]:
    """Options that give an agent the role `writer`: by a token file, by a certificate over TLS, or by OAuth2."""
    java = "org.apache.pulsar.client.impl.auth"
    if request.param == "token":
        (tmp_path / "params").write_text(f"token:{token('writer')}\n")
        return {"pulsarAuthPluginClassName": "token", "pulsarAuthParamsFile": str(tmp_path / "params")}
    if request.param == "certificate":
        files = f"tlsCertFile:{authority.folder}/writer.pem,tlsKeyFile:{authority.folder}/writer.key"
        address = servers.pulsar.address
        return {
            "pulsarAuthPluginClassName": f"{java}.AuthenticationTls",
            "pulsarAuthParams": files,
            "pulsarServiceUrl": f"pulsar+ssl://{address}:{TLS_PORT}",
            "pulsarAdminUrl": f"https://{address}:{HTTPS_PORT}",
            "tlsTrustCertsFilePath": str(authority.trusted),
            "sslHostnameVerificationEnable": False,
        }
    params = {
        "issuer_url": issuer.url,
        "private_key": key_file(tmp_path / "key.json", "writer"),
        "audience": "pulsar",
    }
    return {"pulsarAuthPluginClassName": OAUTH2_PLUGIN, "pulsarAuthParams": json.dumps(params)}


def test_produce_rights_are_enough_where_topic_and_subscription_are_there(
    servers: Sandbox,
    session: Session,
    keyspace: str,
    agent: AgentProcess,
    topic_of: TopicOf,
    credentials: dict[str, object],
    node_login: dict[str, object],
    tmp_path: Path,
) -> None:
    """With `createTopics: false`, a role that may only produce is enough; a table without that right waits, and the
    other one continues."""
    assert agent.stop() == 0
    admin = f"{servers.pulsar.admin_url}/admin/v2/persistent/{NAMESPACE}"
    for table in ("a", "b"):
        topic = f"{admin}/cdc-events-{keyspace}.{table}"
        rest().put(f"{topic}/partitions", json=2).raise_for_status()
        rest().put(f"{topic}/subscription/sub", json={"ledgerId": -1, "entryId": -1}).raise_for_status()
    rest().post(f"{admin}/cdc-events-{keyspace}.b/permissions/writer", json=["produce"]).raise_for_status()
    modest = AgentProcess.for_node(
        servers.node,
        servers.pulsar,
        tmp_path / "modest",
        topicPrefix=PREFIX,
        createTopics=False,
        includeTables=f"{keyspace}.*",
        **node_login,
        **credentials,
    )
    modest.start()
    try:
        write(session, f"{keyspace}.a", ["a"])
        write(session, f"{keyspace}.b", ["b"])
        topic_of(f"{keyspace}.b").wait_for(1)
        wait_until(lambda: bool(topic_state(modest, f"{keyspace}.a").get("problem")), "the other one waits")
        rest().post(f"{admin}/cdc-events-{keyspace}.a/permissions/writer", json=["produce"]).raise_for_status()
        topic_of(f"{keyspace}.a").wait_for(1)
        log = modest.log.read_text()
        assert token("writer") not in log
        assert CLIENT_SECRET not in log
    finally:
        modest.stop()
        agent.start()


def test_a_server_whose_certificate_is_not_trusted_is_waited_for_with_a_clear_line(
    servers: Sandbox, agent: AgentProcess, node_login: dict[str, object], tmp_path: Path
) -> None:
    """The agent uses neither Cassandra nor Pulsar, logs the reason, and is not ready."""
    stranger = CertificateAuthority(tmp_path / "stranger")
    address = servers.pulsar.address
    agent.stop()
    strict = AgentProcess.for_node(
        servers.node,
        servers.pulsar,
        tmp_path / "strict",
        topicPrefix=PREFIX,
        cassandraTls=True,
        cassandraTrustCertsFilePath=str(stranger.trusted),
        tlsTrustCertsFilePath=str(stranger.trusted),
        **node_login,
        pulsarServiceUrl=f"pulsar+ssl://{address}:{TLS_PORT}",
        pulsarAdminUrl=f"https://{address}:{HTTPS_PORT}",
    )
    strict.start()
    try:
        wait_until(lambda: "certificate verify failed" in strict.log.read_text(), "the log says why")
        answer = rest().get(f"http://{strict.status()['http']}/readyz")
        assert answer.status_code == 503
        assert "cassandra" in answer.json()["problems"][0]
    finally:
        strict.stop()
        agent.start()


def test_a_node_that_wants_a_password_and_a_certificate_gets_both(
    servers: Sandbox,
    session: Session,
    keyspace: str,
    agent: AgentProcess,
    node_login: dict[str, object],
    authority: CertificateAuthority,
    topic_of: TopicOf,
    tmp_path: Path,
) -> None:
    """If one of them is missing, the agent logs why, without the password; with both it publishes."""
    agent.stop()
    tls = {
        "cassandraTls": True,
        "cassandraTrustCertsFilePath": str(authority.trusted),
        "cassandraHostnameVerification": False,
    }
    certificate = {
        "cassandraCertificateFilePath": str(authority.folder / "writer.pem"),
        "cassandraKeyFilePath": str(authority.folder / "writer.key"),
    }
    common = {"topicPrefix": PREFIX, "includeTables": f"{keyspace}.*"}
    guest = AgentProcess.for_node(servers.node, servers.pulsar, tmp_path / "guest", **common)
    options = yaml.safe_load(guest.config.read_text())
    try:
        for more, reason in (
            ({**tls, **node_login}, "waiting for the schema: Cassandra at"),  # TLS 1.3 gives no other reason
            ({**tls, **certificate}, "requires authentication"),
            ({**tls, **certificate, "username": "agent", "password": "open seed"}, "are incorrect"),
        ):
            guest.configure({**options, **more})
            guest.start()
            wait_until(lambda reason=reason: reason in guest.log.read_text(), f"the log says {reason!r}")
            assert guest.stop() == 0
        write(session, f"{keyspace}.a", ["a"])
        guest.configure({**options, **tls, **certificate, **node_login})
        guest.start()
        topic_of(f"{keyspace}.a").wait_for(1)
    finally:
        guest.stop()
        agent.start()
    log = guest.log.read_text()
    assert "open seed" not in log
    assert NODE_PASSWORD not in log


@pytest.fixture(params=["token", "certificate", "oauth2"])
def reader_login(
    request: pytest.FixtureRequest, authority: CertificateAuthority, issuer: Issuer, servers: Sandbox, tmp_path: Path
) -> dict[str, str]:
    """Options for the Spark bridge to have the role `writer`: by a token file, a certificate over TLS, or OAuth2."""
    java = "org.apache.pulsar.client.impl.auth"
    plain = {"serviceUrl": servers.pulsar.service_url, "adminUrl": servers.pulsar.admin_url}
    if request.param == "token":
        (tmp_path / "token").write_text(token("writer"))
        return plain | {
            "authPluginClassName": f"{java}.AuthenticationToken",
            "authParams": f"file://{tmp_path}/token",
        }
    if request.param == "certificate":
        return {
            "serviceUrl": f"pulsar+ssl://{servers.pulsar.address}:{TLS_PORT}",
            "adminUrl": f"https://{servers.pulsar.address}:{HTTPS_PORT}",
            "authPluginClassName": f"{java}.AuthenticationTls",
            "authParams": f"tlsCertFile:{authority.folder}/writer.pem,tlsKeyFile:{authority.folder}/writer.key",
            "tlsTrustCertsFilePath": str(authority.trusted),
            "tlsHostnameVerificationEnable": "false",
        }
    params = {"issuer_url": issuer.url, "private_key": key_file(tmp_path / "key.json", "writer")}
    return plain | {"authPluginClassName": OAUTH2_PLUGIN, "authParams": json.dumps(params)}


def test_a_data_topic_is_read_with_the_rights_of_a_role(
    servers: Sandbox, issuer: Issuer, reader_login: dict[str, str], request: pytest.FixtureRequest
) -> None:
    """With the right to consume the topic is read; without it the Spark reader reports the refusal."""
    by = request.node.callspec.params["reader_login"]
    topic = f"persistent://{NAMESPACE}/data-rights-{by}"
    admin = f"{servers.pulsar.admin_url}/admin/v2/{topic.replace('://', '/')}"
    rest().put(f"{admin}/partitions", json=2).raise_for_status()
    client = pulsar.Client(servers.pulsar.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(topic)
    for number in range(10):
        producer.send(f"row {number}".encode(), partition_key=base64.b64encode(bytes([number])).decode())
    client.close()
    options = BridgeOptions.from_mapping({**reader_login, "topic": topic})
    with pytest.raises(PulsarUnreachableError, match=r"refuses access to .*; check authPluginClassName and authParams"):
        plan_batch(options)
    rest().post(f"{admin}/permissions/writer", json=["consume"]).raise_for_status()
    batches = [batch for span in plan_batch(options) for batch in read_range(options, span)]
    values = [value for batch in batches for value in batch.column("value").to_pylist()]
    assert sorted(values) == [f"row {number}".encode() for number in range(10)]
    # OAuth2 logs in to the admin service and to the broker: without a token a client may do everything here.
    assert len(issuer.forms) > 1 if by == "oauth2" else not issuer.forms


def test_a_backfill_sends_with_the_rights_of_a_role(
    servers: Sandbox,
    session: Session,
    keyspace: str,
    agent: AgentProcess,
    authority: CertificateAuthority,
    topic_of: TopicOf,
    reader_login: dict[str, str],
) -> None:
    """A task of the job sends rows from a node that requires a password and a certificate; without the right to produce
    it reports the refusal."""
    table = f"{keyspace}.a"
    write(session, table, ["a", "b"])
    topic = topic_of(table)
    topic.wait_for(2)
    admin = f"{servers.pulsar.admin_url}/admin/v2/{topic.topic.replace('://', '/')}"
    options = BridgeOptions.from_mapping({**reader_login, "topic": topic.topic})
    access = CassandraAccess(
        contact_points=(servers.node.address,),
        port=servers.node.native_port,
        username=DEFAULT_LOGIN[0],
        password=DEFAULT_LOGIN[1],
        tls=CassandraTls(
            trusted=str(authority.trusted),
            certificate=str(authority.folder / "writer.pem"),
            key=str(authority.folder / "writer.key"),
            verify_hostname=False,
        ),
        consistency="ONE",
    )
    metadata = table_metadata(access, keyspace, "a")
    rest().post(f"{admin}/permissions/writer", json=["consume"]).raise_for_status()
    with PulsarAdmin(options) as pulsar_admin:
        partitions = pulsar_admin.topic_partitions()
    sender = RowSender(access, metadata, options, partitions, where=None, rows_per_second=None, tasks=1)
    with pytest.raises(EventSendError, match=r"gives no producer \(.*uthoriz"):
        sender.send(*ALL_TOKENS)
    rest().post(f"{admin}/permissions/writer", json=["produce"]).raise_for_status()
    assert sender.send(*ALL_TOKENS) == 2
    topic.wait_for(4)
    assert keys_of(topic) == ["a", "a", "b", "b"]
