"""Run entries through the native core and through Python, and compare the events of both as the bytes of messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from change_agent.commitlog.entry import CommitLogEntry
from change_agent.db.mutation import MutationDecoder
from change_agent.events.entry_encoder import EntryEncoder
from change_agent.events.events_writer import write_events, write_head
from change_agent.events.mutation_events import EventKeys, MutationEventBuilder, TableEvent, is_published
from change_agent.format_version import version_rules
from change_agent.native_core import EncodedEntries, NativeCore
from schemas.errors import CdcError
from schemas.mutation_event import MutationEvent, decode_events
from schemas.table_metadata import TableMetadata
from tests.agent.segment_writer import entry_bytes

__all__ = ["NODE_ID", "SEGMENT_ID", "BothWays", "Messages"]

NODE_ID: Final = UUID(int=7)
SEGMENT_ID: Final = 1_700_000_000_000
Messages = dict[str, bytes]
"""Messages by the full name of the table."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of the core: the number of entries taken and skipped, and a message for each table."""

    entries: int
    skipped: int
    messages: Messages


class BothWays:
    """Both ways for the tables of one schema."""

    def __init__(self, core: NativeCore, tables: Mapping[UUID, TableMetadata], version: int) -> None:
        self._core: Final = core
        self._version: Final = version
        self._tables: Final = tables
        self._decoder: Final = MutationDecoder(tables)
        self._builder: Final = MutationEventBuilder()
        left_out = {each.table_id.bytes for each in tables.values() if not is_published(each)}
        self._encoder: Final = EntryEncoder(core, list(tables.values()), left_out=left_out, skipped=())
        self._keys: Final[dict[UUID, EventKeys]] = {}

    @property
    def tables(self) -> list[TableMetadata]:
        """The tables, by their index in the core's runs."""
        return self._encoder.tables

    def natively(self, payloads: Sequence[bytes]) -> Taken | None:
        """Encode entries with these payloads, in order, up to the first one that the core refuses; None if it refuses
        the first one."""
        window = b"before" + b"".join(map(entry_bytes, payloads))
        found = self.encode(window, 6, 100)
        if found is None:
            return None
        messages = {}
        for index, run in found.runs:
            table = self._encoder.tables[index]
            head = write_head(
                NODE_ID, SEGMENT_ID, table.keyspace, table.name, table.table_id, self._keys_of(table).schema
            )
            messages[table.full_name] = self._core.pack(head, [run])
        return Taken(found.entries, found.skipped, messages)

    def encode(self, window: bytes, offset: int, position: int, end: int = 2**31) -> EncodedEntries | None:
        """The core's own result for a window of bytes."""
        unsigned_times = version_rules(self._version).unsigned_deletion_times
        return self._encoder.take(window, offset, position, end, unsigned_times=unsigned_times)

    def plainly(self, payloads: Sequence[bytes]) -> Messages:
        """Encode all payloads in Python. Raises CommitLogReadError or CqlValueError."""
        events: dict[str, list[MutationEvent]] = {}
        keys: dict[str, EventKeys] = {}
        position = 100
        for payload in payloads:
            position += len(entry_bytes(payload))
            entry = CommitLogEntry(position, payload)
            mutation = self._decoder.decode(entry.payload, self._version)
            for each in self._builder.events_of(mutation, entry.position):
                events.setdefault(each.keys.table.full_name, []).append(each.event)
                keys[each.keys.table.full_name] = each.keys
        return {name: _message(keys[name], found) for name, found in events.items()}

    def events(self, entry: CommitLogEntry) -> list[TableEvent] | None:
        """The core's events of one entry, in their order; None if the core refuses it."""
        framed = entry_bytes(entry.payload)
        found = self.encode(framed, 0, entry.position - len(framed))
        if found is None:
            return None
        events = []
        for index, run in found.runs:
            keys = self._keys_of(self.tables[index])
            table = keys.table
            head = write_head(NODE_ID, SEGMENT_ID, table.keyspace, table.name, table.table_id, keys.schema)
            events += [TableEvent(keys, each) for each in decode_events(self._core.pack(head, [run])).events]
        return sorted(events, key=lambda each: each.event.ordinal)

    def outcome(self, payload: bytes) -> str:
        """`taken`, `refused`, or the error of Python, for a payload that both ways must treat alike."""
        native = self.natively([payload])
        try:
            plain, refusal = self.plainly([payload]), ""
        except CdcError as error:
            plain, refusal = {}, f"{type(error).__name__} {error}"
        if native is None:
            return refusal or "refused"
        assert not refusal, f"the core takes what Python refuses: {refusal}"
        assert native.messages == plain, "the core makes other events than Python"
        return "taken"

    def _keys_of(self, table: TableMetadata) -> EventKeys:
        if table.table_id not in self._keys:
            self._keys[table.table_id] = EventKeys(table)
        return self._keys[table.table_id]


def _message(keys: EventKeys, events: list[MutationEvent]) -> bytes:
    table = keys.table
    return write_events(
        node_id=NODE_ID,
        segment_id=SEGMENT_ID,
        keyspace=table.keyspace,
        table=table.name,
        table_id=table.table_id,
        key_schema=keys.schema,
        events=events,
    )
