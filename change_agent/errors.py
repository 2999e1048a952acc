"""Errors of the change agent, with what the agent or its operator has to do.

    CdcError
    ├─ PublishError                  topic, reason: retry later
    │  ├─ PartitionsChangedError     the operator has to do something; other topics go on
    │  ├─ TopicLostError             the topic or its subscription is gone: its events may be lost
    │  └─ NodeTakenError             another agent has the node: wait until it ends
    ├─ StateFormatError              the operator: stored state is a newer version's; run that one
    ├─ KeyStoreError                 reason: the key store, or a password, of encrypted commit logs is wrong
    └─ CommitLogReadError            reason, segment, position
       ├─ SegmentFileError           the file cannot be opened or read now (permissions, disk): retry later
       ├─ BufferUnderflowError       the bytes end too early: more may come, else the segment is cut
       ├─ ChecksumMismatchError      bytes are not what Cassandra wrote: keep the segment, report it
       ├─ MalformedSegmentError      the checksums match but the framing is impossible: keep the segment, report it
       ├─ MalformedMutationError     the checksums match but the mutation does not fit the known schema: the same
       ├─ UnknownTableError          table_id: refresh the schema, then retry
       ├─ UnknownColumnError         table, column: refresh the schema, then retry
       ├─ NativeCoreError            the native core has a defect: plain Python reads the entry, tell the developers
       ├─ UnsupportedVersionError    version: leave the segment alone
       ├─ UnsupportedEncodingError   encoding: leave the segment alone
       └─ SegmentKeyError            key_alias: leave the segment alone, the operator has the key

The names `reason` and `segment` come from o.a.c.db.commitlog.CommitLogReadHandler.CommitLogReadException.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self
from uuid import UUID

from schemas.errors import CdcError

__all__ = [
    "BufferUnderflowError",
    "ChecksumMismatchError",
    "CommitLogReadError",
    "Damage",
    "KeyStoreError",
    "MalformedMutationError",
    "MalformedSegmentError",
    "NativeCoreError",
    "NodeTakenError",
    "PartitionsChangedError",
    "PublishError",
    "SegmentFileError",
    "SegmentKeyError",
    "StateFormatError",
    "TopicLostError",
    "UnknownColumnError",
    "UnknownTableError",
    "UnsupportedEncodingError",
    "UnsupportedVersionError",
]


class Damage(StrEnum):
    """The part of a segment that is not what Cassandra wrote. Metrics count damage by it."""

    HEADER = "header"
    SYNC_MARKER = "sync_marker"
    SECTION = "section"
    """The compressed or encrypted bytes of a section."""
    ENTRY_SIZE = "entry_size"
    """The size of an entry, or the checksum of the size: the next entry cannot be found."""
    ENTRY = "entry"
    """A mutation, or its checksum: the next entry can be found."""
    ZEROS = "zeros"
    """Zeros in the middle of the log."""
    CUT = "cut"
    """The file ends before the end of its last section."""


class PublishError(CdcError):
    """A topic cannot be used now. `reason` is the broker's or the client's message."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"{topic}: {reason}")
        self.topic = topic
        self.reason = reason


class PartitionsChangedError(PublishError):
    """The number of a topic's partitions has changed since the agent first published to it."""


class TopicLostError(PublishError):
    """A topic, or the connector's subscription on it, does not exist: the broker does not keep the events."""


class NodeTakenError(PublishError):
    """Another agent for the same node is connected."""


class StateFormatError(CdcError):
    """A newer version of the agent wrote the stored state, in a format that this version does not know.

    The stored state was not changed.
    """

    def __init__(self, path: str, found: object, known: int) -> None:
        super().__init__(
            f"{path} is of format {found}, and this version knows {known}: a newer version of the agent wrote it; run that"
            " version, or move the working directory away and every segment in cdc_raw is read again"
        )


