"""The connector as an operator uses it: `pulsar-admin`, wrong options, tables and topics that come later, kills."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cassandra.cluster import Session

from cdc.rest import rest
from cdc.sandbox import Sandbox, artifacts
from cdc.sandbox.prerequisites import java_home
from schemas.mutation_event import MutationEvent
from tests.fixtures.connector import (
    CreateLine,
    DeployConnector,
    OpenDataTopic,
    OpenEventsWriter,
    connector_options,
    data_topic_name,
    pulsar_admin,
    wait_until_acknowledged,
)
from tests.servers.interface import CassandraServer, PulsarServer
from tests.servers.local_run import LocalRun
from tests.topics.connector_line import ConnectorLine, int32

_JAVA = Path(__file__).parent.parent / "java" / "AutoConsume.java"
# `localrun` starts two JVMs and unpacks the archive, which is slow on a busy machine.
_START_S = 240


@pytest.fixture
def by_admin(sandbox: Sandbox) -> Iterator[str]:
    """The name of a source that the test creates with `pulsar-admin`; it is deleted afterwards."""
    yield "by-admin"
    pulsar_admin(sandbox.pulsar, "sources", "delete", "--name", "by-admin")


def test_deployed_by_pulsar_admin_a_java_consumer_reads_key_value_records(
    connector_archive: Path,
    connector_line: CreateLine,
    cassandra_node: CassandraServer,
    sandbox: Sandbox,
    by_admin: str,
) -> None:
    """`sources create` and `update` take all options of a DataStax connector, and a Java consumer with AUTO_CONSUME
    reads the records."""
    line = connector_line("pk int, ck text, v text, n bigint, PRIMARY KEY (pk, ck)")
    topic = data_topic_name(line.keyspace, "t")
    options = connector_options(cassandra_node, line.keyspace, "t") | _datastax_options(line.keyspace)
    create = ["sources", "create", "--archive", str(connector_archive), "--destination-topic-name", topic]
    pulsar_admin(sandbox.pulsar, *create, "--name", by_admin, "--source-config", json.dumps(options))
    insert = "INSERT INTO {t} (pk, ck, v, n) VALUES (1, 'a', 'x', 7) USING {ts}"
    line.writer.send(line.change(insert, int32(1), b"a", columns=("n", "v")))
    line.writer.send(line.change("DELETE FROM {t} USING {ts} WHERE pk = 2 AND ck = 'b'", int32(2), b"b"))
    line.topic.next(2)
    class_path = str(artifacts.pulsar_distribution() / "lib" / "*")
    command = [str(java_home() / "bin" / "java"), "-cp", class_path, str(_JAVA), sandbox.pulsar.service_url, topic, "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    printed = [text for text in done.stdout.splitlines() if text.startswith("key ")]
    assert sorted(printed) == ["key {pk=1, ck=a} value {n=7, v=x}", "key {pk=2, ck=b} value null"], done.stderr
    changed = json.dumps(options | {"columns": "n"})
    pulsar_admin(sandbox.pulsar, "sources", "update", "--name", by_admin, "--source-config", changed)
    line.writer.send(line.change(insert.replace("7", "8"), int32(1), b"a", columns=("n", "v")))
    # The old instance may still have taken this event; the new one serves the events after it.
    while line.topic.next()[0].value != {"n": 8}:
        line.writer.send(line.change(insert.replace("7", "8"), int32(1), b"a", columns=("n", "v")))


def _datastax_options(keyspace: str) -> dict[str, object]:
    """Every option of a DataStax connector, as its documentation shows them."""
    return {
        "events.topic": f"persistent://public/default/cdc-events-{keyspace}.t",
        "events.subscription.name": "sub",
        "events.subscription.type": "Key_Shared",
        "columns": ".*",
        "outputFormat": "key-value-avro",
        "batch.size": 200,
        "query.executors": "10",
        "query.maxMobileAvgLatency": 100,
        "query.minMobileAvgLatency": 10,
        "query.backoffInMs": 100,
        "query.maxBackoffInSec": 3600,
        "cache.max.digest": "3",
        "cache.max.capacity": "32767",
        "cache.expire.after.ms": "60000",
        "cache.only_if_coordinator_match": True,
        "key.converter": "com.datastax.oss.pulsar.source.converters.NativeAvroConverter",
        "value.converter": "com.datastax.oss.pulsar.source.converters.NativeAvroConverter",
        "maxConcurrentRequests": 500,
        "queryExecutionTimeout": 30,
        "connectionPoolLocalSize": 4,
        "compression": "None",
        "metricsHighestLatency": 35,
        "jmx": True,
        "jmxConnectorDomain": "com.datastax.oss.cdc",
        "ignoreErrors": "None",
        "cloud.secureConnectBundle": "",
        "ssl": {
            "provider": "None",
            "cipherSuites": "",
            "hostnameValidation": True,
            "keystore": {"path": "", "password": ""},
            "truststore": {"path": "", "password": ""},
            "openssl": {"keyCertChain": "", "privateKey": ""},
        },
        "auth": {
            "provider": "None",
            "username": "",
            "password": "",
            "gssapi": {"keyTab": "", "principal": "", "service": "dse"},
        },
        "datastax-java-driver": {"advanced": {"connection": {"pool": {"local": {"size": 4}}}}},
    }


def test_every_wrong_option_is_named_at_once(deploy_connector: DeployConnector) -> None:
    """The source's status shows a line that names each wrong option and says what to do."""
    connector = deploy_connector(
        "ks",
        "t",
        port="many",
        outputFormat="xml",
        evnts={"topic": "x"},
        loadBalancing={"localDc": ""},
        settings={"secrets": {"auth.pasword": "hunter2"}},
    )
    error = connector.wait_for_error()
    assert "auth.pasword: is not an option of this connector; did you mean auth.password?" in error
    assert "hunter2" not in error
    assert "port: input should be a valid integer, unable to parse string as an integer (got 'many')" in error
    assert "outputFormat: input should be 'key-value-avro', 'key-value-json' or 'json' (got 'xml')" in error
    assert "evnts.topic: is not an option of this connector; did you mean events.topic?" in error
    assert "loadBalancing.localDc: is required" in error


