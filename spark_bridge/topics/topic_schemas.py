"""The schemas of a data topic: the Avro schemas of key and value for each version in Pulsar's registry."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark_bridge.errors import TopicError
from spark_bridge.topics.admin import PATIENCE_S, PulsarAdmin, RegisteredSchema
from spark_bridge.topics.options import BridgeOptions

__all__ = ["PRESENT_VERSION", "AvroRecord", "SchemaVersion", "TopicSchemas"]

PRESENT_VERSION: Final = -1
"""The version of rows as Cassandra has them now, beside the versions of the registry, which begin with 0."""

AvroRecord = Mapping[str, Any]
"""An Avro record's definition, as parsed JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersion:
    """Key schema and value schema (Avro records as parsed JSON) of records of this version."""

    version: int
    key: AvroRecord
    value: AvroRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSchemas:
    """All versions of a topic's schema, oldest first; at least one."""

    topic: str
    versions: tuple[SchemaVersion, ...]

    @property
    def newest(self) -> SchemaVersion:
        """The version that determines the typed columns."""
        return self.versions[-1]

    def dropped_since(self, version: int) -> frozenset[str]:
        """Value columns that the newest version has, but a version between `version` and the newest one lacks.

        They were dropped and added again: Cassandra no longer shows their earlier values. None for the present version,
        with which no record was written.
        """
        if version == PRESENT_VERSION:
            return frozenset()
        names = _names(self.newest.value)
        later = [_names(each.value) for each in self.versions if each.version > version]
        return names.difference(_names(self.newest.key)).difference(names.intersection(*later))

    @classmethod
    def fetch(cls, options: BridgeOptions, *, patience_s: float = PATIENCE_S) -> TopicSchemas:
        """Ask the registry about the options' one topic. `patience_s`: see PulsarAdmin.

        Raises ConfigError, TopicError, PulsarUnreachableError.
        """
        with PulsarAdmin(options, patience_s=patience_s) as admin:
            admin.topic_partitions()  # a missing topic must give another message than a topic without a schema
            return cls.parse(options.only_topic, admin.schemas(options.only_topic))

    @classmethod
    def parse(cls, topic: str, registered: Sequence[RegisteredSchema]) -> TopicSchemas:
        """The schemas in the registry's answer. Raises TopicError if a schema is not KEY_VALUE SEPARATED AVRO AVRO."""
        if not registered:
            raise TopicError(topic, "has no schema yet: the connector registers one with its first record")
        versions = [_version(topic, each) for each in registered]
        return cls(topic=topic, versions=tuple(sorted(versions, key=lambda each: each.version)))


def _names(record: AvroRecord) -> frozenset[str]:
    return frozenset(each["name"] for each in record["fields"])


def _version(topic: str, registered: RegisteredSchema) -> SchemaVersion:
    properties = registered.get("properties") or {}
    found = [
        str(registered.get("type")),
        properties.get("kv.encoding.type"),
        properties.get("key.schema.type"),
        properties.get("value.schema.type"),
    ]
    if found != ["KEY_VALUE", "SEPARATED", "AVRO", "AVRO"]:
        kind = " ".join(str(each) for each in found if each)
        reason = (
            f"schema version {registered.get('version')} is {kind}; typed columns need KEY_VALUE SEPARATED AVRO AVRO "
            "(the connector's outputFormat key-value-avro)"
        )
        raise TopicError(topic, reason)
    try:
        data: Mapping[str, AvroRecord] = json.loads(registered["data"])
        records = [data[part] for part in ("key", "value")]
        if not all(isinstance(each, dict) and isinstance(each["fields"], list) for each in records):
            raise TypeError("key and value must be Avro records")
    except (ValueError, KeyError, TypeError) as error:
        reason = (
            f"schema version {registered.get('version')} cannot be read ({error}); was it written by the connector?"
        )
        raise TopicError(topic, reason) from None
    return SchemaVersion(version=registered["version"], key=records[0], value=records[1])
