"""CQL in, data topic out, through the real agent: compared with what DataStax's connector wrote for the same statements."""

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
from tests.fix_connector import DeployConnector, OpenDataTopic

_VECTORS: Final = Path(__file__).parent.parent / "golden" / "datastax"
# A statement that is not applied, and one that repeats another to the microsecond, give none.
_RECORDS_OF_EACH: Final = (2, 1, 1, 1, 1, 1, 2, 1, 1, 3, 2, 1, 0, 1, 1, 1, 1, 1, 0, 0)
# What we publish beyond DataStax: the static row where a row is written with it, and range deletions.
_OURS: Final = {
    0: (b"\x02p\x00", b"\x00\x00\x02\x04d1"),
    6: (b"\x02p\x00", b"\x00\x00\x02\x04d9"),
    8: (b"\x02p\x00", None),
}


@pytest.fixture
def statements(cql: Session) -> Iterator[list[str]]:
    """The statements on `ks2.sem`; its keyspace and the table exist."""
    lines = (_VECTORS / "statements.cql").read_text().splitlines()
    cql.execute(lines[0])
    cql.execute(next(line for line in lines if " ks2.sem " in line))
    yield [line for line in lines[lines.index("use ks2;") + 1 :] if " into pkt" not in line]
    cql.execute("DROP KEYSPACE ks2")


def captured() -> tuple[list[tuple[bytes, bytes | None]], dict[str, Any]]:
    """DataStax's messages as (key, value), and the schema that it registered."""
    *messages, schema = [
        json.loads(line) for line in (_VECTORS / "statements-data-key-value-avro.txt").read_text().splitlines()
    ]
    pairs = [(base64.b64decode(each["key"]), bytes.fromhex(each["data"]) or None) for each in messages]
    return pairs, schema


def test_the_data_topic_is_byte_for_byte_that_of_datastax(
    agent: AgentProcess,
    cql: Session,
    statements: list[str],
    deploy_connector: DeployConnector,
    open_data_topic: OpenDataTopic,
) -> None:
    """20 statements, and their schema to the letter."""
    expected, schema = captured()
    topic = open_data_topic("ks2.sem")
    deploy_connector("ks2", "sem")
    for number, (statement, count) in enumerate(zip(statements, _RECORDS_OF_EACH, strict=True)):
        cql.execute(re.sub(r"\b(into|update|from|truncate) sem\b", r"\1 ks2.sem", statement))
        found = [(record.key_bytes, record.value_bytes) for record in (topic.next(count) if count else [])]
        if number in _OURS:
            found.remove(_OURS[number])
        assert sorted(found) == sorted(expected[: len(found)]), statement
        del expected[: len(found)]
    assert expected == []
    topic.expect_silence(1)
    registered = topic.schema(0)
    assert (registered["type"], registered["data"]) == (schema["type"], schema["data"])
    assert registered["properties"] == schema["properties"]
