"""Types of the native core: the classes and functions of the module that is compiled from `runtime/native/`.

The core takes a whole entry or refuses it. From an entry that it takes, it makes the same events as
`change_agent.events.mutation_events`, byte for byte. Python reads a refused entry from the same bytes; the result is
events, an error or a parked mutation. So the core has no errors about bytes. `change_agent.decoder` says if the core
runs. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from change_agent.decoder import native_module

__all__ = ["EncodedEntries", "EncodedRun", "NativeCore", "NativeEncoder", "NativeTable", "native_core"]

# An `AS_` number of schemas.avro_forms, and the length of the type's values in bytes.
KeyForm = tuple[int, int]
# Name (UTF-8), index of the name, complex, counter, fixed length or -1, time of the drop (microseconds).
NativeColumn = tuple[bytes, int, bool, bool, int, int | None]


class EncodedRun(Protocol):
    """Encoded events of one table and one segment, in order. The events have no Python objects."""

    @property
    def size(self) -> int:
        """Estimated size of the events in messages, in bytes (`outgoing.event_size`)."""

    @property
    def first_key(self) -> bytes | None:
        """The Avro key of the first event."""

    @property
    def first_writetime_us(self) -> int | None:
        """The write time of the first event."""

    def __len__(self) -> int: ...

    def split(self, partitions: int) -> list[tuple[int, EncodedRun]]:
        """The same events, divided by topic partition. Partitions without events are left out."""

    def take(self, max_events: int, max_bytes: int, takes_any: bool) -> EncodedRun:
        """Remove from the front, and return, the events that fit into a message.

        With `takes_any`, the first event is taken even if it is larger.
        """


class EncodedEntries(Protocol):
    """Result of the entries that the core took together. Ends are positions in the segment."""

    @property
    def end(self) -> int:
        """End of the last entry that was taken."""

    @property
    def entries(self) -> int:
        """Number of entries that were taken."""

    @property
    def skipped(self) -> int:
        """Number of these entries that have no events."""

    @property
    def events_end(self) -> int:
        """End of the last entry with events."""

    @property
    def last_writetime_us(self) -> int | None:
        """Write time of the last event."""

    @property
    def runs(self) -> list[tuple[int, EncodedRun]]:
        """Events with the index of their table in the encoder's tables.

        Each topic's events are in the order of the log.
        """


class NativeTable(Protocol):
    """A table definition, prepared for the encoder."""


class NativeEncoder(Protocol):
    """Encodes the entries of tables; used by one thread."""

    def encode(
        self,
        window: bytes,
        *,
        offset: int,
        position: int,
        end: int,
        unsigned_times: bool,
        max_events: int,
        max_bytes: int,
    ) -> EncodedEntries | None:
        """Encode the entries that start at `window[offset]`, which is at `position` of the segment.

        Stop at `end`, at an entry that is refused, at an entry that is not complete in the window, or when `max_events`
        or `max_bytes` is reached; the last entry may exceed these two limits. Return None if no entry was taken. Other
        threads can run during the call. Raises NativeCore.CoreError.
        """


class NativeCore(Protocol):
    """The module of the native core."""

    @property
    def CoreError(self) -> type[Exception]:  # noqa: N802  # the name of the class in the module
        """Class of the error that a defect of the core raises."""

    def Table(  # noqa: N802  # likewise
        self,
        *,
        table_id: bytes,
        topic: int,
        is_published: bool,
        partition: Sequence[KeyForm],
        clustering: Sequence[tuple[int, KeyForm | None]],
        static_columns: Sequence[NativeColumn],
        regular_columns: Sequence[NativeColumn],
        names: Sequence[bytes],
    ) -> NativeTable:
        """Prepare a table definition. Tables with the same `topic` number publish to one topic.

        Raises ValueError if the arguments contradict each other.
        """

    def Encoder(self, tables: Sequence[NativeTable], skipped: Sequence[bytes]) -> NativeEncoder:  # noqa: N802  # likewise
        """Make an encoder. `skipped` are the ids of tables whose entries have no events and are not decoded."""

    def pack(self, head: bytes, runs: Sequence[EncodedRun]) -> bytes:
        """Encode a message: `head`, then these events, which are of one table and one segment."""

    def token(self, partition_key: bytes) -> int:
        """The Murmur3 token of a partition key."""


def native_core() -> NativeCore | None:
    """The native core; None if it was not loaded."""
    return cast("NativeCore | None", native_module())  # mypy knows nothing of the attributes of a loaded module
