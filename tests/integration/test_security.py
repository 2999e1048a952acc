"""All parts from Cassandra to Spark with credentials: logins succeed or are refused, and no secret is shown."""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster, Session
from pyspark.sql import SparkSession

import spark_bridge
from cdc.agent_process import AgentProcess
from cdc.rest import rest
from cdc.sandbox.native_protocol import DEFAULT_LOGIN
from schemas.errors import ConfigError
from spark_bridge.errors import CassandraReadError, PublishError, PulsarUnreachableError
from spark_bridge.jobs.cassandra_rows import read_rows, table_metadata, token_ranges
from spark_bridge.topics.keyed_producer import KeyedProducer, KeyedRecord, KeyValueSchema
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.publish_admin import PublishAdmin
from tests.servers.certificates import STORE_PASSWORD, CertificateAuthority
from tests.servers.processes import connectors_below, limit_of, process_lines
from tests.servers.secured_line import EXPIRED, NODE_PASSWORD, SECRETS, TOKEN, SecuredLine, running_line
from tests.servers.secured_servers import (
    ADMIN_ROLE,
    ROLE,
    TABLE,
    SecuredSandbox,
    agent_options,
    cassandra_access,
    child,
    relay,
    source_options,
    spark_options,
)
from tests.servers.security_settings import HTTPS_PORT, TLS_PORT, token
from tests.topics.events_topic import wait_until


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredSandbox]:
    """The secured servers, started once for all of these tests."""
    with SecuredSandbox(CertificateAuthority(tmp_path_factory.mktemp("certificates"))) as running:
        yield running


@pytest.fixture(scope="module")
def session(servers: SecuredSandbox) -> Iterator[Session]:
    """A superuser's session, the table, and the role that all parts log in by."""
    node = servers.node
    with Cluster(
        [node.address],
        port=node.native_port,
        connect_timeout=60,
        control_connection_timeout=60,
        max_schema_agreement_wait=60,
        ssl_context=servers.tls_context,
        auth_provider=PlainTextAuthProvider(*DEFAULT_LOGIN),
    ) as cluster:
        connected = cluster.connect()
        connected.default_timeout = 60
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        connected.execute(f"CREATE KEYSPACE secured WITH replication = {replication}")
        connected.execute(f"CREATE TABLE {TABLE} (pk int PRIMARY KEY, v text) WITH cdc = true")
        connected.execute(f"CREATE ROLE {ROLE} WITH LOGIN = true AND PASSWORD = '{NODE_PASSWORD}'")
        connected.execute(f"GRANT SELECT ON KEYSPACE secured TO {ROLE}")
        yield connected


@pytest.fixture(scope="module")
def secret_files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The file of each secret, by name."""
    folder = tmp_path_factory.mktemp("secrets")
    secrets = {"password": NODE_PASSWORD, "token": TOKEN, "expired": EXPIRED, "store": STORE_PASSWORD}
    for name, text in secrets.items():
        (folder / name).write_text(f"{text}\n")
    return {name: folder / name for name in secrets}


@pytest.fixture(scope="module")
def line(
    servers: SecuredSandbox,
    session: Session,
    secret_files: Mapping[str, Path],
    connector_archive: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SecuredLine]:
    """A running line through which one row has already come."""
    with running_line(servers, session, secret_files, connector_archive, tmp_path_factory.mktemp("agent")) as running:
        yield running


def test_a_row_goes_all_the_way_by_mutual_tls_password_and_token(
    line: SecuredLine, servers: SecuredSandbox, session: Session, secret_files: Mapping[str, Path], spark: SparkSession
) -> None:
    """Host names are verified; agent, connector and Spark reader log in with a role that may read, and with a token."""
    session.execute(f"INSERT INTO {TABLE} (pk, v) VALUES (2, 'second')")
    assert b"second" in line.records.receive(120_000).data()
    rows = spark_bridge.current_table(spark, spark_options(servers, secret_files)).collect()
    assert sorted((row.pk, row.v) for row in rows) == [(1, "first"), (2, "second")]
    access = cassandra_access(servers, NODE_PASSWORD)
    read = read_rows(spark, access, table_metadata(access, "secured", "t"), token_ranges(2)).collect()
    assert len(read) == 2


def test_no_secret_shows_where_operators_look(
    line: SecuredLine, servers: SecuredSandbox, secret_files: Mapping[str, Path], spark: SparkSession
) -> None:
    """No secret is in logs, metrics, status, stored state, command lines, `sources get`, or Spark's plans."""
    status = line.agent.status()
    pages = [f"http://{status['http']}/{page}" for page in ("metrics", "healthz", "readyz", "status")]
    admin = servers.pulsar.admin_url
    pages += [f"{admin}/metrics/", f"{admin}/admin/v3/sources/public/default/secured"]
    pages += [f"{admin}/admin/v3/sources/public/default/secured/status"]
    login = {"Authorization": f"Bearer {token(ADMIN_ROLE)}"}
    seen = {page: rest().get(page, follow_redirects=True, headers=login).text for page in pages}
    assert '"auth.passwordFile":"/' in seen[f"{admin}/admin/v3/sources/public/default/secured"].replace(" ", "")
    folders = [line.agent.directory, servers.pulsar.functions_log_dir, servers.dir / "logs"]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    for path in files:
        with suppress(FileNotFoundError):  # The agent replaces its files.
            seen[str(path)] = path.read_bytes().decode("utf-8", "replace")
    seen |= dict(process_lines())
    assert any("source_connector" in text or "cassandra-cdc" in text for text in seen.values())
    plan = spark_bridge.changes(spark, spark_options(servers, secret_files))._jdf.queryExecution().toString()
    shown = [where for where, text in {**seen, "plan": plan}.items() for secret in SECRETS if secret in text]
    assert shown == []


