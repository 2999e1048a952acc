"""The last request about a source, such as its creation or its start, from the topic of the functions workers.

A worker does not report since when it starts a source. It publishes each request as a `ServiceRequest` (Request.proto of
Pulsar 4), which has the source's name and the wanted state of its instances.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cdc.health.pulsar_service import PulsarService, PulsarServiceError

__all__ = ["WorkerRequest", "last_request"]

# The workers' default: pulsarFunctionsNamespace, functionMetadataTopicName.
_TOPIC: Final = "persistent://public/functions/metadata"
# How many of the newest requests are read.
_MOST: Final = 20
# Fields of the messages in Request.proto and Function.proto.
_METADATA, _DETAILS, _STATES, _STATE = 3, 1, 5, 2
_NAMES: Final = (1, 2, 3)
_STOPPED: Final = 1


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """A request. `age_s`: by Pulsar's clock. `is_stop`: an instance of the source should not run."""

    age_s: float
    is_stop: bool


def last_request(service: PulsarService, namespace: str, name: str, within_s: float) -> WorkerRequest | None:
    """The last request about a source; None if it is older than `within_s`, or not known."""
    try:
        for number in range(1, _MOST + 1):
            content, age_s = service.examined(_TOPIC, number)
            if age_s > within_s:
                return None
            metadata = _first(content, _METADATA)
            details = _first(metadata, _DETAILS)
            if "/".join(_first(details, each).decode() for each in _NAMES) == f"{namespace}/{name}":
                return WorkerRequest(age_s, is_stop=any(_is_stop(each) for each in _all(metadata, _STATES)))
    except (PulsarServiceError, ValueError, IndexError):  # the role may not read it, or it has another name or format
        return None
    return None


def _is_stop(state: bytes) -> bool:
    return any(number == _STATE and value == _STOPPED for number, value in _fields(state))


def _first(message: bytes, wanted: int) -> bytes:
    """The first field of bytes with this number. Raises ValueError."""
    for value in _all(message, wanted):
        return value
    raise ValueError(f"there is no field {wanted}")


def _all(message: bytes, wanted: int) -> Iterator[bytes]:
    return (value for number, value in _fields(message) if number == wanted and isinstance(value, bytes))


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a protobuf message. Raises ValueError and IndexError."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                value, at = _varint(message, at)
                yield key >> 3, value
            case 2:
                length, at = _varint(message, at)
                if at + length > len(message):
                    raise ValueError("a field is cut off")
                yield key >> 3, message[at : at + length]
                at += length
            case 1 | 5 as kind:
                at += 8 if kind == 1 else 4
            case kind:
                raise ValueError(f"{kind} is no wire type")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while message[at] & 0x80:
        value |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | message[at] << shift, at + 1
