"""A Cassandra that requires a password and a certificate, and the places where secrets must and must not appear."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Session

from cdc.rest import rest
from cdc.sandbox import Pulsar, Sandbox, SandboxOptions
from cdc.sandbox.native_protocol import DEFAULT_LOGIN
from schemas.mutation_event import MutationKind
from source_connector.assembly import cassandra_options
from source_connector.configuration.config import SourceConfig
from source_connector.configuration.tls import tls_context
from source_connector.errors import DeploymentError, FetchError
from source_connector.rows.cassandra_client import CassandraClient
from tests.fixtures.connector import (
    Connector,
    OpenDataTopic,
    connector_options,
    data_topic_name,
    wait_until_acknowledged,
)
from tests.servers.cassandra_session import answered, cluster_of, make_keyspace
from tests.servers.certificates import STORE_PASSWORD, CertificateAuthority
from tests.servers.interface import PulsarServer
from tests.servers.security_settings import node_tls
from tests.topics.connector_line import int32
from tests.topics.events_topic import wait_until
from tests.topics.events_writer import EventsWriter

_PASSWORD = "open sesame"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    """Certificates of the node and of the connector."""
    made = CertificateAuthority(tmp_path_factory.mktemp("certificates"))
    for name in ("node", "connector"):
        made.issue(name)
    return made


@pytest.fixture(scope="module")
def strict(authority: CertificateAuthority) -> Iterator[Sandbox]:
    """A node that takes TLS with certificates of its authority, and requires a password with and without TLS."""
    settings = node_tls(authority.folder, optional=True)
    options = SandboxOptions(pulsar=False, cassandra_passwords=True, cassandra_settings=settings)
    with Sandbox(options) as running:
        yield running


@pytest.fixture(scope="module")
def session(strict: Sandbox) -> Iterator[Session]:
    """The superuser's session. The connector's role may log in, and has no other rights."""
    with cluster_of(strict.node, login=PlainTextAuthProvider(*DEFAULT_LOGIN)) as cluster:
        session = cluster.connect()
        session.execute(f"CREATE ROLE connector WITH LOGIN = true AND PASSWORD = '{_PASSWORD}'")
        yield session


def _options(strict: Sandbox, authority: CertificateAuthority, **options: object) -> dict[str, object]:
    """Options with name, password and PKCS12 stores. Arguments override them, with `__` for dots in a name; None
    removes an option."""
    stores = {
        "auth.provider": "PLAIN",
        "auth.username": "connector",
        "auth.password": _PASSWORD,
        "ssl.provider": "JDK",
        "ssl.hostnameValidation": False,
        "ssl.truststore.path": str(authority.folder / "ca.p12"),
        "ssl.truststore.password": STORE_PASSWORD,
        "ssl.keystore.path": str(authority.folder / "connector.p12"),
        "ssl.keystore.password": STORE_PASSWORD,
    }
    given = {name.replace("__", "."): value for name, value in options.items()}
    merged = connector_options(strict.node, "ks", "t") | stores | given
    return {name: value for name, value in merged.items() if value is not None}


def _connect(options: dict[str, object]) -> None:
    answered(partial(_connect_once, options))


def _connect_once(options: dict[str, object]) -> None:
    config, _ = SourceConfig.from_mapping({**options, "pulsarServiceUrl": "pulsar://nobody:6650"})
    client = CassandraClient(cassandra_options(config, tls_context(config)))
    try:
        client.connect()
        assert isinstance(client.schema_version(), UUID)
    finally:
        client.close()


def test_each_way_to_enter_works_on_a_real_server(
    strict: Sandbox, session: Session, authority: CertificateAuthority
) -> None:
    """The connector logs in with the password alone where TLS is optional, with PKCS12 stores, and with PEM files."""
    plain = _options(strict, authority)
    _connect({name: value for name, value in plain.items() if not name.startswith("ssl.")})
    _connect(_options(strict, authority))
    pem = {
        "ssl__provider": "OpenSSL",
        "ssl__truststore__path": str(authority.trusted),
        "ssl__truststore__password": None,
        "ssl__keystore__path": None,
        "ssl__keystore__password": None,
        "ssl__openssl__keyCertChain": str(authority.folder / "connector.pem"),
        "ssl__openssl__privateKey": str(authority.folder / "connector.key"),
        "ssl__cipherSuites": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    }
    _connect(_options(strict, authority, **pem))


def test_who_may_not_enter_is_told_why(
    strict: Sandbox, session: Session, authority: CertificateAuthority, tmp_path: Path
) -> None:
    """A wrong password ends the source. With a certificate that does not fit, the source waits, because the server may
    get another one."""
    wrong = "auth.username, auth.password: Cassandra refused them; correct them or auth.provider"
    with pytest.raises(DeploymentError, match=wrong) as refused:
        _connect(_options(strict, authority, auth__password="hunter2"))
    assert "hunter2" not in str(refused.value)
    with pytest.raises(DeploymentError, match=wrong):
        _connect(_options(strict, authority, auth__provider="None", auth__username=None, auth__password=None))
    stranger = CertificateAuthority(tmp_path / "stranger")
    stranger.issue("connector")
    with pytest.raises(FetchError, match="certificate verify failed"):
        _connect(_options(strict, authority, ssl__truststore__path=str(stranger.trusted)))
    with pytest.raises(FetchError, match=r"Hostname mismatch|IP address mismatch"):
        _connect(_options(strict, authority, ssl__hostnameValidation=True))
    for path in (None, str(stranger.folder / "connector.p12")):
        password = None if path is None else STORE_PASSWORD
        with pytest.raises(FetchError):
            _connect(_options(strict, authority, ssl__keystore__path=path, ssl__keystore__password=password))


def test_rows_come_through_and_secrets_are_shown_nowhere(
    strict: Sandbox,
    session: Session,
    authority: CertificateAuthority,
    connector_archive: Path,
    pulsar: PulsarServer,
    open_data_topic: OpenDataTopic,
    tmp_path: Path,
) -> None:
    """One secret comes by `--secrets`, one from a file. The role gets the right to read after the first event, which
    waits for it."""
    make_keyspace(session, "secret")
    session.execute("CREATE TABLE secret.t (id int PRIMARY KEY, a int)")
    session.execute("INSERT INTO secret.t (id, a) VALUES (1, 7) USING TIMESTAMP 5")
    (tmp_path / "password").write_text(f"{_PASSWORD}\n")
    options = _options(strict, authority, keyspace="secret", auth__passwordFile=str(tmp_path / "password"))
    options = {name: value for name, value in options.items() if name not in ("auth.password", "ssl.keystore.password")}
    writer = EventsWriter(session, pulsar, "secret", "t", prefix=_EVENTS)
    topic = open_data_topic("secret.t")
    connector = Connector(pulsar.admin_url, "connector-strict")
    connector.create(
        connector_archive,
        data_topic_name("secret", "t"),
        options | {"events.topic": f"{_EVENTS}secret.t"},
        secrets={"ssl.keystore.password": STORE_PASSWORD},
    )
    try:
        writer.send(writer.event(int32(1), writetime_us=5, columns=("a",)))
        wait_until(lambda: connector.metric("retries") > 0, "the event that may not be read yet")
        session.execute("GRANT SELECT ON secret.t TO connector")
        assert topic.next()[0].value == {"a": 7}
        url = f"{pulsar.admin_url}/admin/v3/sources/public/default/connector-strict"
        shown = rest().get(url).raise_for_status().text + str(connector.status())
        assert "passwordFile" in shown and _PASSWORD not in shown
    finally:
        connector.delete()
        writer.close()


def test_reads_that_guardrails_refuse_set_no_event_aside(
    strict: Sandbox,
    session: Session,
    authority: CertificateAuthority,
    connector_archive: Path,
    pulsar: PulsarServer,
    open_data_topic: OpenDataTopic,
) -> None:
    """With `read_consistency_levels_disallowed: [ALL]`, a deleted row and a row of only its key are published by the
    next level. With `partition_keys_in_select_fail_threshold: 5`, statements get fewer keys."""
    make_keyspace(session, "guarded")
    session.execute("CREATE TABLE guarded.t (id int PRIMARY KEY, a int)")
    session.execute("GRANT SELECT ON guarded.t TO connector")
    session.execute("INSERT INTO guarded.t (id) VALUES (2) USING TIMESTAMP 5")
    options = _options(strict, authority, keyspace="guarded", deadLetter__maxAttempts=1)
    writer = EventsWriter(session, pulsar, "guarded", "t", prefix=_EVENTS)
    topic = open_data_topic("guarded.t")
    connector = Connector(pulsar.admin_url, "connector-guarded")
    strict.node.disallow_read_levels("ALL")
    try:
        connector.create(
            connector_archive, data_topic_name("guarded", "t"), options | {"events.topic": f"{_EVENTS}guarded.t"}
        )
        deleted = writer.event(int32(1), kind=MutationKind.ROW_DELETION, writetime_us=5)
        writer.send(deleted, writer.event(int32(2), writetime_us=5))
        assert {record.key["id"]: record.value for record in topic.next(2)} == {1: None, 2: {"a": None}}
        wait_until_acknowledged(f"{_EVENTS}guarded.t", pulsar.admin_url)

        strict.node.limit_partition_keys_in_select(_FEW)
        for number in range(_MANY):
            session.execute("INSERT INTO guarded.t (id, a) VALUES (%s, %s) USING TIMESTAMP 6", (number, number))
        writer.send(*(writer.event(int32(number), columns=("a",), writetime_us=6) for number in range(_MANY)))
        assert {record.key["id"]: record.value for record in topic.next(_MANY)} == {
            number: {"a": number} for number in range(_MANY)
        }
        wait_until_acknowledged(f"{_EVENTS}guarded.t", pulsar.admin_url)
        assert isinstance(pulsar, Pulsar)
        logs = [each.read_text(errors="replace") for each in pulsar.functions_log_dir.rglob("*connector-guarded*.log")]
        assert any("guarded.t: Cassandra refuses a statement for" in log for log in logs)
    finally:
        strict.node.disallow_read_levels()
        strict.node.limit_partition_keys_in_select(-1)
        connector.delete()
        writer.close()


_FEW = 5
_MANY = 200
_EVENTS = "persistent://public/default/strict-events-"
