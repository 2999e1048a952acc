"""Topics that refuse, on a strict Pulsar: schemas, rights, sizes, partitions, de-duplication. The other tables go on.

The broker takes messages up to 100 kB, de-duplicates, and gives clients with a token the rights of its role only; without
a token everything is allowed, which is how these tests change things. The node asks for a password, and over TLS for a
certificate, too.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pulsar
import pytest
import yaml
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args
from prometheus_client.parser import text_string_to_metric_families

from cdc.agent_process import AgentProcess
from cdc.rest import rest
from cdc.sandbox import Sandbox, SandboxOptions
from cdc.sandbox.native_protocol import DEFAULT_LOGIN
from cdc.sandbox.options import Json
from spark_bridge.errors import PulsarUnreachableError
from spark_bridge.reading.planning import plan_batch
from spark_bridge.reading.topic_reader import read_range
from spark_bridge.topics.options import BridgeOptions
from tests.cassandra_session import cluster_of
from tests.certificates import STORE_PASSWORD, CertificateAuthority
from tests.events_topic import EventsTopic, wait_until
from tests.token_issuer import CLIENT_SECRET, OAUTH2_PLUGIN, Issuer, key_file, token_issuer

_SECRET = b"not a secret: it is for a test's own server"
_NODE_PASSWORD = "open sesame"
_NAMESPACE = "public/strict"
_PREFIX = f"persistent://{_NAMESPACE}/cdc-events-"
# The sandbox's Pulsar has an address of its own.
_TLS_PORT = 6651
_HTTPS_PORT = 8443
_numbers = itertools.count(1)


def _token(role: str) -> str:
    """A JWT of this role, HS256."""

    def part(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    signed = part(json.dumps({"alg": "HS256"}).encode()) + b"." + part(json.dumps({"sub": role}).encode())
    return (signed + b"." + part(hmac.new(_SECRET, signed, hashlib.sha256).digest())).decode()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    """Certificates of the broker, of the node, and of a client whose role is `writer`."""
    made = CertificateAuthority(tmp_path_factory.mktemp("certificates"))
    for name in ("broker", "node", "writer"):
        made.issue(name)
    return made


@pytest.fixture(scope="module")
def servers(authority: CertificateAuthority) -> Iterator[Sandbox]:
    """A node and a Pulsar that both take TLS, too; Pulsar with authorization, de-duplication and small messages."""
    authentication = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
    pulsar_settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationProviders": f"{authentication}Tls,{authentication}Token",
        "brokerServicePortTls": str(_TLS_PORT),
        "webServicePortTls": str(_HTTPS_PORT),
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
    options = SandboxOptions(
        commitlog_sync_ms=100,
        functions_runtime="thread",
        pulsar_settings=pulsar_settings,
        cassandra_settings=node_settings,
        cassandra_passwords=True,
    )
    with Sandbox(options) as running:
        admin = f"{running.pulsar.admin_url}/admin/v2"
        rest().put(f"{admin}/namespaces/{_NAMESPACE}", json={}).raise_for_status()
        # Nothing that a test leaves idle for a minute is to go.
        rest().post(
            f"{admin}/namespaces/{_NAMESPACE}/inactiveTopicPolicies",
            json={"deleteWhileInactive": False, "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
                  "maxInactiveDurationSeconds": 600},
        ).raise_for_status()  # fmt: skip
        yield running


@pytest.fixture(scope="module")
def session(servers: Sandbox) -> Iterator[Session]:
    """A session with the node."""
    with cluster_of(servers.node, login=PlainTextAuthProvider(*DEFAULT_LOGIN)) as cluster:
        yield cluster.connect()


@pytest.fixture(scope="module")
def node_login(session: Session, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Options by which an agent logs in to the node, by a role that was granted nothing."""
    session.execute(f"CREATE ROLE agent WITH LOGIN = true AND PASSWORD = '{_NODE_PASSWORD}'")
    file = tmp_path_factory.mktemp("login") / "password"
    file.write_text(f"{_NODE_PASSWORD}\n")
    return {"username": "agent", "passwordFile": str(file)}


