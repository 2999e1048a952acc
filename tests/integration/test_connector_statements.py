"""CQL through the real agent to the data topic: the records equal those of DataStax's connector for the same
statements."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from cassandra.cluster import Session

from cdc.agent_process import AgentProcess
from schemas.topics import events_topic
from tests.fixtures.connector import DeployConnector, OpenDataTopic, wait_until_acknowledged
from tests.servers.interface import PulsarServer
from tests.topics.events_topic import EventsTopic, wait_until

_VECTORS: Final = Path(__file__).parent.parent / "golden" / "datastax"
# A statement that is not applied gives no record, and neither does one that repeats another to the microsecond.
_RECORDS_OF_EACH: Final = (2, 1, 1, 1, 1, 1, 2, 1, 1, 3, 2, 1, 0, 1, 1, 1, 1, 1, 0, 0)
# No write time proves this element of a set. So the connector reads its row again, and must then find it deleted.
_NOT_WAITED_FOR: Final = 15
_FORMATS: Final = ("key-value-avro", "key-value-json", "json")
# Records that only our connector publishes: the static row when a row is written with it, and range deletions.
_OURS: Final[dict[str, dict[int, tuple[bytes, bytes | None]]]] = {
    "key-value-avro": {
        0: (b"\x02p\x00", b"\x00\x00\x02\x04d1"),
        6: (b"\x02p\x00", b"\x00\x00\x02\x04d9"),
        8: (b"\x02p\x00", None),
    },
    "key-value-json": {
        0: (b'{"a":"p","b":null}', b'{"d":"d1"}'),
        6: (b'{"a":"p","b":null}', b'{"d":"d9"}'),
        8: (b'{"a":"p","b":null}', None),
    },
    "json": {
        0: (b'{"a":"p","b":null}', b'{"d":"d1"}'),
        6: (b'{"a":"p","b":null}', b'{"d":"d9"}'),
        8: (b'{"a":"p","b":null}', b"{}"),
    },
}


@pytest.fixture
def statements(cql: Session) -> Iterator[list[str]]:
    """The statements on `ks2.sem`; its keyspace and the table exist."""
    lines = (_VECTORS / "statements.cql").read_text().splitlines()
    cql.execute(lines[0])
    cql.execute(next(line for line in lines if " ks2.sem " in line))
    # Only properties show a TTL, and the row must not expire before it is read.
    lasting = [line.replace("using ttl 3;", "using ttl 600;") for line in lines]
    yield [line for line in lasting[lasting.index("use ks2;") + 1 :] if " into pkt" not in line]
    cql.execute("DROP KEYSPACE ks2")


def captured(data_format: str) -> tuple[list[tuple[bytes, bytes | None]], dict[str, Any]]:
    """DataStax's messages as (key, value), and the schema that it registered."""
    *messages, schema = [
        json.loads(line) for line in (_VECTORS / f"statements-data-{data_format}.txt").read_text().splitlines()
    ]
    key = str.encode if data_format == "json" else base64.b64decode
    return [(key(each["key"]), bytes.fromhex(each["data"]) or None) for each in messages], schema


def _subscription(data_format: str) -> str:
    return "sub" if data_format == _FORMATS[0] else f"sub-{data_format}"


def _wait_for_the_repeated_event(pulsar: PulsarServer) -> None:
    """Wait until each connector has acknowledged the repeated event: after the truncation its row would be gone."""
    topic = events_topic("ks2", "sem")
    with EventsTopic(pulsar, topic) as events:
        wait_until(
            lambda: sum(each.event.partition_key == b"same" for each in events.read()) >= 2, "the repeated event"
        )
    _wait_until_acknowledged(pulsar)


def _wait_until_acknowledged(pulsar: PulsarServer) -> None:
    """Wait until each connector is done with all events, and with second reads of rows whose records took long."""
    for each in _FORMATS:
        wait_until_acknowledged(events_topic("ks2", "sem"), pulsar.admin_url, _subscription(each))


def test_the_data_topics_are_byte_for_byte_those_of_datastax(
    agent: AgentProcess,
    cql: Session,
    statements: list[str],
    deploy_connector: DeployConnector,
    open_data_topic: OpenDataTopic,
    pulsar: PulsarServer,
) -> None:
    """20 statements in three formats give equal keys, values, and schema texts."""
    topics = {each: open_data_topic(f"ks2.sem-{each}") for each in _FORMATS}
    expected = {each: captured(each)[0] for each in _FORMATS}
    for each, topic in topics.items():
        deploy_connector(
            "ks2",
            "sem",
            settings={"topicName": topic.name},
            outputFormat=each,
            events__subscription__name=_subscription(each),
        )
    for number, (statement, count) in enumerate(zip(statements, _RECORDS_OF_EACH, strict=True)):
        if statement.startswith("truncate"):
            _wait_for_the_repeated_event(pulsar)
        cql.execute(re.sub(r"\b(into|update|from|truncate) sem\b", r"\1 ks2.sem", statement))
        for each, topic in topics.items():
            found = [(record.key_bytes, record.value_bytes) for record in (topic.next(count) if count else [])]
            if number in _OURS[each]:
                found.remove(_OURS[each][number])
            assert sorted(found) == sorted(expected[each][: len(found)]), (statement, each)
            del expected[each][: len(found)]
        if number != _NOT_WAITED_FOR:
            _wait_until_acknowledged(pulsar)
    for each, topic in topics.items():
        assert expected[each] == []
        topic.expect_silence(0.5)
        registered, schema = topic.schema(0), captured(each)[1]
        assert (registered["type"], registered["data"]) == (schema["type"], schema["data"])
        assert registered["properties"] == schema["properties"]
