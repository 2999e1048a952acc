"""Truncations and drops as the connector publishes them on the topic of schema changes (docs/records.md, "When a table is
truncated"). Plain values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from schemas.topics import full_topic_name

__all__ = ["DROP", "SeenTable", "TableClearing", "clearing_from_state", "clearing_of", "seen_table_of"]

DROP: Final = "drop"
_KINDS: Final = ("truncation", DROP)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableClearing:
    """A truncation or a drop of one life of a table.

    `time_ms`: the latest time of the nodes, in milliseconds since the epoch. `nodes`: id, segment and position of each
    node. `positions`: for each partition of `data_topic`, in order, ledger and entry of the last message before the
    clearing; None if there was none. A topic without partitions has one position.
    """

    kind: str
    table_id: str
    table_generation: int | None
    time_ms: int
    nodes: tuple[tuple[str, int, int], ...]
    data_topic: str
    positions: tuple[tuple[int, int] | None, ...]

    @property
    def name(self) -> str:
        """Identifies the clearing."""
        return f"{self.kind} {self.table_id} {self.table_generation} {self.time_ms}"

    def last_before(self, partition: int) -> tuple[int, int] | None:
        """The last message before the clearing in a partition (-1: topic without partitions); None if there is none."""
        number = max(partition, 0)
        return self.positions[number] if number < len(self.positions) else None

    def repeats(self, other: TableClearing) -> bool:
        """True when `other`, an earlier record, is about the same clearing.

        It then has the same time, or all nodes of this record with the same places.
        """
        same = (self.kind, self.table_id, self.table_generation) == (other.kind, other.table_id, other.table_generation)
        return same and (self.time_ms == other.time_ms or (bool(self.nodes) and set(self.nodes) <= set(other.nodes)))


class SeenTable(NamedTuple):
    """A table (`keyspace.table`), as the connector has seen it at a time in milliseconds since the epoch."""

    name: str
    table_id: str
    time_ms: int


def clearing_of(data: bytes) -> TableClearing | None:
    """The clearing in a record of the topic of schema changes; None for other records."""
    try:
        fields = json.loads(data)["clearing"]
        return None if fields is None or fields["kind"] not in _KINDS else _of_fields(fields)
    except (ValueError, KeyError, TypeError):
        return None


def seen_table_of(data: bytes) -> SeenTable | None:
    """The table in a record of the topic of schema changes; None for other records, and if the table is gone."""
    try:
        fields = json.loads(data)
        new = fields["new"]
        if new is None:
            return None
        return SeenTable(f"{fields['keyspace']}.{fields['table']}", str(new["table_id"]), int(fields["time_ms"]))
    except (ValueError, KeyError, TypeError):
        return None


def clearing_from_state(fields: Mapping[str, Any]) -> TableClearing:
    """The clearing that was stored as JSON of `dataclasses.asdict`."""
    return TableClearing(
        **{
            **fields,
            "nodes": tuple((node, segment, position) for node, segment, position in fields["nodes"]),
            "positions": tuple(None if each is None else (each[0], each[1]) for each in fields["positions"]),
        }
    )


def _of_fields(fields: Mapping[str, Any]) -> TableClearing:
    generation = fields["table_generation"]
    return TableClearing(
        kind=fields["kind"],
        table_id=str(fields["table_id"]),
        table_generation=None if generation is None else int(generation),
        time_ms=int(fields["time_ms"]),
        nodes=tuple((str(each["node"]), int(each["segment_id"]), int(each["position"])) for each in fields["nodes"]),
        data_topic=full_topic_name(fields["data_topic"]),
        positions=tuple(_positions(fields["positions"])),
    )


def _positions(fields: list[Mapping[str, Any] | None]) -> Iterator[tuple[int, int] | None]:
    for each in fields:
        yield None if each is None else (int(each["ledger"]), int(each["entry"]))
