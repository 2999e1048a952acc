"""Reads a data topic as a consumer without the connector's code, by a subscription made before the first record."""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import fastavro
import pulsar

from cdc.rest import rest
from tests.servers.interface import PulsarServer
from tests.topics.client import quiet_client
from tests.topics.events_topic import wait_until

__all__ = ["DataRecord", "DataTopic"]

# long, for a machine under heavy load; a wait ends as soon as its condition holds
_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRecord:
    """One message: key and value as bytes, and decoded by the schemas of its version."""

    key_bytes: bytes
    value_bytes: bytes | None
    key: Mapping[str, Any]
    value: Mapping[str, Any] | None
    properties: Mapping[str, str]
    schema_version: int
    event_time_ms: int

    @property
    def kind(self) -> str:
        """The kind of the change."""
        return self.properties["kind"]


class DataTopic:
    """A durable subscription on one topic, from its beginning. Close it."""

    def __init__(self, server: PulsarServer, topic: str) -> None:
        self.name = topic
        self._admin_url = server.admin_url
        self._client = quiet_client(server.service_url)
        self._consumer = self._client.subscribe(topic, "test", initial_position=pulsar.InitialPosition.Earliest)
        self._decoders: dict[int, _Decoder] = {}
        self.records: list[DataRecord] = []

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def wait_for(self, count: int, timeout_s: float = _TIMEOUT_S) -> list[DataRecord]:
        """Wait until there are `count` records, and return all records so far."""
        deadline = time.monotonic() + timeout_s
        while len(self.records) < count:
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"{len(self.records)} of {count} records on {self.name}: {self.records[-5:]}"
            self._receive(left_s)
        return self.records

    def next(self, count: int = 1, timeout_s: float = _TIMEOUT_S) -> list[DataRecord]:
        """The next `count` records."""
        return self.wait_for(len(self.records) + count, timeout_s)[-count:]

    def expect_silence(self, seconds: float = 1.0) -> None:
        """Check that no record arrives within this time."""
        before = len(self.records)
        self._receive(seconds)
        assert self.records[before:] == [], f"nothing was to come to {self.name}: {self.records[before:]}"

    def poll(self, seconds: float) -> None:
        """Take one more record, if one comes within that time."""
        self._receive(seconds)

    def take_all(self) -> list[DataRecord]:
        """Take all records that the broker has, and return those that were taken now.

        It asks the broker for the backlog, because a pause without records does not mean that none is left.
        """
        before = len(self.records)

        def is_taken() -> bool:
            count = -1
            while len(self.records) > count:
                count = len(self.records)
                self._receive(0.1)
            return self._backlog() == 0

        wait_until(is_taken, f"every record of {self.name} taken")
        return self.records[before:]

    def _backlog(self) -> int:
        url = f"{self._admin_url}/admin/v2/persistent/public/default/{self.name}/stats"
        subscription = rest().get(url).raise_for_status().json()["subscriptions"]["test"]
        return cast("int", subscription["msgBacklog"])

    def schema(self, version: int) -> dict[str, Any]:
        """One version of the registered schema, from the broker's REST interface."""
        url = f"{self._admin_url}/admin/v2/schemas/public/default/{self.name}/schema/{version}"
        return cast("dict[str, Any]", rest().get(url).raise_for_status().json())

    def _receive(self, timeout_s: float) -> None:
        try:
            message = self._consumer.receive(timeout_millis=int(timeout_s * 1000) + 1)
        except pulsar.Timeout:
            return
        self._consumer.acknowledge(message)
        version = message._message.int_schema_version()
        if version not in self._decoders:
            self._decoders[version] = _Decoder(self.schema(version))
        decoder = self._decoders[version]
        text = message.partition_key()
        key = text.encode() if decoder.is_one_object else base64.b64decode(text)
        value = None if message._message.has_null_value() else message.data()
        self.records.append(
            DataRecord(
                key_bytes=key,
                value_bytes=value,
                key=decoder.key(key),
                value=None if value is None else decoder.value(value),
                properties=message.properties(),
                schema_version=version,
                event_time_ms=message.event_timestamp(),
            )
        )


class _Decoder:
    """Decodes key and value by one registered schema of any of the three formats."""

    def __init__(self, registered: dict[str, Any]) -> None:
        self.is_one_object = registered["type"] == "JSON"
        if self.is_one_object or registered["properties"]["value.schema.type"] == "JSON":
            self.key = self.value = _decode_json
        else:
            schemas = json.loads(registered["data"])
            self.key = partial(_decode, schemas["key"])
            self.value = partial(_decode, schemas["value"])


def _decode_json(data: bytes) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(data))


def _decode(schema: object, data: bytes) -> dict[str, Any]:
    # Without logical types, so that dates stay days, as they are written.
    plain = json.loads(json.dumps(schema), object_hook=_without_logical_type)
    source = io.BytesIO(data)
    record = fastavro.schemaless_reader(source, plain, None)
    assert source.read() == b"", "bytes after the record"
    return cast("dict[str, Any]", record)


def _without_logical_type(node: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in node.items() if name not in ("logicalType", "namespace")}
