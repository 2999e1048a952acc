"""Events of DataStax's agents, from their topics with their schemas, and a cluster that moves to our agents."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from cassandra.cluster import Session

from cdc.rest import rest
from tests.fixtures.connector import DeployConnector, OpenDataTopic, OpenEventsWriter
from tests.fixtures.spark import RecordWriter
from tests.servers.interface import PulsarServer
from tests.topics.data_topic import DataRecord
from tests.topics.events_topic import wait_until

_VECTORS: Final = Path(__file__).parent.parent / "golden" / "datastax"


@pytest.fixture
def statements(cql: Session) -> Iterator[list[str]]:
    """The captured statements by line; their keyspace and tables exist."""
    lines = (_VECTORS / "statements.cql").read_text().splitlines()
    for line in lines[: lines.index("use ks2;")]:
        if " ks2.sem " in line or " ks2.pkt " in line or "create keyspace" in line:
            # An agent of ours may run beside the node, and must not publish these changes a second time.
            cql.execute(re.sub(r"\bcdc *= *true\b", "cdc = false", line))
    yield [re.sub(r"\b(into|update|from|truncate) (sem|pkt)\b", r"\1 ks2.\2", line) for line in lines]
    cql.execute("DROP KEYSPACE ks2")


def _publish(writer: RecordWriter, table: str, file: str) -> int:
    """Send the captured messages to the agent's topic of a table, with the schema that it registered."""
    *messages, last = [json.loads(line) for line in (_VECTORS / file).read_text().splitlines()]
    schema = json.loads(last["data"])
    payload = [
        {
            "key": each["key"],
            "value": _base64(each["data"]),
            "properties": each["props"],
            "event_time": None,
        }
        for each in messages
    ]
    topic = f"persistent://public/default/events-{table}"
    writer.write_bytes(topic, json.dumps(schema["key"]), json.dumps(schema["value"]), payload)
    return len(payload)


def _base64(data_hex: str) -> str:
    return base64.b64encode(bytes.fromhex(data_hex)).decode()


def _wait_until_acknowledged(pulsar: PulsarServer, topic: str) -> None:
    url = f"{pulsar.admin_url}/admin/v2/persistent/public/default/{topic}/stats"

    def is_settled() -> bool:
        subscription = rest().get(url, timeout=30).raise_for_status().json()["subscriptions"].get("sub", {})
        return subscription.get("msgBacklog") == 0 and subscription["type"] == "Key_Shared"

    wait_until(is_settled, f"every message of {topic} acknowledged")


def _folded(records: list[DataRecord]) -> dict[tuple[object, ...], Any]:
    """The table that the records describe: rows by key; a null without clustering values deletes its partition."""
    rows: dict[tuple[object, ...], Any] = {}
    for record in records:
        key = tuple(record.key.values())
        if record.kind == "partition_deletion":
            rows = {each: row for each, row in rows.items() if each[0] != key[0]}
        elif record.value is None:
            rows.pop(key, None)
        elif record.kind == "row":
            rows[key] = record.value
    return rows


def test_one_connector_serves_datastax_agents_and_ours_while_a_cluster_moves_over(
    cql: Session,
    statements: list[str],
    record_writer_process: RecordWriter,
    deploy_connector: DeployConnector,
    open_data_topic: OpenDataTopic,
    open_events_writer: OpenEventsWriter,
    pulsar: PulsarServer,
) -> None:
    """The connector serves the captured messages while our topic does not exist yet, and both topics once the first
    node has moved."""
    topic = open_data_topic("ks2.sem")
    for statement in statements[statements.index("use ks2;") + 1 :]:
        if "truncate" not in statement and "pkt" not in statement:
            cql.execute(statement)
    count = _publish(record_writer_process, "ks2.sem", "statements-events.txt")
    deploy_connector("ks2", "sem", events={"topic": "events-ks2.sem,cdc-events-ks2.sem"})
    _wait_until_acknowledged(pulsar, "events-ks2.sem")
    topic.wait_for(count)
    topic.take_all()
    selected = {
        (row.a, row.b): {"c": row.c, "e": list(row.e) if row.e else None, "d": row.d}
        for row in cql.execute("SELECT a, b, c, e, d FROM ks2.sem")
    }
    expected = {key: row for key, row in selected.items() if key[1] is not None}
    folded = _folded(topic.records)
    # This row lives for 3 s: it may expire before or after it is read, and before or after SELECT.
    of_3_s = {"c": "x", "e": None, "d": None}
    assert folded.pop(("ttl", 1), of_3_s) == of_3_s == expected.pop(("ttl", 1), of_3_s)
    assert folded == expected
    assert {("p", 9), ("r", 1), ("t", 1), ("l", 1), ("old", 1), ("same", 1)} <= expected.keys()

    ours = open_events_writer("ks2", "sem")
    cql.execute("INSERT INTO ks2.sem (a, b, c) VALUES ('moved', 1, 'by our agent') USING TIMESTAMP 5")
    ours.send(ours.event(b"moved", b"\0\0\0\1", writetime_us=5, columns=("c",)))
    cql.execute("INSERT INTO ks2.sem (a, b, c) VALUES ('p', 2, 'by theirs')")
    (record,) = topic.next()
    assert (record.key, record.value) == ({"a": "moved", "b": 1}, {"c": "by our agent", "e": None, "d": None})
    seen = len(topic.records)
    _publish(record_writer_process, "ks2.sem", "statements-events.txt")
    _wait_until_acknowledged(pulsar, "events-ks2.sem")
    topic.take_all()
    row = cql.execute("SELECT c, d FROM ks2.sem WHERE a = 'p' AND b = 2").one()
    assert _folded(topic.records[seen:])["p", 2] == {"c": "by theirs", "e": None, "d": row.d}


