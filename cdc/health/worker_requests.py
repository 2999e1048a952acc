"""The last request about a source, such as its creation or its start, from the topic of the functions workers.

A worker does not report since when it starts a source. It publishes each request as a `ServiceRequest` (Request.proto of
Pulsar 4), which has the source's name and the wanted state of its instances.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cdc.health.pulsar_service import PulsarService, PulsarServiceError
from spark_bridge.topics.protobuf import first_bytes, parsed

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
            metadata = parsed(first_bytes(parsed(content), _METADATA))
            details = parsed(first_bytes(metadata, _DETAILS))
            if not details:
                return None
            if "/".join(first_bytes(details, each).decode() for each in _NAMES) == f"{namespace}/{name}":
                states = [parsed(each) for each in metadata.get(_STATES, ()) if isinstance(each, bytes)]
                return WorkerRequest(age_s, is_stop=any(_STOPPED in each.get(_STATE, ()) for each in states))
    except (PulsarServiceError, ValueError):  # the role may not read it, or it has another name or format
        return None
    return None
