"""The output of `cdc decode` for programs: one JSON object for each mutation, or for each event that would be published.

Keys, order and nulls are a contract (docs/commitlog-format.md). Values, keys, clustering values and paths are hex of the CQL
bytes; a null `value` is a tombstone, an absent clustering value is null and an empty one "". In events, bounds and the digest
are hex, too; `key` is the Avro key; times are in the units of their names. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from change_agent.commitlog.entry import CommitLogEntry
from change_agent.db.values import Cell, DeletionTime, LivenessInfo, Mutation, PartitionUpdate, Row
from change_agent.events.mutation_events import TableEvent
from schemas.mutation_event import RangeBounds

__all__ = ["event_json", "mutation_json"]

_JsonObject = dict[str, object]


def mutation_json(segment: str, entry: CommitLogEntry, mutation: Mutation) -> str:
    """The line of one mutation, without a line break; `segment` is the name of the entry's segment file."""
    return json.dumps(
        {
            "segment": segment,
            "position": entry.position,
            "size": entry.size,
            "keyspace": mutation.keyspace,
            "updates": [_update(update) for update in mutation.updates],
        }
    )


def _update(update: PartitionUpdate) -> _JsonObject:
    return {
        "table": update.table.name,
        "table_id": str(update.table.table_id),
        "partition_key": update.partition_key.hex(),
        "partition_deletion": _deletion(update.partition_deletion),
        "static_row": None if update.static_row is None else _row(update.static_row),
        "rows": [_row(row) for row in update.rows],
        "range_tombstones": [
            {
                "start": _clustering(each.start),
                "start_inclusive": each.start_inclusive,
                "end": _clustering(each.end),
                "end_inclusive": each.end_inclusive,
                "timestamp": each.timestamp,
                "local_deletion_time": each.local_deletion_time,
            }
            for each in update.range_tombstones
        ],
    }


def _row(row: Row) -> _JsonObject:
    return {
        "clustering": _clustering(row.clustering),
        "liveness": _liveness(row.liveness),
        "deletion": _deletion(row.deletion),
        "complex_deletions": [
            {
                "column": each.column.name,
                "timestamp": each.timestamp,
                "local_deletion_time": each.local_deletion_time,
            }
            for each in row.complex_deletions
        ],
        "cells": [_cell(cell) for cell in row.cells],
    }


def _cell(cell: Cell) -> _JsonObject:
    return {
        "column": cell.column.name,
        "path": _hex(cell.path),
        "value": _hex(cell.value),
        "timestamp": cell.timestamp,
        "ttl": cell.ttl,
        "local_deletion_time": cell.local_deletion_time,
    }


def _clustering(values: Iterable[bytes | None]) -> list[str | None]:
    return [_hex(value) for value in values]


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def _deletion(deletion: DeletionTime | None) -> _JsonObject | None:
    if deletion is None:
        return None
    return {"timestamp": deletion.timestamp, "local_deletion_time": deletion.local_deletion_time}


def _liveness(liveness: LivenessInfo | None) -> _JsonObject | None:
    if liveness is None:
        return None
    return {
        "timestamp": liveness.timestamp,
        "ttl": liveness.ttl,
        "local_expiration_time": liveness.local_expiration_time,
    }


def event_json(segment: str, published: TableEvent) -> str:
    """The line of one event."""
    table, event = published.keys.table, published.event
    return json.dumps(
        {
            "segment": segment,
            "position": event.position,
            "ordinal": event.ordinal,
            "keyspace": table.keyspace,
            "table": table.name,
            "table_id": str(table.table_id),
            "kind": event.kind.value,
            "key": event.key.hex(),
            "partition_key": event.partition_key.hex(),
            "clustering": _clustering(event.clustering),
            "digest": event.digest.hex(),
            "writetime_us": event.writetime_us,
            "live_cell_writetime_us": event.live_cell_writetime_us,
            "deletion_time_us": event.deletion_time_us,
            "expiry_time_s": event.expiry_time_s,
            "marker_expiry_s": event.marker_expiry_s,
            "bounds": None if event.bounds is None else _bounds(event.bounds),
            "columns": list(event.columns),
        },
        ensure_ascii=False,
    )


def _bounds(bounds: RangeBounds) -> _JsonObject:
    return {
        "start": _clustering(bounds.start),
        "start_inclusive": bounds.start_inclusive,
        "end": _clustering(bounds.end),
        "end_inclusive": bounds.end_inclusive,
    }
