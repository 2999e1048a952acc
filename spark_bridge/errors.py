"""Errors of the Spark bridge. Each text is one line: the problem, its place, its cause, and the remedy.

CdcError
├─ ConfigError              the options are wrong (schemas.errors)
└─ SparkBridgeError
   ├─ ArchiveReadError          an archive of commit log segments, or a segment of it, cannot be read
   ├─ CassandraReadError        Cassandra does not answer, or a range of tokens could not be read
   ├─ EventSendError            events could not be published to an events topic
   ├─ PulsarUnreachableError    admin service or broker does not answer: check the address, start it, run again
   │  └─ AccessRefusedError     they refuse access
   ├─ TopicError                the topic is missing, or has no key-value schema
   ├─ TopicReadError            a range of a topic partition could not be read
   ├─ PublishError             records could not be published to a topic of the job `publish`
   ├─ DataLossError             records were deleted before they were read
   │  └─ OtherTopicError        a position belongs to an earlier topic partition of the same name
   ├─ ProgressFileError         a backfill's progress file cannot be used
   ├─ UnresolvedError           a table is not complete until the given time, or this is not known
   ├─ StateFileError            the state of a job cannot be read or written
   │  └─ DamagedStateError      the state is damaged, or of a later version
   └─ CheckpointError           a query's checkpoint does not show the query's position
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from schemas.errors import CdcError

if TYPE_CHECKING:
    from schemas.resolved import TableResolved  # it imports fastavro, which takes longer than all other imports here

__all__ = [
    "AccessRefusedError",
    "ArchiveReadError",
    "CassandraReadError",
    "CheckpointError",
    "DamagedStateError",
    "DataLossError",
    "EventSendError",
    "OtherTopicError",
    "ProgressFileError",
    "PublishError",
    "PulsarUnreachableError",
    "SparkBridgeError",
    "StateFileError",
    "TopicError",
    "TopicReadError",
    "UnresolvedError",
    "reason_of_spark",
]


def reason_of_spark(text: str) -> str:
    """The reason in an error's text: the last line of our own errors in a Python traceback, or else the first line."""
    ours = [line for line in text.splitlines() if line.startswith(("spark_bridge.errors.", "schemas.errors."))]
    return ours[-1].split(": ", 1)[1] if ours else (text.splitlines() or ["it gives no reason"])[0]


class SparkBridgeError(CdcError):
    """Base of all errors of the Spark bridge except ConfigError."""


class _PlaceError(SparkBridgeError):
    """An error at a place (a URL, a topic, a path). `reason` says what is wrong there."""

    _form: ClassVar[str] = "{}: {}"

    def __init__(self, place: str, reason: str) -> None:
        self.place = place
        self.reason = reason
        super().__init__(place, reason)

    def __str__(self) -> str:
        return self._form.format(self.place, self.reason)


class PulsarUnreachableError(_PlaceError):
    """The admin service or the broker gives no usable answer; `place` is its address."""

    _form = "Pulsar at {}: {}"


class AccessRefusedError(PulsarUnreachableError):
    """The admin service or the broker refuses access to a topic."""


class TopicError(_PlaceError):
    """The topic does not exist, or is not a data topic; `place` is its name."""

    _form = "topic {}: {}"


class TopicReadError(SparkBridgeError):
    """Reading of a topic partition stopped after a position (`ledger:entry`, the last entry that was read)."""

    def __init__(self, topic: str, position: str, reason: str) -> None:
        self.topic = topic
        self.position = position
        self.reason = reason
        super().__init__(topic, position, reason)

    def __str__(self) -> str:
        return f"topic partition {self.topic} after position {self.position}: {self.reason}"


class DataLossError(SparkBridgeError):
    """Records between two positions of a topic partition no longer exist and were not read."""

    def __init__(self, topic: str, after: str, before: str) -> None:
        self.topic = topic
        self.after = after
        self.before = before
        super().__init__(topic, after, before)

    def __str__(self) -> str:
        return (
            f"topic partition {self.topic}: records after position {self.after} and before {self.before} were deleted by "
            "retention (or a message TTL) before they were read; build the result again, or continue without them with "
            "failOnDataLoss=false; the option subscription keeps records until they have been read"
        )


class OtherTopicError(DataLossError):
    """A position belongs to an earlier topic partition of this name: the topic was made again, or Pulsar rebuilt.

    `after`: the last position that was read from the earlier topic partition. `before`: the end of the current one.
    """

    def __str__(self) -> str:
        return (
            f"topic partition {self.topic}: position {self.after} belongs to another topic partition than the one of this name that"
            f" exists now, which ends at {self.before}: the topic was deleted and made again, or Pulsar was rebuilt or moved. Records"
            " that were not read before are lost. Fill the topic (cdc spark backfill); then begin again: a mirror with --rebuild,"
            " another query with a new checkpoint; and compare with cdc spark verify"
        )


class ProgressFileError(_PlaceError):
    """A backfill's progress file cannot be used; `place` is its path."""

    _form = "progress file {}: {}; give another one, or delete it to start again"


class StateFileError(_PlaceError):
    """The state of a job cannot be read or written; `place` is its folder."""

    _form = "state in {}: {}; check the path, the rights to it, and that Spark has the library and the settings for its file system"


class DamagedStateError(StateFileError):
    """The newest state in a folder is damaged, or a later version wrote it; `reason` names the remedy."""

    _form = "state in {}: {}"


class CheckpointError(_PlaceError):
    """A query's checkpoint does not show the query's position; `place` is its path."""

    _form = "checkpoint {}: {}; the option checkpointLocation is that of the query itself"


class ArchiveReadError(_PlaceError):
    """A part of an archive of commit log segments cannot be read; `place` is its path or URL."""

    _form = "archive {}: {}"


class CassandraReadError(_PlaceError):
    """Cassandra gives no usable answer; `place` is its address, with the table and the tokens that were read."""

    _form = "Cassandra at {}: {}"


class EventSendError(_PlaceError):
    """Events could not be published to an events topic; `place` is its name."""

    _form = "events topic {}: {}; the ranges before it are published; run the job again for the rest"


class PublishError(_PlaceError):
    """Records could not be published to a topic of the job `publish`.

    Records that are stored are not published again.
    """

    _form = "topic {}: {}"


class UnresolvedError(SparkBridgeError):
    """A table is not complete until the given time, or it is not known until when it is complete."""

    @classmethod
    def unnamed(cls, topic: str) -> Self:
        """The table cannot be derived from the data topic's name."""
        return cls(f"{topic} does not name its table as data-<keyspace>.<table> does; give the option table")

    @classmethod
    def late(cls, found: TableResolved, until_ms: int, timeout_s: float) -> Self:
        """The table was not complete until the given time when the timeout ended."""
        reached = (
            "not known" if found.resolved_ms is None else f"{(until_ms - found.resolved_ms) / 1000:.1f} s before it"
        )
        why = f": {'; '.join(found.problems)}" if found.problems else ""
        return cls(
            f"{found.table} is not complete until the given time, after {timeout_s:g} s; it is {reached}{why};"
            " cdc status shows what stands still"
        )
