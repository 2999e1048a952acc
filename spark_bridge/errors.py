"""Errors of the Spark bridge. Each text is one line: what, where, why, what to do.

CdcError
├─ ConfigError              the options are wrong (schemas.errors)
└─ SparkBridgeError
   ├─ ArchiveReadError          an archive of commit log segments, or a segment of it, cannot be read
   ├─ CassandraReadError        Cassandra does not answer, or a range of tokens could not be read
   ├─ EventSendError            events could not be published to an events topic
   ├─ PulsarUnreachableError    admin or broker does not answer: check the address, start it, run again
   ├─ TopicError                the topic is missing, or has no key-value schema
   ├─ TopicReadError            a range of a topic partition could not be read
   ├─ DataLossError             records were dropped before they were read
   ├─ ProgressFileError         a backfill's progress file cannot be used
   ├─ StateFileError            how far a job has come cannot be read or written
   └─ CheckpointError           a query's checkpoint does not tell where the query stands
"""

from __future__ import annotations

from schemas.errors import CdcError

__all__ = [
    "ArchiveReadError",
    "CassandraReadError",
    "CheckpointError",
    "DataLossError",
    "EventSendError",
    "OtherTopicError",
    "ProgressFileError",
    "PulsarUnreachableError",
    "SparkBridgeError",
    "StateFileError",
    "TopicError",
    "TopicReadError",
]


class SparkBridgeError(CdcError):
    """Root of what the Spark bridge raises besides ConfigError."""


class PulsarUnreachableError(SparkBridgeError):
    """The admin service or the broker gives no usable answer."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(url, reason)

    def __str__(self) -> str:
        return f"Pulsar at {self.url}: {self.reason}"


class TopicError(SparkBridgeError):
    """The topic does not exist, or is not a data topic."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        self.reason = reason
        super().__init__(topic, reason)

    def __str__(self) -> str:
        return f"topic {self.topic}: {self.reason}"


class TopicReadError(SparkBridgeError):
    """Reading a topic partition stopped at a position (`ledger:entry`, the last one that was read)."""

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
            f"topic partition {self.topic}: what came after position {self.after} and before {self.before} was dropped by "
            "retention (or a message TTL) before it was read; build the result anew, or continue without it with "
            "failOnDataLoss=false; the option subscription keeps records until they have been read"
        )


class OtherTopicError(DataLossError):
    """A position is not of the topic partition that has its name now: it was made again, or Pulsar was rebuilt.

    `after` was read of the one before; the one that is there now ends at `before`.
    """

    def __str__(self) -> str:
        return (
            f"topic partition {self.topic}: position {self.after} was read of another topic partition than the one of this name that "
            f"is there now, which ends at {self.before}: the topic was deleted and made again, or Pulsar was rebuilt or moved. What "
            "was not read before is lost here. Fill the topic (cdc spark backfill); then begin anew: a mirror with --rebuild, "
            "another query with a new checkpoint; and let cdc spark verify compare"
        )


class ProgressFileError(SparkBridgeError):
    """A backfill's progress file cannot be used."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(path, reason)

    def __str__(self) -> str:
        return f"progress file {self.path}: {self.reason}; give another one, or delete it to start anew"


class StateFileError(SparkBridgeError):
    """How far a job has come cannot be read or written."""

    def __init__(self, folder: str, reason: str) -> None:
        self.folder = folder
        self.reason = reason
        super().__init__(folder, reason)

    def __str__(self) -> str:
        return (
            f"state in {self.folder}: {self.reason}; check the path, the rights to it, and that Spark has the library and the "
            "settings for its file system"
        )


class CheckpointError(SparkBridgeError):
    """A query's checkpoint does not tell where the query stands."""

    def __init__(self, location: str, reason: str) -> None:
        self.location = location
        self.reason = reason
        super().__init__(location, reason)

    def __str__(self) -> str:
        return f"checkpoint {self.location}: {self.reason}; the option checkpointLocation is that of the query itself"


class ArchiveReadError(SparkBridgeError):
    """Something of an archive of commit log segments cannot be read; `place` is its path or URL."""

    def __init__(self, place: str, reason: str) -> None:
        self.place = place
        self.reason = reason
        super().__init__(place, reason)

    def __str__(self) -> str:
        return f"archive {self.place}: {self.reason}"


class CassandraReadError(SparkBridgeError):
    """Cassandra gives no usable answer; `place` is its address, and the table and tokens that were read."""

    def __init__(self, place: str, reason: str) -> None:
        self.place = place
        self.reason = reason
        super().__init__(place, reason)

    def __str__(self) -> str:
        return f"Cassandra at {self.place}: {self.reason}"


class EventSendError(SparkBridgeError):
    """Events could not be published to an events topic."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        self.reason = reason
        super().__init__(topic, reason)

    def __str__(self) -> str:
        return f"events topic {self.topic}: {self.reason}; what was published before is read, run the job again for the rest"