def test_files_of_the_agent_are_its_users_alone(line: SecuredLine, servers: SecuredSandbox, session: Session) -> None:
    """The files have row data, so their mode is 0600, and 0700 for folders. Agent and connector write no core dumps."""
    archive = line.agent.directory / "archive"

    def is_archived() -> bool:
        session.execute(f"INSERT INTO {TABLE} (pk, v) VALUES (3, %s)", ["x" * 200_000])
        return any(archive.rglob("*.zst"))

    wait_until(is_archived, "a segment in the archive")
    own = [*line.agent.working_dir.rglob("*"), *archive.rglob("*"), line.agent.working_dir]
    modes: dict[Path, int] = {}
    for path in own:
        with suppress(FileNotFoundError):  # The agent replaces its files.
            modes[path] = stat.S_IMODE(path.stat().st_mode)
    assert {path.name: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}
    limits = [Path(f"/proc/{pid}/limits").read_text() for pid in (line.agent.pid, *connectors_below(servers.dir))]
    assert len(limits) >= 2
    assert all(limit_of(text, "Max core file size") == ["0", "0"] for text in limits)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority that issued none of the servers' certificates."""
    return CertificateAuthority(tmp_path_factory.mktemp("stranger")).trusted


@pytest.fixture(scope="module")
def elsewhere(servers: SecuredSandbox) -> Iterator[Mapping[str, int]]:
    """A port of 127.0.0.1 for each server, so that the address differs from the one in the server's certificate."""
    node, address = servers.node, servers.pulsar.address
    with (
        relay(node.address, node.native_port) as cassandra,
        relay(address, TLS_PORT) as broker,
        relay(address, HTTPS_PORT) as web,
    ):
        yield {"cassandra": cassandra, "broker": broker, "web": web}


_MISMATCH: Final = "IP address mismatch"
_UNTRUSTED: Final = "certificate verify failed"
_ENDED: Final = "the token ended at 2023-11-14T22:13:20Z: give a new one"


