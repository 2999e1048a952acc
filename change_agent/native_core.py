"""The types of the native core: the classes and functions of the module that `change_agent/native/` is compiled to.

The core and Python are two ways through the same entries. What the core takes becomes the events that
`change_agent.events.mutation_events` makes of it, byte for byte. It takes an entry whole or refuses it, and what it refuses
Python reads from the same bytes, with whatever comes of it: events, an error, a parked mutation. So the core has no errors
about bytes. `change_agent.decoder` says whether it runs. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from change_agent.decoder import native_module

__all__ = ["EncodedEntries", "EncodedRun", "NativeCore", "NativeEncoder", "NativeTable", "native_core"]

# `AS_` number of schemas.avro_forms, bytes of the type's values
KeyForm = tuple[int, int]
# name (UTF-8), index of the name, complex, counter, fixed length or -1, dropped at (microseconds)
NativeColumn = tuple[bytes, int, bool, bool, int, int | None]


class EncodedRun(Protocol):
    """Encoded events of one table and one segment, in order, without Python objects for them."""

    @property
    def size(self) -> int:
        """Their estimated bytes in messages (`outgoing.event_size`)."""

    @property
    def first_key(self) -> bytes | None:
        """The Avro key of the first event."""

    @property
    def first_writetime_us(self) -> int | None:
        """The write time of the first event."""

    def __len__(self) -> int: ...

    def split(self, partitions: int) -> list[tuple[int, EncodedRun]]:
        """The same events by topic partition; partitions without events are left out."""

    def take(self, max_events: int, max_bytes: int, takes_any: bool) -> EncodedRun:
        """Take from the front what a message has room for; the first event whatever its size, where `takes_any`."""


class EncodedEntries(Protocol):
    """The result for some entries. Ends are positions; `runs` have the index of the table in the encoder's tables."""

    @property
    def end(self) -> int:
        """Of the last entry that was taken."""

    @property
    def entries(self) -> int:
        """How many were taken."""

    @property
    def skipped(self) -> int:
        """Those of them without events."""

    @property
    def events_end(self) -> int:
        """Of the last entry with events."""

    @property
    def last_writetime_us(self) -> int | None:
        """Of the last event."""

    @property
    def runs(self) -> list[tuple[int, EncodedRun]]:
        """The events, in the order of the log for each topic."""


class NativeTable(Protocol):
    """A definition of a table, compiled once."""


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
        """The entries from `window[offset:]` on, which is at `position`, that end at or before `end`, up to the first one that
        is refused or not whole in the window; None where that is the first one.

        The last entry may exceed `max_events` or `max_bytes`. Other threads run meanwhile. Raises NativeCore.CoreError.
        """


class NativeCore(Protocol):
    """The module."""

    @property
    def CoreError(self) -> type[Exception]:  # noqa: N802  # the name of the class in the module
        """The core itself is at fault: its message."""

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
        """Tables of one `topic` number publish to one topic. Raises ValueError for what contradicts itself."""

    def Encoder(self, tables: Sequence[NativeTable], skipped: Sequence[bytes]) -> NativeEncoder:  # noqa: N802  # likewise
        """`skipped` are ids of tables whose entries have no events and are not decoded."""

    def pack(self, head: bytes, runs: Sequence[EncodedRun]) -> bytes:
        """A message of these events, of one table and one segment, behind the fields of its head."""

    def token(self, partition_key: bytes) -> int:
        """The Murmur3 token."""


def native_core() -> NativeCore | None:
    """The core, where it runs."""
    return cast("NativeCore | None", native_module())
