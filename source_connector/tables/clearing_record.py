"""The record of a truncation or a drop of a table on the topic of schema changes. Pure.

There is one record for each truncation, although each node reports it on each partition. TRUNCATE runs on all nodes at
once. So the record has the notes of all nodes, and covers all of their reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypedDict
from uuid import UUID

from schemas.mutation_event import Clearing, ClearingKind
from schemas.row_record import AvroSchema
from schemas.truncation import Truncation

__all__ = [
    "CLEARING_RECORD_SCHEMA",
    "SAME_MS",
    "ClearingRecord",
    "DataPosition",
    "NodeClearing",
    "covers",
    "is_about",
    "kind_text",
    "node_clearings",
    "without_earlier",
]

SAME_MS: Final = 30_000
"""The nodes' times of one truncation differ by less. They differ by their clocks and by how long each node flushes."""


class NodeClearing(TypedDict):
    """The note of one node: the position of its log at the clearing, and the time."""

    node: str
    segment_id: int
    position: int
    time_ms: int


class DataPosition(TypedDict):
    """A message of a partition of the data topic."""

    ledger: int
    entry: int


class ClearingRecord(TypedDict):
    """A truncation or a drop. `time_ms` is the latest time of the nodes.

    `positions` has, for each partition of `data_topic` in order, the last message before this record; null if there was
    none. A topic without partitions counts as one partition.
    """

    kind: str
    table_id: str
    table_generation: int | None
    time_ms: int
    nodes: list[NodeClearing]
    data_topic: str
    positions: list[DataPosition | None]


_NODE_FIELDS: Final[list[AvroSchema]] = [
    {"name": "node", "type": "string"},
    {"name": "segment_id", "type": "long"},
    {"name": "position", "type": "long"},
    {"name": "time_ms", "type": "long"},
]
CLEARING_RECORD_SCHEMA: Final[AvroSchema] = {
    "type": "record",
    "name": "Clearing",
    "fields": [
        {"name": "kind", "type": "string"},
        {"name": "table_id", "type": "string"},
        {"name": "table_generation", "type": ["null", "long"], "default": None},
        {"name": "time_ms", "type": "long"},
        {
            "name": "nodes",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "NodeClearing",
                    "fields": _NODE_FIELDS,
                },
            },
        },
        {"name": "data_topic", "type": "string"},
        {
            "name": "positions",
            "type": {
                "type": "array",
                "items": [
                    "null",
                    {
                        "type": "record",
                        "name": "DataPosition",
                        "fields": [{"name": "ledger", "type": "long"}, {"name": "entry", "type": "long"}],
                    },
                ],
            },
        },
    ],
}


def node_clearings(
    clearing: Clearing, node_id: UUID, segment_id: int, noted: Mapping[UUID, Truncation | None]
) -> list[NodeClearing]:
    """The nodes' notes of a clearing that node `node_id` has reported. `noted` is what the nodes have noted last.

    For that node the report and its note are combined, so that both are covered even if its clock was set back in
    between.
    """
    found = {
        node: each for node, each in noted.items() if each is not None and each.time_ms >= clearing.time_ms - SAME_MS
    }
    reported = Truncation(segment_id, clearing.position, clearing.time_ms)
    since = found.get(node_id, reported)
    found[node_id] = Truncation(*max(reported[:2], since[:2]), max(reported.time_ms, since.time_ms))
    return [
        NodeClearing(node=str(node), segment_id=each.segment_id, position=each.position, time_ms=each.time_ms)
        for node, each in sorted(found.items(), key=lambda item: item[0].bytes)
    ]


def without_earlier(nodes: Sequence[NodeClearing], records: Iterable[ClearingRecord]) -> list[NodeClearing]:
    """The notes that no earlier record covers. `records` are those of the same kind and table id.

    A node keeps its last truncation until it has done the next one. So two truncations at about the same time look
    alike.
    """
    earlier = [each for record in records for each in record["nodes"]]
    return [each for each in nodes if not any(_has(known, each) for known in earlier)]


def covers(record: ClearingRecord, table_id: UUID, clearing: Clearing, node_id: UUID, segment_id: int) -> bool:
    """True when the record covers the clearing that this node reports.

    A truncation is covered if the record has a note of the node that is not older. A node that is not in the record (it
    is in another data center and cannot be asked) reports the same truncation if it does so at about the same time.
    """
    if not is_about(record, table_id, clearing):
        return False
    if clearing.kind is ClearingKind.DROP:
        return clearing.time_ms <= record["time_ms"] + SAME_MS
    noted = next((each for each in record["nodes"] if each["node"] == str(node_id)), None)
    if noted is None:
        return clearing.time_ms <= record["time_ms"] + SAME_MS
    told = NodeClearing(node=str(node_id), segment_id=segment_id, position=clearing.position, time_ms=clearing.time_ms)
    return _has(noted, told)


def is_about(record: ClearingRecord, table_id: UUID, clearing: Clearing) -> bool:
    """True when the record is of the same table id and kind."""
    return record["table_id"] == str(table_id) and record["kind"] == kind_text(clearing.kind)


def _has(noted: NodeClearing, told: NodeClearing) -> bool:
    """True when the note is of the same node, and of the told truncation or a later one.

    Log position and time must both agree: the node's clock may be set back between two truncations, and its log may
    begin again with lower segment ids.
    """
    places = [(each["segment_id"], each["position"]) for each in (told, noted)]
    return told["node"] == noted["node"] and places[0] <= places[1] and told["time_ms"] <= noted["time_ms"]


def kind_text(kind: ClearingKind) -> str:
    """The kind as it is written in records."""
    return kind.value.lower()