def test_the_agent_says_what_is_refused_and_goes_on_when_it_is_right(
    line: SecuredLine,
    servers: SecuredSandbox,
    session: Session,
    secret_files: Mapping[str, Path],
    stranger: Path,
    elsewhere: Mapping[str, int],
    tmp_path: Path,
) -> None:
    """For wrong certificates, wrong host names and expired tokens, the log names server and reason, and no secret."""
    untrusted, password = {"cassandraTrustCertsFilePath": str(stranger)}, {"passwordFile": str(secret_files["store"])}
    broker, web = (f"127.0.0.1:{elsewhere[name]}" for name in ("broker", "web"))
    wrongs: list[tuple[dict[str, object], str, str]] = [
        (untrusted, "Cassandra at", _UNTRUSTED),
        ({"contactPoints": "127.0.0.1", "port": elsewhere["cassandra"]}, "Cassandra at", _MISMATCH),
        (password, "Cassandra at", "are incorrect"),
        ({"tlsTrustCertsFilePath": str(stranger)}, TABLE, _UNTRUSTED),
        ({"pulsarServiceUrl": f"pulsar+ssl://{broker}", "pulsarAdminUrl": f"https://{web}"}, TABLE, _MISMATCH),
        ({"pulsarAuthParams": f"file://{secret_files['expired']}"}, TABLE, _ENDED),
    ]
    assert line.agent.stop() == 0
    try:
        for number, (wrong, where, reason) in enumerate(wrongs):
            folder = tmp_path / f"refused-{number}"
            options = agent_options(servers, secret_files) | wrong | {"includeTables": TABLE}
            refused = AgentProcess.for_node(servers.node, servers.pulsar, folder, **options)
            refused.start()
            session.execute(f"INSERT INTO {TABLE} (pk, v) VALUES (4, 'refused {number}')")

            def told_lines() -> list[str]:
                return [each for each in refused.log.read_text().splitlines() if where in each and reason in each]  # noqa: B023

            wait_until(lambda: bool(told_lines()), f"the log of {wrong} says {reason!r} of {where}")
            refused.kill()
            log, told = refused.log.read_text(), told_lines()[0]
            assert any(word in told for word in ("; check ", ": give a new one"))
            assert [secret for secret in SECRETS if secret in log] == []
    finally:
        refused.kill()
        line.agent.start()
    while b"refused 5" not in line.records.receive(120_000).data():
        continue


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("cassandra certificate", _UNTRUSTED),
        ("cassandra host", _MISMATCH),
        ("cassandra password", "refused them"),
        ("pulsar certificate", _UNTRUSTED),
        ("pulsar host", _MISMATCH),
        ("pulsar token", _ENDED),
    ],
)
def test_the_connector_says_what_is_refused(
    wrong: str,
    reason: str,
    line: SecuredLine,
    servers: SecuredSandbox,
    secret_files: Mapping[str, Path],
    stranger: Path,
    elsewhere: Mapping[str, int],
) -> None:
    """The connector's Python process, with pipes in place of its host, logs the reason and no secret."""
    changes: dict[str, dict[str, object]] = {
        "cassandra certificate": {"ssl.truststore.path": str(stranger)},
        "cassandra host": {"contactPoints": "127.0.0.1", "port": elsewhere["cassandra"]},
        "cassandra password": {"auth.passwordFile": str(secret_files["store"])},
        "pulsar certificate": {"tlsTrustCertsFilePath": str(stranger)},
        "pulsar host": {"pulsarServiceUrl": f"pulsar+ssl://127.0.0.1:{elsewhere['broker']}"},
        "pulsar token": {"pulsarAuthParams": f"file://{secret_files['expired']}"},
    }
    options = source_options(servers, secret_files) | changes[wrong] | {"events.subscription.name": "refused"}
    with child(options) as said:
        wait_until(lambda: reason in said(), f"the connector says {reason!r}")
        (told, *_) = (each for each in said().splitlines() if reason in each)
        assert any(word in told for word in ("; check ", "; correct ", ": give a new one"))
        assert "Traceback" not in said()
        assert [secret for secret in SECRETS if secret in said()] == []


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("certificate", _UNTRUSTED),
        ("host", _MISMATCH),
        ("token", _ENDED),
        ("no token", "check authPluginClassName and authParams"),
    ],
)
def test_the_spark_reader_says_what_is_refused(
    wrong: str,
    reason: str,
    line: SecuredLine,
    servers: SecuredSandbox,
    secret_files: Mapping[str, Path],
    stranger: Path,
    elsewhere: Mapping[str, int],
    spark: SparkSession,
) -> None:
    """The error comes before any task runs. It names the address, and not the token."""
    right = spark_options(servers, secret_files)
    changes: dict[str, dict[str, str]] = {
        "certificate": {"tlsTrustCertsFilePath": str(stranger)},
        "host": {
            "serviceUrl": f"pulsar+ssl://127.0.0.1:{elsewhere['broker']}",
            "adminUrl": f"https://127.0.0.1:{elsewhere['web']}",
        },
        "token": {"authParams": f"token:{EXPIRED}"},
        "no token": {"authParams": "token:none"},
    }
    options = right | changes[wrong]
    with pytest.raises(PulsarUnreachableError) as error:
        spark_bridge.changes(spark, options).collect()
    text = str(error.value)
    assert reason in text
    assert options["adminUrl"] in text
    assert [secret for secret in SECRETS if secret in text] == []


