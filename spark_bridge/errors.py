"""Errors of the Spark bridge. Each text is one line: what, where, why, what to do.

CdcError
├─ ConfigError              the options are wrong (schemas.errors)
└─ SparkBridgeError
   ├─ PulsarUnreachableError    admin or broker does not answer: check the address, start it, run again
   ├─ TopicError                the topic is missing, or has no key-value schema
   ├─ TopicReadError            a range of a topic partition could not be read
   └─ TypedReadError            records cannot be given types
"""

from __future__ import annotations

from schemas.errors import CdcError

__all__ = ["PulsarUnreachableError", "SparkBridgeError", "TopicError", "TopicReadError"]


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