def test_a_static_write_of_a_datastax_agent_is_told_from_a_partition_delete(
    cql: Session,
    statements: list[str],
    record_writer_process: RecordWriter,
    deploy_connector: DeployConnector,
    open_data_topic: OpenDataTopic,
    pulsar: PulsarServer,
) -> None:
    """Both kinds of events have no clustering values: the static cell's write time identifies a static write. Without
    it, the connector publishes a partition deletion."""
    topic = open_data_topic("ks2.sem")
    static = json.loads((_VECTORS / "statements-events.txt").read_text().splitlines()[4])
    assert static["key"] == "AnAA"  # key p, null
    cql.execute("INSERT INTO ks2.sem (a, b, c) VALUES ('p', 1, 'c1')")
    cql.execute(f"UPDATE ks2.sem USING TIMESTAMP {static['props']['writetime']} SET d = 'd2' WHERE a = 'p'")
    deploy_connector("ks2", "sem", events={"topic": ["events-ks2.sem"]})
    *_, schema = (_VECTORS / "statements-events.txt").read_text().splitlines()
    _send_one(record_writer_process, static, schema)
    (record,) = topic.next()
    assert (record.kind, record.key, record.value) == (
        "static_row",
        {"a": "p", "b": None},
        {"c": None, "e": None, "d": "d2"},
    )
    static["props"]["writetime"] = str(int(static["props"]["writetime"]) - 1)
    static["data"] = static["data"].replace("3", "4", 1)
    _send_one(record_writer_process, static, schema)
    marker, row = topic.next(2)
    assert (marker.kind, marker.key, marker.value) == ("partition_deletion", {"a": "p", "b": None}, None)
    assert (row.kind, row.key, row.value) == ("row", {"a": "p", "b": 1}, {"c": "c1", "e": None, "d": "d2"})
    _wait_until_acknowledged(pulsar, "events-ks2.sem")


def _send_one(writer: RecordWriter, message: dict[str, Any], schema_line: str) -> None:
    schema = json.loads(json.loads(schema_line)["data"])
    payload = {
        "key": message["key"],
        "value": _base64(message["data"]),
        "properties": message["props"],
        "event_time": None,
    }
    topic = "persistent://public/default/events-ks2.sem"
    writer.write_bytes(topic, json.dumps(schema["key"]), json.dumps(schema["value"]), [payload])


def test_rows_are_found_by_keys_that_a_datastax_agent_wrote_without_sign_or_cut(
    cql: Session,
    statements: list[str],
    record_writer_process: RecordWriter,
    deploy_connector: DeployConnector,
    open_data_topic: OpenDataTopic,
    open_events_writer: OpenEventsWriter,
) -> None:
    """Keys are found although the agent wrote tinyint -5 as 251, and 123456789 ns as 123456 us.

    With such keys DataStax's connector finds no row and publishes a deletion. One source serves both tables of a
    cluster that moves: their agent publishes one of them, and ours the other one.
    """
    for statement in statements:
        if "into ks2.pkt" in statement:
            cql.execute(statement)
    topic, moved = open_data_topic("ks2.pkt"), open_data_topic("ks2.sem")
    _publish(record_writer_process, "ks2.pkt", "all-key-types-events.txt")
    templates = ["events-{keyspace}.{table}", "moved-events-{keyspace}.{table}"]
    deploy_connector("", "", tables="ks2.pkt,ks2.sem", events={"topic": templates})
    ours = open_events_writer("ks2", "sem", prefix="persistent://public/default/moved-events-")
    cql.execute("INSERT INTO ks2.sem (a, b, c) VALUES ('moved', 1, 'by our agent') USING TIMESTAMP 5")
    ours.send(ours.event(b"moved", b"\0\0\0\1", writetime_us=5, columns=("c",)))
    assert [record.key for record in moved.next()] == [{"a": "moved", "b": 1}]
    records = sorted(topic.next(3), key=lambda record: (record.key["ktext"], record.value is not None))
    one, absent, two = records
    assert (one.key["ktext"], one.key["ktiny"], one.key["ksmall"], one.value) == ("t1", 5, 300, {"v": "v"})
    assert (two.key["ktext"], two.key["ktiny"], two.key["ksmall"], two.value) == ("t2", -5, -300, {"v": "v"})
    assert (two.key["ktime"], absent.value, absent.key) == (3723123456, None, two.key)
