"""Columns that leave Cassandra hashed, masked, cut or not at all: real servers, and a comparison in Spark."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Final

import pytest
from cassandra.cluster import Session
from pyspark.sql import SparkSession

from cdc.commands.hidden_columns import hidden_columns
from schemas.mutation_event import MutationKind, RangeBounds
from spark_bridge.jobs.backfill import backfill
from spark_bridge.jobs.verify import verify
from tests.fixtures.connector import (
    CreateLine,
    DeployConnector,
    OpenDataTopic,
    OpenEventsWriter,
    wait_until_acknowledged,
)
from tests.fixtures.served_table import access_to
from tests.servers.interface import CassandraServer, PulsarServer
from tests.topics.connector_line import int32
from tests.topics.data_topic import DataTopic

_KEY: Final = "a key of a test, which is long enough"
_FORMATS: Final = ("key-value-avro", "key-value-json", "json")
_CLEAR: Final = (b"alice", b"987654321", b"never")


def hashed(value: bytes) -> str:
    return hmac.new(_KEY.encode(), value, hashlib.sha256).hexdigest()


def options_of(table: str) -> dict[str, object]:
    return {
        "columns__hash": f"{table}.who,{table}.ssn",
        "columns__mask": f"{table}.secret",
        "columns__truncate": f"{table}.note:3",
        "columns__drop": f"{table}.gone",
    }


def is_hidden_in(topic: DataTopic) -> bool:
    return not any(
        clear in (record.key_bytes + (record.value_bytes or b"") + str(record.properties).encode())
        for record in topic.records
        for clear in _CLEAR
    )


def test_hidden_values_leave_in_no_format_and_in_no_kind_of_record(
    connector_line: CreateLine, deploy_connector: DeployConnector, open_data_topic: OpenDataTopic, pulsar: PulsarServer
) -> None:
    """Hidden values are in no record: a row, a static row, a row deletion, a range deletion with bounds and survivors,
    a partition deletion."""
    line = connector_line(
        "who text, at int, ssn int, secret text, note text, gone text, st text static, PRIMARY KEY (who, at)"
    )
    table = f"{line.keyspace}.t"
    topics = {each: open_data_topic(f"{table}-{each}") for each in _FORMATS}
    for each, topic in topics.items():
        name = "sub" if each == _FORMATS[0] else f"sub-{each}"
        deploy_connector(
            line.keyspace,
            "t",
            outputFormat=each,
            events__subscription__name=name,
            settings={"topicName": topic.name, "secrets": {"columns.hashKey": _KEY}},
            **options_of(table),
        )
    values = "('alice', 1, 987654321, 'never', 'notes of mine', 'never')"
    insert = f"INSERT INTO {{t}} (who, at, ssn, secret, note, gone) VALUES {values} USING {{ts}}"
    columns = ("gone", "note", "secret", "ssn")
    row = line.change(insert, b"alice", int32(1), columns=columns)
    static = line.change(
        "UPDATE {t} USING {ts} SET st = 's' WHERE who = 'alice'",
        b"alice",
        kind=MutationKind.STATIC_ROW,
        columns=("st",),
    )
    gone = line.change(
        "DELETE FROM {t} USING {ts} WHERE who = 'alice' AND at = 2", b"alice", int32(2), kind=MutationKind.ROW_DELETION
    )
    bounds = RangeBounds(start=(int32(2),), start_inclusive=True, end=(), end_inclusive=True)
    ranged = line.change(
        "DELETE FROM {t} USING {ts} WHERE who = 'alice' AND at >= 2",
        b"alice",
        kind=MutationKind.RANGE_DELETION,
        bounds=bounds,
    )
    partition = line.change(
        "DELETE FROM {t} USING {ts} WHERE who = 'bob'", b"bob", kind=MutationKind.PARTITION_DELETION
    )
    line.writer.send(row, static, gone, ranged, partition)
    who = hashed(b"alice")
    shown = {"note": "not", "secret": "****", "ssn": hashed(int32(987654321)), "st": "s"}
    for each, topic in topics.items():
        found = {(record.kind, record.key["who"], record.key["at"]): record for record in topic.next(5)}
        assert {place[:2] for place in found} == {
            ("row", who),
            ("static_row", who),
            ("row_deletion", who),
            ("range_deletion", who),
            ("partition_deletion", hashed(b"bob")),
        }
        value = found["row", who, 1].value or {}
        assert {name: value[name] for name in shown} == shown and "gone" not in value
        marker = found["range_deletion", who, None]
        start = base64.b64decode(marker.properties["range_start"])
        assert start == b"\x80\x01" + who.encode() + b"\x02\x04"
        assert is_hidden_in(topic)
        schema = topic.schema(0)["data"]
        assert '"gone"' not in schema
        fields = json.loads(schema)
        fields = (fields if each == "json" else fields["value"])["fields"]
        assert {field["name"]: field["type"] for field in fields}["ssn"] == ["null", "string"]
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)


def test_every_reason_why_columns_cannot_be_hidden_is_in_the_sources_status(
    connector_line: CreateLine, deploy_connector: DeployConnector
) -> None:
    """The status names each option that does not fit the table's columns in Cassandra."""
    line = connector_line("who text, at int, v int, PRIMARY KEY (who, at)")
    table = f"{line.keyspace}.t"
    connector = deploy_connector(
        line.keyspace, "t", columns__hash=f"{table}.at", columns__drop=f"{table}.who,{table}.w", columns__hashKey=_KEY
    )
    told = connector.wait_for_error()
    for reason in (
        f"columns.drop: {table}.w matches no column of {table}",
        f"columns.drop: {table}.who matches the key column {table}.who",
        f"columns.hash: {table}.at matches the clustering column {table}.at: hashes have no order",
    ):
        assert reason in told
    assert _KEY not in told


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("keep_data_topics")
def test_verify_compares_hashes_with_hashes_and_sends_clear_keys_to_be_hashed(
    cql: Session,
    keyspace: str,
    deploy_connector: DeployConnector,
    open_events_writer: OpenEventsWriter,
    open_data_topic: OpenDataTopic,
    pulsar: PulsarServer,
    cassandra_node: CassandraServer,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Backfilled rows are equal; a planted difference is found and repaired; an extra row cannot be repaired, because
    only its key's hash is known."""
    table = f"{keyspace}.people"
    cql.execute(
        f"CREATE TABLE {table} (who text, at int, ssn int, secret set<text>, note text, gone text, st text static,"
        " PRIMARY KEY (who, at))"
    )
    for number in range(20):
        cql.execute(
            f"INSERT INTO {table} (who, at, ssn, secret, note, gone, st)"
            f" VALUES ('who {number % 5}', {number}, {number}, {{'x', 'y'}}, 'note {number}', 'g', 's')"
        )
    cql.execute(f"UPDATE {table} SET st = 'alone' WHERE who = 'static'")
    events_topic = open_events_writer(keyspace, "people").topic
    hiding = {**options_of(table), "columns__hash": f"{table}.who,{table}.at,{table}.ssn,{table}.secret"}
    hiding["columns__mask"] = f"{table}.st"
    hiding["publish__rangeDeletions"] = "false"
    topic = open_data_topic(table)
    deploy_connector(keyspace, "people", columns__hashKey=_KEY, **hiding)
    options = {"serviceUrl": pulsar.service_url, "adminUrl": pulsar.admin_url, "topic": f"data-{table}"}
    access = access_to(cassandra_node)
    backfill(spark, options, access, keyspace, "people", ranges=2)
    wait_until_acknowledged(events_topic, pulsar.admin_url)
    config = tmp_path / "source.json"
    configs = {name.replace("__", "."): each for name, each in hiding.items()}
    config.write_text(
        json.dumps({"configs": {"keyspace": keyspace, "table": "people", **configs, "columns.hashKey": _KEY}})
    )
    cql.execute(f"UPDATE {table} SET ssn = 77, note = 'not the same' WHERE who = 'who 1' AND at = 1")
    cql.execute(f"DELETE FROM {table} WHERE who = 'who 2' AND at = 2")
    cql.execute(f"UPDATE {table} SET gone = 'nobody sees it' WHERE who = 'who 3' AND at = 3")
    topic.wait_for(21)
    report = verify(
        spark, options, access, keyspace, "people", ranges=2, settle_s=0, hidden=hidden_columns(config), repair=True
    )
    found = {each.kind: (json.loads(each.key), each.columns) for each in report.differences}
    one = {"who": hashed(b"who 1"), "at": hashed(int32(1))}
    assert found == {
        "differing": (one, ("ssn",)),
        "extra": ({"who": hashed(b"who 2"), "at": hashed(int32(2))}, ()),
    }
    assert (report.rows, report.repaired, len(report.unrepairable)) == (20, 1, 1)
    (repaired,) = topic.next()
    assert (repaired.key, (repaired.value or {})["ssn"]) == (one, hashed(int32(77)))
