"""Makes tests/golden/state/<n>: the agent's stored state as this version writes it, for tests of later versions.

    python -m tests.golden.make_state 2

Run it once for each change of a format, and never again; earlier folders stay.
"""

from __future__ import annotations

import sys
from pathlib import Path
from uuid import UUID

from change_agent.parking.parked import ParkedMutation, ParkedMutations
from change_agent.positions.offsets import OffsetStore, StoredPositions, StoredSegment
from change_agent.positions.segment_ids import SegmentIds
from change_agent.publishing.held_events import HeldEvents
from change_agent.publishing.partition_counts import PartitionCounts
from change_agent.schema.schema_history import NodeSchema, SchemaHistory
from schemas.mutation_event import MutationEvent, MutationEvents, MutationKind, encode_events
from tests.golden.segments import GOLDEN_SEGMENTS

__all__ = ["HELD", "NODE_ID", "PARKED", "POSITIONS", "STATE", "TOPIC", "golden_schema", "write_state"]

STATE = Path(__file__).parent / "state"
NODE_ID = UUID(int=1)
TOPIC = "persistent://public/default/cdc-events-ks.t"
POSITIONS = StoredPositions(
    segments={7: StoredSegment(position=100), 8: StoredSegment(position=5, keep=True, fault="damaged")},
    finished=SegmentIds.of([1, 2, 3, 6]),
    until_ms=1_795_000_000_000,
)
PARKED = ParkedMutation(
    segment="CommitLog-7-8.log",
    segment_id=8,
    position=77,
    version=7,
    table_id=UUID(int=2),
    reason="an unknown table",
    payload=b"a mutation",
    parked_at_ms=1_795_000_000_000,
    number=1,
)
HELD = MutationEvents(
    node_id=NODE_ID,
    segment_id=8,
    keyspace="ks",
    table="t",
    table_id=UUID(int=3),
    key_schema="{}",
    events=(
        MutationEvent(
            position=9,
            ordinal=0,
            kind=MutationKind.ROW,
            key=b"\2",
            partition_key=b"\0\0\0\1",
            digest=bytes(16),
            writetime_us=5,
            columns=("a",),
        ),
    ),
)


def golden_schema() -> NodeSchema:
    """The schema of a node of Cassandra 5.0."""
    import json

    (golden,) = (each for each in GOLDEN_SEGMENTS if each.line == "5.0")
    return NodeSchema(node_id=NODE_ID, schema=json.loads(golden.schema_file.read_text(encoding="utf-8")))


def main() -> None:
    """Write the state into a new folder."""
    folder = STATE / sys.argv[1]
    folder.mkdir(parents=True)
    write_state(folder)


def write_state(folder: Path) -> None:
    """Write one of each thing that an agent stores in its working directory."""
    store = OffsetStore(folder)
    store.store(POSITIONS)
    store.close()
    (folder / "agent.lock").unlink()
    history = SchemaHistory(folder)
    history.load()
    history.add(golden_schema())
    history.confirm(1_795_000_000_000)
    history.close()
    parked = ParkedMutations(folder, lambda: None)
    parked.park(PARKED)
    parked.close()
    PartitionCounts(folder).check(TOPIC, 4)
    HeldEvents(folder / "held" / "ks.t.events").append([encode_events(HELD)])


if __name__ == "__main__":
    main()