def test_records_of_publish_go_by_tls_and_token_and_a_refusal_is_told(
    servers: SecuredSandbox, secret_files: Mapping[str, Path], stranger: Path
) -> None:
    """Each record is written once; a connection without a token is refused, and a broker with an untrusted certificate
    is not used."""
    right = spark_options(servers, secret_files) | {"topic": "rows-secured.t"}
    options = BridgeOptions.from_mapping(right)
    topic = options.only_topic
    with PublishAdmin(options) as admin:
        (partition,) = admin.make(topic, 1)
        assert admin.deduplicate(topic, [partition]) is None
    field = {"type": "record", "name": "r", "fields": [{"name": "v", "type": "int"}]}
    schema = KeyValueSchema.of(field, field)
    for _ in range(2):
        with KeyedProducer(options, partition, "publish-0", schema) as producer:
            producer.send(KeyedRecord(7, b"\x02", b"\x04", None, {}))
    with KeyedProducer(options, partition, "publish-0", schema) as producer:
        assert producer.last_number == 7
    with PublishAdmin(options) as admin:
        assert admin.last_position(partition).entry == 0
    for wrong, reason in (
        ({"authParams": "token:none"}, "check authPluginClassName and authParams"),
        ({"authParams": f"token:{EXPIRED}"}, "the token ended at 2023-11-14T22:13:20Z"),
        ({"tlsTrustCertsFilePath": str(stranger)}, f"({_UNTRUSTED}"),
    ):
        with pytest.raises(PublishError) as error:
            KeyedProducer(BridgeOptions.from_mapping(right | wrong), partition, "publish-1", schema)
        assert reason in str(error.value)
        assert [secret for secret in (*SECRETS, EXPIRED) if secret in str(error.value)] == []


def test_jobs_that_read_cassandra_say_what_is_refused(
    servers: SecuredSandbox, session: Session, stranger: Path, elsewhere: Mapping[str, int]
) -> None:
    """The error of verification, backfill and repair names the address and the reason, and not the password."""
    right = cassandra_access(servers, NODE_PASSWORD)
    assert right.tls is not None
    untrusted = replace(right.tls, trusted=str(stranger))
    for wrong, reason in (
        (replace(right, tls=untrusted), _UNTRUSTED),
        (replace(right, contact_points=("127.0.0.1",), port=elsewhere["cassandra"]), _MISMATCH),
        (replace(right, password=STORE_PASSWORD), "refuses the login"),
    ):
        with pytest.raises(CassandraReadError) as error:
            table_metadata(wrong, "secured", "t")
        assert reason in str(error.value) and wrong.address in str(error.value) and "; check " in str(error.value)
        assert [secret for secret in SECRETS if secret in f"{error.value} {wrong!r}"] == []
    with pytest.raises(ConfigError, match=r"tls.trusted: .*nowhere.pem holds no certificates"):
        table_metadata(replace(right, tls=replace(right.tls, trusted="/nowhere.pem")), "secured", "t")


def test_a_token_that_ends_while_everything_runs_is_replaced_in_its_file(
    line: SecuredLine, servers: SecuredSandbox, session: Session, secret_files: Mapping[str, Path], tmp_path: Path
) -> None:
    """The agent reads the file again; an expired token parks no event and loses none."""
    assert line.agent.stop() == 0
    current = tmp_path / "token"
    current.write_text(token(ROLE, ends_at_s=int(time.time()) - 5))
    options = agent_options(servers, secret_files) | {"pulsarAuthParams": f"file://{current}", "includeTables": TABLE}
    renewed = AgentProcess.for_node(servers.node, servers.pulsar, tmp_path / "renewed", **options)
    try:
        renewed.start()
        session.execute(f"INSERT INTO {TABLE} (pk, v) VALUES (5, 'renewed')")
        wait_until(lambda: "the token ended at" in renewed.log.read_text(), "the token is refused")
        current.write_text(TOKEN)
        while b"renewed" not in line.records.receive(120_000).data():
            continue
    finally:
        renewed.stop()
        line.agent.start()
