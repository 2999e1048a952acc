"""Errors of the source connector, by who has to act.

CdcError
├─ ConfigError              the operator: an option is wrong (schemas.errors)
├─ DeploymentError          the operator: the deployment cannot work; the instance ends with this error
│  └─ EventsTopicError      the same for one events topic: one of several tables waits, the instance goes on
├─ HostProtocolError        nobody: the child process ends, Pulsar starts the instance again
├─ FetchError               the loop: read again after a pause; `refresh_schema` when the table has changed
├─ TableNotFoundError       the loop: wait until the table exists
├─ RowConversionError       the loop: only this row is tried again, then set aside; everything else goes on
├─ UnexpectedError          the same, for an unexpected error
├─ AdminError               nobody: Pulsar does not answer about its policies; asked again later
├─ DeadLettersError         the operator: the dead-letter topic cannot be read, or is a wrong topic
└─ ExpiriesError            the operator: an expiry topic cannot be read
"""

from __future__ import annotations

from schemas.errors import CdcError

__all__ = [
    "AdminError",
    "DeadLettersError",
    "DeploymentError",
    "EventsTopicError",
    "ExpiriesError",
    "FetchError",
    "HostProtocolError",
    "RowConversionError",
    "TableNotFoundError",
    "UnexpectedError",
]


class AdminError(CdcError):
    """Pulsar's admin interface does not answer about or set a topic's policy."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        super().__init__(f"{topic}: {reason}")


class DeadLettersError(CdcError):
    """Dead letters cannot be read or sent again."""


class ExpiriesError(CdcError):
    """The keys that wait on an expiry topic cannot be read."""


class DeploymentError(CdcError):
    """An error at run time that only an operator can correct; Pulsar's restarts only repeat it."""


class EventsTopicError(DeploymentError):
    """A topic among `events.topic` that no agent wrote: it has a schema of another kind."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        super().__init__(f"events.topic: {topic} {reason}")


class HostProtocolError(CdcError):
    """The bytes between host and child are no frames. `frame` is the type byte, if it is known."""

    def __init__(self, reason: str, *, frame: int | None = None) -> None:
        self.frame = frame
        super().__init__(f"host protocol: {reason}" + ("" if frame is None else f" in a frame of type {frame}"))


class FetchError(CdcError):
    """Cassandra did not answer a read.

    `refresh_schema` is True when the statement may no longer fit the table. `is_invalid` is True when Cassandra refused
    the statement as invalid. `is_outage` is True when the cause is not this read but nodes that are down. `is_of_key`
    is True when this key was read alone, and its replicas failed or did not answer.
    """

    def __init__(
        self,
        table: str,
        reason: str,
        *,
        refresh_schema: bool = False,
        is_invalid: bool = False,
        is_outage: bool = False,
        is_of_key: bool = False,
    ) -> None:
        self.table = table
        self.reason = reason
        self.refresh_schema = refresh_schema
        self.is_invalid = is_invalid
        self.is_outage = is_outage
        self.is_of_key = is_of_key
        super().__init__(f"cannot read {table}: {reason}")


class TableNotFoundError(CdcError):
    """The table is not in Cassandra's schema (yet)."""

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(f"table {table} does not exist; create it, or correct the options keyspace and table")


class RowConversionError(CdcError):
    """One row cannot be written with the data topic's schema."""

    def __init__(self, table: str, key: str, reason: str) -> None:
        self.table = table
        self.key = key
        super().__init__(f"row {key} of {table} cannot be converted: {reason}")


class UnexpectedError(CdcError):
    """An unexpected exception in the work for one event."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {' '.join(str(error).split())}")
