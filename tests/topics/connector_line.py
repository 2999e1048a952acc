"""For tests of the connector: a table, events that the test makes itself, and the table's data topic."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence

from cassandra.cluster import Session

from schemas.mutation_event import MutationEvent, MutationKind, RangeBounds
from tests.topics.data_topic import DataTopic
from tests.topics.events_writer import EventsWriter

__all__ = ["ConnectorLine", "int32"]

_timestamps_us = itertools.count(1_700_000_000_000_000, 1000)


def int32(value: int) -> bytes:
    """The CQL bytes of an int."""
    return struct.pack(">i", value)


class ConnectorLine:
    """Statements on the table `t` of a keyspace. `{t}` in a statement is its name, `{ts}` a new timestamp."""

    def __init__(self, cql: Session, keyspace: str, writer: EventsWriter, topic: DataTopic) -> None:
        self.cql = cql
        self.keyspace = keyspace
        self.writer = writer
        self.topic = topic

    def run(self, statement: str) -> int:
        """Run a statement, and return its timestamp."""
        timestamp_us = next(_timestamps_us)
        self.cql.execute(statement.replace("{t}", f"{self.keyspace}.t").replace("{ts}", f"TIMESTAMP {timestamp_us}"))
        return timestamp_us

    def change(
        self,
        statement: str,
        *key: bytes,
        kind: MutationKind = MutationKind.ROW,
        columns: Sequence[str] = (),
        is_live: bool = True,
        bounds: RangeBounds | None = None,
    ) -> MutationEvent:
        """Run a statement, and return the event that an agent would publish for it."""
        timestamp_us = self.run(statement)
        return self.writer.event(
            *key, kind=kind, writetime_us=timestamp_us, columns=columns, is_live=is_live, bounds=bounds
        )