@pytest.fixture
def keyspace(session: Session) -> str:
    """A keyspace of the test's own with tables a and b."""
    name = f"strict_{next(_numbers)}"
    session.execute(f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
    for table in ("a", "b"):
        session.execute(f"CREATE TABLE {name}.{table} (pk text PRIMARY KEY, v text) WITH cdc = true")
    return name


@pytest.fixture(scope="module")
def agent(
    servers: Sandbox, node_login: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AgentProcess]:
    """The agent of the node, with all rights. Whoever stops it starts it again."""
    folder = tmp_path_factory.mktemp("agent")
    process = AgentProcess.for_node(servers.node, servers.pulsar, folder, topicPrefix=_PREFIX, **node_login)
    process.start()
    yield process
    assert process.stop() == 0, process.log_tail()


@pytest.fixture
def topic_of(servers: Sandbox) -> Iterator[Callable[[str], EventsTopic]]:
    """The events topic of a table, to read from."""
    opened: list[EventsTopic] = []

    def open_topic(table: str) -> EventsTopic:
        opened.append(EventsTopic(servers.pulsar.service_url, servers.pulsar.admin_url, f"{_PREFIX}{table}"))
        return opened[-1]

    yield open_topic
    for topic in opened:
        topic.close()


TopicOf = Callable[[str], EventsTopic]


def _write(session: Session, table: str, keys: list[str]) -> None:
    insert = session.prepare(f"INSERT INTO {table} (pk, v) VALUES (?, 'v')")
    execute_concurrent_with_args(session, insert, [(key,) for key in keys], concurrency=32)


def _keys(topic: EventsTopic) -> list[str]:
    return sorted(each.event.partition_key.decode() for each in topic.read())


def _topic_state(agent: AgentProcess, table: str) -> dict[str, object]:
    topics = cast("dict[str, dict[str, object]]", agent.status()["topics"])
    return topics.get(table, {})


def _metric(agent: AgentProcess, name: str, table: str) -> float:
    page = rest().get(f"http://{agent.status()['http']}/metrics").raise_for_status().text
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == name and sample.labels.get("table") == table:
                return sample.value
    return 0.0


def test_a_topic_with_another_schema_stops_only_its_table(
    servers: Sandbox, session: Session, keyspace: str, agent: AgentProcess, topic_of: TopicOf
) -> None:
    """Its events wait, the refusal is told once, in the status and by a metric; the other table's events arrive."""
    admin = f"{servers.pulsar.admin_url}/admin/v2"
    topic = f"{_NAMESPACE}/cdc-events-{keyspace}.a"
    rest().put(f"{admin}/persistent/{topic}/partitions", json=4).raise_for_status()
    foreign = {"type": "STRING", "schema": "", "properties": {}}
    rest().post(f"{admin}/schemas/{topic}/schema", json=foreign).raise_for_status()
    _write(session, f"{keyspace}.a", ["a1"])
    wait_until(lambda: "IncompatibleSchema" in str(_topic_state(agent, f"{keyspace}.a").get("problem")), "it is told")
    _write(session, f"{keyspace}.b", ["b1", "b2"])
    topic_of(f"{keyspace}.b").wait_for(2)
    wait_until(lambda: _metric(agent, "cdc_agent_topic_usable", f"{keyspace}.b") == 1, "the other one is in use")
    assert _metric(agent, "cdc_agent_topic_usable", f"{keyspace}.a") == 0
    wait_until(lambda: _metric(agent, "cdc_agent_table_retries_total", f"{keyspace}.a") >= 5, "it is tried again")
    told = [line for line in agent.log.read_text().splitlines() if f"waiting for {_PREFIX}{keyspace}.a" in line]
    assert 1 <= len(told) <= 3
    rest().delete(f"{admin}/schemas/{topic}/schema", params={"force": "true"}).raise_for_status()
    topic_of(f"{keyspace}.a").wait_for(1)
    wait_until(lambda: _topic_state(agent, f"{keyspace}.a")["problem"] is None, "nothing of it is left")


def test_an_event_larger_than_the_broker_takes_is_set_aside(
    session: Session, keyspace: str, agent: AgentProcess, topic_of: TopicOf
) -> None:
    """A row with a key of 60 kB stands in an event twice; the rows behind it arrive, and the log goes on."""
    _write(session, f"{keyspace}.a", ["first"])
    topic_of(f"{keyspace}.a").wait_for(1)
    _write(session, f"{keyspace}.a", ["x" * 60_000])
    wait_until(lambda: _metric(agent, "cdc_agent_table_events_too_large_total", f"{keyspace}.a") == 1, "it is counted")
    _write(session, f"{keyspace}.a", ["last"])
    topic = topic_of(f"{keyspace}.a")
    topic.wait_for(2)
    assert _keys(topic) == ["first", "last"]
    assert "larger than the broker's maxMessageSize" in agent.log.read_text()
    assert (agent.working_dir / "held" / "too-large" / f"{keyspace}.a.events").stat().st_size > 120_000


def test_messages_that_are_too_large_are_sent_in_parts(
    session: Session, keyspace: str, agent: AgentProcess, topic_of: TopicOf
) -> None:
    """A backlog is packed up to 256 kB by default; this broker takes less, and nobody has to know."""
    assert agent.stop() == 0
    keys = [f"{'k' * 2_000}{number:04}" for number in range(300)]
    _write(session, f"{keyspace}.a", keys)
    agent.start()
    topic = topic_of(f"{keyspace}.a")
    topic.wait_for(300)
    assert _keys(topic) == keys


def test_a_topic_whose_number_of_partitions_changes_is_not_used_any_more(
    servers: Sandbox, session: Session, keyspace: str, agent: AgentProcess, topic_of: TopicOf
) -> None:
    """At the next start the agent says what to do, other tables go on; told so, it goes on with the new number."""
    _write(session, f"{keyspace}.a", ["before"])
    topic_of(f"{keyspace}.a").wait_for(1)
    assert agent.stop() == 0
    path = f"{servers.pulsar.admin_url}/admin/v2/persistent/{_NAMESPACE}/cdc-events-{keyspace}.a/partitions"
    rest().post(path, json=8).raise_for_status()
    _write(session, f"{keyspace}.a", ["behind"])
    _write(session, f"{keyspace}.b", ["b"])
    agent.start()
    topic_of(f"{keyspace}.b").wait_for(1)
    wait_until(
        lambda: "has 8 partitions and had 4" in str(_topic_state(agent, f"{keyspace}.a").get("problem")), "it is told"
    )
    assert _keys(topic_of(f"{keyspace}.a")) == ["before"]
    counts = agent.working_dir / "topic-partitions.json"
    known = json.loads(counts.read_text())
    assert known.pop(f"{_PREFIX}{keyspace}.a") == 4
    counts.write_text(json.dumps(known))
    topic = topic_of(f"{keyspace}.a")
    topic.wait_for(2)
    assert _keys(topic) == ["before", "behind"]


def test_with_de_duplication_nothing_that_is_sent_again_is_dropped(
    session: Session, keyspace: str, agent: AgentProcess, topic_of: TopicOf
) -> None:
    """The agent is killed while rows are on their way: what it sends again is not taken for a repetition."""
    keys = []
    for number in range(4):
        more = [f"{number}-{each:03}" for each in range(200)]
        _write(session, f"{keyspace}.a", more)
        keys += more
        time.sleep(0.1)
        agent.kill()
        agent.start()
    topic = topic_of(f"{keyspace}.a")
    topic.wait_for_rows(len(keys))
    assert sorted(set(_keys(topic))) == keys


def test_sigterm_ends_within_five_seconds_with_the_position_stored_while_a_topic_refuses(
    servers: Sandbox, session: Session, keyspace: str, agent: AgentProcess, topic_of: TopicOf
) -> None:
    """What could not be sent is read again; what was is not repeated."""
    admin = f"{servers.pulsar.admin_url}/admin/v2"
    topic = f"{_NAMESPACE}/cdc-events-{keyspace}.a"
    rest().put(f"{admin}/persistent/{topic}/partitions", json=4).raise_for_status()
    foreign = {"type": "STRING", "schema": "", "properties": {}}
    rest().post(f"{admin}/schemas/{topic}/schema", json=foreign).raise_for_status()
    _write(session, f"{keyspace}.b", ["b1"])
    topic_of(f"{keyspace}.b").wait_for(1)
    _write(session, f"{keyspace}.a", ["a1"])
    wait_until(lambda: bool(_topic_state(agent, f"{keyspace}.a").get("problem")), "it is refused")
    started = time.monotonic()
    assert agent.stop(timeout_s=60) == 0
    assert time.monotonic() - started < 5
    rest().delete(f"{admin}/schemas/{topic}/schema", params={"force": "true"}).raise_for_status()
    agent.start()
    topic_of(f"{keyspace}.a").wait_for(1)
    assert _keys(topic_of(f"{keyspace}.b")) == ["b1"]


def test_sighup_takes_over_what_can_change_and_says_what_cannot(
    session: Session, keyspace: str, agent: AgentProcess, topic_of: TopicOf
) -> None:
    """A table that is left out from now on has no events, and has them again; a wrong file changes nothing."""
    _write(session, f"{keyspace}.a", ["seen"])
    topic_of(f"{keyspace}.a").wait_for(1)
    before = agent.config.read_text()

    def reload(more: str, line: str) -> None:
        agent.config.write_text(before + more)
        told = agent.log.read_text().count(line)
        agent.send_signal(signal.SIGHUP)
        wait_until(lambda: agent.log.read_text().count(line) > told, f"the log says {line!r}")

    reload(f"excludeTables: [{keyspace}.a]\nport: 1234\n", "restart the agent for: port")
    _write(session, f"{keyspace}.a", ["not seen"])
    _write(session, f"{keyspace}.b", ["b"])
    topic_of(f"{keyspace}.b").wait_for(1)
    reload("excludeTables: nonsense\n", "configuration not read again: excludeTables")
    reload("", "configuration read again: excludeTables")
    _write(session, f"{keyspace}.a", ["seen again"])
    topic = topic_of(f"{keyspace}.a")
    topic.wait_for(2)
    assert _keys(topic) == ["seen", "seen again"]


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    """A running issuer of tokens, of the role that the client is."""
    with token_issuer(_token) as running:
        yield running


@pytest.fixture(params=["token", "certificate", "oauth2"])
def credentials(
    request: pytest.FixtureRequest, authority: CertificateAuthority, issuer: Issuer, servers: Sandbox, tmp_path: Path
) -> dict[str, object]:
    """Options by which an agent has the role `writer`: by a token's file, by its certificate over TLS, or by OAuth2."""
    java = "org.apache.pulsar.client.impl.auth"
    if request.param == "token":
        (tmp_path / "params").write_text(f"token:{_token('writer')}\n")
        return {"pulsarAuthPluginClassName": "token", "pulsarAuthParamsFile": str(tmp_path / "params")}
    if request.param == "certificate":
        files = f"tlsCertFile:{authority.folder}/writer.pem,tlsKeyFile:{authority.folder}/writer.key"
        address = servers.pulsar.address
        return {
            "pulsarAuthPluginClassName": f"{java}.AuthenticationTls",
            "pulsarAuthParams": files,
            "pulsarServiceUrl": f"pulsar+ssl://{address}:{_TLS_PORT}",
            "pulsarAdminUrl": f"https://{address}:{_HTTPS_PORT}",
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
    """`createTopics: false` and a role that may only produce; a table without that right waits, and the other goes on."""
    assert agent.stop() == 0
    admin = f"{servers.pulsar.admin_url}/admin/v2/persistent/{_NAMESPACE}"
    for table in ("a", "b"):
        topic = f"{admin}/cdc-events-{keyspace}.{table}"
        rest().put(f"{topic}/partitions", json=2).raise_for_status()
        rest().put(f"{topic}/subscription/sub", json={"ledgerId": -1, "entryId": -1}).raise_for_status()
    rest().post(f"{admin}/cdc-events-{keyspace}.b/permissions/writer", json=["produce"]).raise_for_status()
    modest = AgentProcess.for_node(
        servers.node, servers.pulsar, tmp_path / "modest", topicPrefix=_PREFIX, createTopics=False,
        includeTables=f"{keyspace}.*", **node_login, **credentials,
    )  # fmt: skip
    modest.start()
    try:
        _write(session, f"{keyspace}.a", ["a"])
        _write(session, f"{keyspace}.b", ["b"])
        topic_of(f"{keyspace}.b").wait_for(1)
        wait_until(lambda: bool(_topic_state(modest, f"{keyspace}.a").get("problem")), "the other one waits")
        rest().post(f"{admin}/cdc-events-{keyspace}.a/permissions/writer", json=["produce"]).raise_for_status()
        topic_of(f"{keyspace}.a").wait_for(1)
        log = modest.log.read_text()
        assert _token("writer") not in log
        assert CLIENT_SECRET not in log
    finally:
        modest.stop()
        agent.start()


def test_a_server_whose_certificate_is_not_trusted_is_waited_for_with_a_clear_line(
    servers: Sandbox, agent: AgentProcess, node_login: dict[str, object], tmp_path: Path
) -> None:
    """Neither Cassandra nor Pulsar is spoken to; the agent says why and is not ready."""
    stranger = CertificateAuthority(tmp_path / "stranger")
    address = servers.pulsar.address
    agent.stop()
    strict = AgentProcess.for_node(
        servers.node, servers.pulsar, tmp_path / "strict", topicPrefix=_PREFIX, cassandraTls=True,
        cassandraTrustCertsFilePath=str(stranger.trusted), tlsTrustCertsFilePath=str(stranger.trusted), **node_login,
        pulsarServiceUrl=f"pulsar+ssl://{address}:{_TLS_PORT}", pulsarAdminUrl=f"https://{address}:{_HTTPS_PORT}",
    )  # fmt: skip
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
    """With either of them missing the agent says why, again and again, and never the password; with both it publishes."""
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
    common = {"topicPrefix": _PREFIX, "includeTables": f"{keyspace}.*"}
    guest = AgentProcess.for_node(servers.node, servers.pulsar, tmp_path / "guest", **common)
    options = yaml.safe_load(guest.config.read_text())
    try:
        for more, reason in (
            ({**tls, **node_login}, "waiting for the schema: Cassandra at"),  # TLS 1.3 says no more than that it ends
            ({**tls, **certificate}, "requires authentication"),
            ({**tls, **certificate, "username": "agent", "password": "open seed"}, "are incorrect"),
        ):
            guest.configure({**options, **more})
            guest.start()
            wait_until(lambda reason=reason: reason in guest.log.read_text(), f"the log says {reason!r}")
            assert guest.stop() == 0
        _write(session, f"{keyspace}.a", ["a"])
        guest.configure({**options, **tls, **certificate, **node_login})
        guest.start()
        topic_of(f"{keyspace}.a").wait_for(1)
    finally:
        guest.stop()
        agent.start()
    log = guest.log.read_text()
    assert "open seed" not in log
    assert _NODE_PASSWORD not in log


@pytest.mark.parametrize("by", ["token", "certificate", "oauth2"])
def test_a_data_topic_is_read_with_the_rights_of_a_role(
    servers: Sandbox, authority: CertificateAuthority, issuer: Issuer, tmp_path: Path, by: str
) -> None:
    """The Spark reader by a token's file, by a certificate over TLS, or by OAuth2; without the right to consume it says so."""
    topic = f"persistent://{_NAMESPACE}/data-rights-{by}"
    admin = f"{servers.pulsar.admin_url}/admin/v2/{topic.replace('://', '/')}"
    rest().put(f"{admin}/partitions", json=2).raise_for_status()
    client = pulsar.Client(servers.pulsar.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(topic)
    for number in range(10):
        producer.send(f"row {number}".encode(), partition_key=base64.b64encode(bytes([number])).decode())
    client.close()
    java = "org.apache.pulsar.client.impl.auth"
    (tmp_path / "token").write_text(_token("writer"))
    given = {
        "serviceUrl": servers.pulsar.service_url,
        "adminUrl": servers.pulsar.admin_url,
        "authPluginClassName": f"{java}.AuthenticationToken",
        "authParams": f"file://{tmp_path}/token",
    }
    if by == "certificate":
        given = {
            "serviceUrl": f"pulsar+ssl://{servers.pulsar.address}:{_TLS_PORT}",
            "adminUrl": f"https://{servers.pulsar.address}:{_HTTPS_PORT}",
            "authPluginClassName": f"{java}.AuthenticationTls",
            "authParams": f"tlsCertFile:{authority.folder}/writer.pem,tlsKeyFile:{authority.folder}/writer.key",
            "tlsTrustCertsFilePath": str(authority.trusted),
            "tlsHostnameVerificationEnable": "false",
        }
    if by == "oauth2":
        params = {"issuer_url": issuer.url, "private_key": key_file(tmp_path / "key.json", "writer")}
        given |= {"authPluginClassName": OAUTH2_PLUGIN, "authParams": json.dumps(params)}
    options = BridgeOptions.from_mapping({**given, "topic": topic})
    with pytest.raises(
        PulsarUnreachableError, match=r"refuses to tell about .*; check authPluginClassName and authParams"
    ):
        plan_batch(options)
    rest().post(f"{admin}/permissions/writer", json=["consume"]).raise_for_status()
    batches = [batch for span in plan_batch(options) for batch in read_range(options, span)]
    values = [value for batch in batches for value in batch.column("value").to_pylist()]
    assert sorted(values) == [f"row {number}".encode() for number in range(10)]
    # For the admin service and for the broker: who has no token may do everything here.
    assert len(issuer.forms) > 1 if by == "oauth2" else not issuer.forms
