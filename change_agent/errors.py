"""Errors of the change agent, by what the agent or its operator has to do.

    CdcError
    ├─ PublishError                  topic, reason: try again, later
    │  ├─ PartitionsChangedError     the operator has to do something; other topics go on
    │  ├─ TopicLostError             the topic, or its subscription, is gone: events that it had may be lost
    │  └─ NodeTakenError             another agent has the node: wait until it ends
    ├─ StateFormatError              the operator: stored state is a newer version's; run that one
    ├─ KeyStoreError                 reason: the key store, or a password, of encrypted commit logs is wrong
    └─ CommitLogReadError            reason, segment, position
       ├─ SegmentFileError           the file cannot be opened or read now (rights, disk): try again, later
       ├─ BufferUnderflowError       the bytes end too early: more may come, else the segment is cut
       ├─ ChecksumMismatchError      bytes are not what Cassandra wrote: keep the segment, report it
       ├─ MalformedSegmentError      checksums agree and the framing is impossible: the same
       ├─ MalformedMutationError     checksums agree and the mutation does not fit the schema we know: the same
       ├─ UnknownTableError          table_id: refresh the schema, then try again
       ├─ UnknownColumnError         table, column: refresh the schema, then try again
       ├─ NativeCoreError            the native core has a defect: plain Python reads the entry, tell the developers
       ├─ UnsupportedVersionError    version: leave the segment alone
       ├─ UnsupportedEncodingError   encoding: leave the segment alone
       └─ SegmentKeyError            key_alias: leave the segment alone, the operator has the key

`reason` and `segment` are the words of o.a.c.db.commitlog.CommitLogReadHandler.CommitLogReadException.
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
    """Which bytes of a segment are not what Cassandra wrote, for those who count."""

    HEADER = "header"
    SYNC_MARKER = "sync_marker"
    SECTION = "section"
    """What a section was compressed or encrypted to."""
    ENTRY_SIZE = "entry_size"
    """The size of an entry, or its checksum: nothing after it can be found."""
    ENTRY = "entry"
    """A mutation, or its checksum: the entry after it can be found."""
    ZEROS = "zeros"
    """Zeros in the middle of the log."""
    CUT = "cut"
    """The file ends before its last section does."""


class PublishError(CdcError):
    """An events topic cannot be used now. `reason` says what the broker or the client said."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"{topic}: {reason}")
        self.topic = topic
        self.reason = reason


class PartitionsChangedError(PublishError):
    """A topic has another number of partitions than when it was first published to."""


class TopicLostError(PublishError):
    """A topic does not exist, or the connector's subscription does not: nobody holds the events."""


class NodeTakenError(PublishError):
    """Another agent for the same node is connected."""


class StateFormatError(CdcError):
    """Stored state of a format that this version does not know: a newer version wrote it. Nothing of it was changed."""

    def __init__(self, path: str, found: object, known: int) -> None:
        super().__init__(
            f"{path} is of format {found}, and this version knows {known}: a newer version of the agent wrote it; run that"
            " version, or move the working directory away and every segment in cdc_raw is read again"
        )


class KeyStoreError(CdcError):
    """A key store cannot be read. Its text never holds a password, a key, or bytes of the store."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CommitLogReadError(CdcError):
    """A commit log segment, or one mutation of it, cannot be read.

    The decoder is pure: it knows neither file nor place. Who does adds them by :meth:`with_location`. `position` is a
    place in the segment as Cassandra counts: the end of the entry when a mutation is meant, else where reading stopped.
    `damage` is None where the segment itself is not at fault.
    """

    damage: Damage | None = None

    def __init__(self, reason: str, *, segment: str | None = None, position: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.segment = segment
        self.position = position

    def with_location(self, segment: str, position: int) -> Self:
        """This error, with the place where it happened; known parts of the place stay."""
        self.segment = segment if self.segment is None else self.segment
        self.position = position if self.position is None else self.position
        return self

    def because(self, cause: BaseException) -> Self:
        """This error with its cause, as `raise ... from` gives it, which mypyc does not do in compiled modules."""
        self.__cause__ = cause
        return self

    def __str__(self) -> str:
        where = [] if self.segment is None else [self.segment]
        where += [] if self.position is None else [f"position {self.position}"]
        return f"{', '.join(where)}: {self.reason}" if where else self.reason


class SegmentFileError(CommitLogReadError):
    """The system refuses the file, or has it no more; it says nothing about what is in it."""


class BufferUnderflowError(CommitLogReadError):
    """The bytes end before what they announce."""

    damage = Damage.CUT


class ChecksumMismatchError(CommitLogReadError):
    """A CRC does not match. `resume_position` is where the next entry starts, when the size can still be trusted."""

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
    """A segment whose header, sync markers, sections or entry sizes cannot be true."""

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
    """A mutation that does not fit the schema it is read with, or that Cassandra would not have written."""


class NativeCoreError(CommitLogReadError):
    """The native core broke off at an entry: a defect of it, which says nothing about the bytes."""

    def __init__(self, message: str, *, segment: str | None = None, position: int | None = None) -> None:
        super().__init__(f"the native core broke off ({message})", segment=segment, position=position)


class UnknownTableError(CommitLogReadError):
    """A mutation of a table that is not known. A mutation carries no types, so nothing behind it can be read."""

    def __init__(self, table_id: UUID) -> None:
        super().__init__(f"table id {table_id} is not in the known schema; read the schema again")
        self.table_id = table_id


class UnknownColumnError(CommitLogReadError):
    """A mutation names a column that its table neither has nor had. `table` is `keyspace.table`."""

    def __init__(self, table: str, column: str) -> None:
        super().__init__(f"table {table} has no column {column!r} in the known schema; read the schema again")
        self.table = table
        self.column = column


class UnsupportedVersionError(CommitLogReadError):
    """A commit log version that this program does not read."""

    def __init__(self, version: int, supported: str) -> None:
        super().__init__(f"commit log version {version} is not supported (supported: {supported}); the segment stays")
        self.version = version


class UnsupportedEncodingError(CommitLogReadError):
    """A compressed or encrypted segment of a kind that this program does not read. `encoding` names it."""

    def __init__(self, encoding: str, supported: str) -> None:
        super().__init__(f"{encoding} commit logs are not supported (supported: {supported}); the segment stays")
        self.encoding = encoding


class SegmentKeyError(CommitLogReadError):
    """An encrypted segment whose key cannot be had. `key_alias` is the name that its header gives."""

    def __init__(self, key_alias: str, reason: str) -> None:
        super().__init__(f"the segment is encrypted with the key {key_alias!r}: {reason}; the segment stays")
        self.key_alias = key_alias
