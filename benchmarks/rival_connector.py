"""Measures DataStax's connector: its archive on the same Pulsar, with the same changes as its own agents would publish
them.

Its events are one message a row, with separate key and value (KEY_VALUE, SEPARATED). The key is the row's primary key
in Avro, the value has digest and node (`schemas`, DataStax's agents 2.3.9). The events are on their own topic. The
connector reads the same rows of the same Cassandra, and its records go to their own topic.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from cassandra.cluster import Session
from cassandra.metadata import Murmur3Token

from benchmarks.connector_run import Drain, deployed, drain, subscribe_from_the_start
from cdc.rest import rest
from cdc.sandbox import Sandbox
from schemas.row_record import AvroSchema, record_writer
from tests.fixtures.spark import RecordWriter

__all__ = ["RivalConnector"]

_Message = Mapping[str, object]
_MESSAGES_A_REQUEST: Final = 20_000
_DATA_TOPIC: Final = "rival-data"
_NAME: Final = "rival"
_TOPIC: Final = "rival-events-bench.distinct"
_KEY: Final[AvroSchema] = {
    "type": "record",
    "name": "distinct",
    "namespace": "bench",
    "doc": "Primary key schema for table bench.distinct",
    "fields": [{"name": "pk", "type": "string"}, {"name": "ck", "type": ["null", "int"]}],
}
_VALUE: Final = {
    "type": "record",
    "name": "MutationValue",
    "namespace": "com.datastax.oss.cdc",
    "fields": [
        {"name": "columns", "type": ["null", {"type": "array", "items": "string"}], "default": None},
        {"name": "md5Digest", "type": ["null", "string"], "default": None},
        {"name": "nodeId", "type": ["null", {"type": "string", "logicalType": "uuid"}], "default": None},
    ],
}
_PROPERTIES: Final = {
    "kv.encoding.type": "SEPARATED",
    "key.schema.name": "distinct",
    "key.schema.type": "AVRO",
    "key.schema.properties": "{}",
    "value.schema.name": "",
    "value.schema.type": "AVRO",
    "value.schema.properties": '{"__alwaysAllowNull":"true","__jsr310ConversionEnabled":"false"}',
}


class RivalConnector:
    """Creates the topic with all changes of `bench.distinct` once; then each turn drains all of it."""

    def __init__(self, archive: Path, sandbox: Sandbox, session: Session, *, rows: int, turns: Sequence[str]) -> None:
        """`turns`: names of subscriptions. Raises click.ClickException when the table does not have `rows` rows."""
        self._archive: Final = archive.absolute()
        self._sandbox: Final = sandbox
        self._rows: Final = rows
        _make_topic(sandbox, turns)
        sent = _send(sandbox, session)
        if sent != rows:
            raise click.ClickException(f"bench.distinct has {sent:,} rows, {rows:,} were written")

    def measure(self, turn: str, *, warm_up: int, reads: Callable[[], int]) -> Drain:
        """Drain the changes with a new source. Raises click.ClickException."""
        events_topic, data_topic = f"persistent://public/default/{_TOPIC}", f"{_DATA_TOPIC}-{turn}"
        options = {
            "keyspace": "bench",
            "table": "distinct",
            "events.topic": events_topic,
            "events.subscription.name": turn,
        }
        with deployed(self._sandbox, self._archive, f"{_NAME}-{turn}", data_topic, options) as source:
            return drain(
                self._sandbox,
                source,
                _NAME,
                rows=self._rows,
                warm_up=warm_up,
                events_topics=[events_topic],
                data_topics=[data_topic],
                reads=reads,
                subscription=turn,
            )


def _make_topic(sandbox: Sandbox, subscriptions: Sequence[str]) -> None:
    """Create the topic with subscriptions and schema, as DataStax's agents do."""
    admin = f"{sandbox.pulsar.admin_url}/admin/v2"
    rest().put(f"{admin}/persistent/public/default/{_TOPIC}/partitions", json=1).raise_for_status()
    for name in subscriptions:
        subscribe_from_the_start(sandbox, f"persistent://public/default/{_TOPIC}", name)
    schema = {"type": "KEY_VALUE", "schema": json.dumps({"key": _KEY, "value": _VALUE}), "properties": _PROPERTIES}
    rest().post(f"{admin}/schemas/public/default/{_TOPIC}/schema", json=schema).raise_for_status()


def _send(sandbox: Sandbox, session: Session) -> int:
    """Send a message for each row, and return how many were sent and acknowledged.

    A Java producer sends them, because its messages have a schema version. The connector reads with AutoConsumeSchema:
    it takes a message without a version for BYTES, and ends with a ClassCastException.
    """
    topic, count = f"persistent://public/default/{_TOPIC}", 0
    with tempfile.TemporaryDirectory() as classes:
        writer = RecordWriter(sandbox.pulsar.service_url, Path(classes))
        try:
            for messages in _chunks(_messages(session), _MESSAGES_A_REQUEST):
                writer.write_bytes(topic, json.dumps(_KEY), json.dumps(_VALUE), messages, batch=1000)
                count += len(messages)
        finally:
            writer.close()
    return count


def _chunks(messages: Iterator[_Message], size: int) -> Iterator[list[_Message]]:
    while chunk := list(itertools.islice(messages, size)):
        yield chunk


def _messages(session: Session) -> Iterator[_Message]:
    """The event of each row, in random order, as the rows were written."""
    node: Any = session.execute("SELECT host_id FROM system.local").one()
    write = record_writer(_KEY)
    rows = list(session.execute("SELECT pk, ck FROM bench.distinct"))
    random.Random(len(rows)).shuffle(rows)
    now_us = time.time_ns() // 1_000
    for number, row in enumerate(rows):
        key = write({"pk": row["pk"], "ck": row["ck"]})
        digest = hashlib.md5(key, usedforsecurity=False).hexdigest()
        value = b"\0\x02\x40" + digest.encode() + b"\x02\x48" + str(node["host_id"]).encode()
        token = str(Murmur3Token.hash_fn(row["pk"].encode()))
        yield {
            "key": base64.b64encode(key).decode(),
            "value": base64.b64encode(value).decode(),
            "properties": {"segpos": f"1:{number}", "token": token, "writetime": str(now_us)},
        }