class KeyStoreError(CdcError):
    """A key store cannot be read. The error's text never contains a password, a key, or bytes of the store."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CommitLogReadError(CdcError):
    """A commit log segment, or one mutation of it, cannot be read.

    The decoder is pure: it knows neither the file nor the position. Its caller adds them with :meth:`with_location`.
    `position` is Cassandra's position in the segment: the end of the entry if the error is about a mutation, else the
    position where reading stopped. `damage` is None if the segment itself is not damaged.
    """

    damage: Damage | None = None

    def __init__(self, reason: str, *, segment: str | None = None, position: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.segment = segment
        self.position = position

    def with_location(self, segment: str, position: int) -> Self:
        """This error with segment and position. Values that it has already stay."""
        self.segment = segment if self.segment is None else self.segment
        self.position = position if self.position is None else self.position
        return self

    def because(self, cause: BaseException) -> Self:
        """This error with its cause. Compiled modules use it because mypyc ignores the cause in `raise ... from`."""
        self.__cause__ = cause
        return self

    def __str__(self) -> str:
        where = [] if self.segment is None else [self.segment]
        where += [] if self.position is None else [f"position {self.position}"]
        return f"{', '.join(where)}: {self.reason}" if where else self.reason


class SegmentFileError(CommitLogReadError):
    """The file cannot be opened or read, or no longer exists. This says nothing about its content."""


class BufferUnderflowError(CommitLogReadError):
    """The bytes end before the length that they announce."""

    damage = Damage.CUT


class ChecksumMismatchError(CommitLogReadError):
    """A CRC does not match.

    `resume_position` is where the next entry starts; None if the size of the entry cannot be trusted.
    """

    def __init__(
        self,
        reason: str,
        *,
        damage: Damage,
        segment: str | None = None,
        position: int | None = None,
        resume_position: int | None = None,
    ) -> None:
        super().__init__(reason, segment=segment, position=position)
        self.damage = damage
        self.resume_position = resume_position


class MalformedSegmentError(CommitLogReadError):
    """A segment with an impossible header, sync marker, section or entry size."""

    def __init__(
        self,
        reason: str,
        *,
        damage: Damage = Damage.SECTION,
        segment: str | None = None,
        position: int | None = None,
    ) -> None:
        super().__init__(reason, segment=segment, position=position)
        self.damage = damage


class MalformedMutationError(CommitLogReadError):
    """A mutation that does not fit the schema that it is read with, or that Cassandra would not write."""


class NativeCoreError(CommitLogReadError):
    """The native core failed at an entry: a defect of the core, not of the bytes."""

    def __init__(self, message: str, *, segment: str | None = None, position: int | None = None) -> None:
        super().__init__(f"the native core broke off ({message})", segment=segment, position=position)


class UnknownTableError(CommitLogReadError):
    """A mutation of an unknown table. A mutation has no types, so the rest of the entry cannot be read."""

    def __init__(self, table_id: UUID) -> None:
        super().__init__(f"table id {table_id} is not in the known schema; read the schema again")
        self.table_id = table_id


class UnknownColumnError(CommitLogReadError):
    """A mutation names a column that is neither a column nor a dropped column of its table.

    `table` is `keyspace.table`.
    """

    def __init__(self, table: str, column: str) -> None:
        super().__init__(f"table {table} has no column {column!r} in the known schema; read the schema again")
        self.table = table
        self.column = column


class UnsupportedVersionError(CommitLogReadError):
    """A commit log version that the agent does not support."""

    def __init__(self, version: int, supported: str) -> None:
        super().__init__(f"commit log version {version} is not supported (supported: {supported}); the segment stays")
        self.version = version


class UnsupportedEncodingError(CommitLogReadError):
    """A compressed or encrypted segment that the agent does not support. `encoding` names the compressor or cipher."""

    def __init__(self, encoding: str, supported: str) -> None:
        super().__init__(f"{encoding} commit logs are not supported (supported: {supported}); the segment stays")
        self.encoding = encoding


class SegmentKeyError(CommitLogReadError):
    """An encrypted segment for which there is no key. `key_alias` is the key's name in the segment's header."""

    def __init__(self, key_alias: str, reason: str) -> None:
        super().__init__(f"the segment is encrypted with the key {key_alias!r}: {reason}; the segment stays")
        self.key_alias = key_alias
