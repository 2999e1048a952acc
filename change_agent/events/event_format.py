"""The output of `cdc decode --format events`: one JSON object for each event that would be published.

Keys, clustering values, bounds and the digest are hex; `key` is the Avro key. Times are in the units of their names. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from change_agent.events.mutation_events import TableEvent
from schemas.mutation_event import RangeBounds

__all__ = ["event_json"]


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
            "clustering": _hex(event.clustering),
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


def _bounds(bounds: RangeBounds) -> dict[str, object]:
    return {
        "start": _hex(bounds.start),
        "start_inclusive": bounds.start_inclusive,
        "end": _hex(bounds.end),
        "end_inclusive": bounds.end_inclusive,
    }


def _hex(values: Iterable[bytes | None]) -> list[str | None]:
    return [None if value is None else value.hex() for value in values]