@pytest.mark.parametrize(
    ("options", "settings", "message"),
    [
        ({"python": "/no/such/python3"}, {}, "option python: cannot run '/no/such/python3'"),
        ({"python": "/bin/true"}, {}, "but the archive was built for cpython-3"),
        ({"loadBalancing": {"localDc": "dc9"}}, {}, "loadBalancing.localDc: no node is in 'dc9'; the cluster has 'dat"),
        ({}, {"processingGuarantees": "ATMOST_ONCE"}, "processingGuarantees: ATMOST_ONCE is not supported"),
        ({"columns": "nothing"}, {}, "columns: 'nothing' matches no value column of"),
        ({"port": 1}, {}, "see that Cassandra is up and that the options lead to it"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(
    deploy_connector: DeployConnector,
    cql: Session,
    keyspace: str,
    options: dict[str, object],
    settings: dict[str, object],
    message: str,
) -> None:
    """The line names the option or the resource that is wrong, and says what to do."""
    cql.execute(f"CREATE TABLE {keyspace}.t (id int PRIMARY KEY, a int)")
    connector = deploy_connector(keyspace, "t", settings=settings, **options)
    assert message in connector.wait_for_error()


def test_table_and_events_topic_may_come_later(
    cql: Session,
    keyspace: str,
    deploy_connector: DeployConnector,
    open_events_writer: OpenEventsWriter,
    open_data_topic: OpenDataTopic,
) -> None:
    """Start order does not matter, and the connector never creates an events topic of the wrong kind.

    Without the option `python`, the worker's `python3` runs the code in the archive.
    """
    topic = open_data_topic(f"{keyspace}.t")
    connector = deploy_connector(keyspace, "t", python=None)
    time.sleep(2)
    cql.execute(f"CREATE TABLE {keyspace}.t (id int PRIMARY KEY, a int)")
    time.sleep(1)
    writer = open_events_writer(keyspace, "t")
    cql.execute(f"INSERT INTO {keyspace}.t (id, a) VALUES (1, 1) USING TIMESTAMP 5")
    writer.send(writer.event(int32(1), writetime_us=5, columns=("a",)))
    assert topic.next()[0].value == {"a": 1}
    assert connector.restarts() == 0


def test_a_restarted_connector_goes_on_where_it_was(
    connector_line: CreateLine, deploy_connector: DeployConnector, pulsar: PulsarServer
) -> None:
    """After `sources restart`, published events are not repeated, and events that came meanwhile are published."""
    line = connector_line("id int PRIMARY KEY, a int")
    connector = deploy_connector(line.keyspace, "t")
    line.writer.send(*_rows(line, 0, 200))
    line.topic.next(200)
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    connector.restart()
    line.writer.send(*_rows(line, 200, 200))
    assert {record.key["id"] for record in line.topic.next(200)} == set(range(200, 400))
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    line.topic.expect_silence(0.5)


def test_a_record_that_the_data_topic_refuses_is_tried_until_it_is_taken(
    connector_line: CreateLine, deploy_connector: DeployConnector, pulsar: PulsarServer
) -> None:
    """While the registry has an incompatible schema, the event stays unacknowledged; it is published once the topic's
    strategy allows it."""
    line = connector_line("id int PRIMARY KEY, a int")
    deploy_connector(line.keyspace, "t", query__maxBackoffInSec=1)
    line.writer.send(line.change("INSERT INTO {t} (id, a) VALUES (1, 1) USING {ts}", int32(1), columns=("a",)))
    line.topic.next()
    schemas = f"{pulsar.admin_url}/admin/v2/schemas/public/default/{line.topic.name}"
    schema = line.topic.schema(0)
    document = json.loads(schema["data"])
    document["value"]["fields"].append({"name": "b", "type": ["null", "string"], "default": None})
    _post_schema(f"{schemas}/schema", document, schema["properties"])
    line.run("ALTER TABLE {t} ADD b int")
    line.writer.send(line.change("INSERT INTO {t} (id, b) VALUES (2, 2) USING {ts}", int32(2), columns=("b",)))
    line.topic.expect_silence(3)
    policy = f"{pulsar.admin_url}/admin/v2/persistent/public/default/{line.topic.name}/schemaCompatibilityStrategy"
    rest().put(policy, json="ALWAYS_COMPATIBLE").raise_for_status()
    assert line.topic.next()[0].value == {"a": None, "b": 2}
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)


def _post_schema(url: str, document: dict[str, object], properties: dict[str, str]) -> None:
    """Register a KEY_VALUE schema by hand."""
    body = {"type": "KEY_VALUE", "schema": json.dumps(document), "properties": properties}
    rest().post(url, json=body).raise_for_status()


@pytest.mark.extended
def test_nothing_is_lost_when_the_child_and_the_host_are_killed_in_mid_stream(
    connector_line: CreateLine, local_run: LocalRun, pulsar: PulsarServer
) -> None:
    """kill -9 of the Python process and of Java while a backlog is read: every key arrives in its latest state."""
    line = connector_line("id int PRIMARY KEY, a int")
    for first in range(0, 8_000, 1000):
        line.writer.send(*_rows(line, first, 1000), partition=first // 1000 % 2)
    local_run.start()
    child = local_run.child()
    line.topic.wait_for(1000, _START_S)
    child.kill()
    local_run.kill()
    seen = len(line.topic.records)
    local_run.start()
    line.topic.wait_for(seen + 1500, _START_S)
    local_run.kill()
    local_run.start()
    while len(values := {record.key["id"]: record.value for record in line.topic.records}) < 8_000:
        line.topic.next(min(500, 8_000 - len(values)), _START_S)
    assert values == {number: {"a": number} for number in range(8_000)}
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)


def _rows(line: ConnectorLine, first: int, count: int) -> list[MutationEvent]:
    """Write rows, and return their events."""
    numbers = range(first, first + count)
    for start in range(first, first + count, 200):
        inserts = [
            f"INSERT INTO {line.keyspace}.t (id, a) VALUES ({each}, {each});" for each in range(start, start + 200)
        ]
        line.run(f"BEGIN UNLOGGED BATCH USING TIMESTAMP 5 {''.join(inserts)} APPLY BATCH")
    return [line.writer.event(int32(number), writetime_us=5, columns=("a",)) for number in numbers]
