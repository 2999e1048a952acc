"""Messages of an expiry topic: their properties, and how many of them wait.

A message has the bytes of a message for an events topic, as it will be published there, and these properties:

    second      when the rows of the message expire, in seconds since the epoch
    deliver_at  when the broker is to deliver it, in seconds since the epoch
    target      the events topic partition
    keys        how many rows it has
    probe       "true" for a message without rows, by which the connector sees if the broker delays messages
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Final

from source_connector.events.pulsar_access import PulsarOptions, new_client

__all__ = [
    "DELIVER_AT",
    "EXPIRY_SUBSCRIPTION",
    "KEYS",
    "PROBE",
    "SECOND",
    "TARGET",
    "WaitingExpiries",
    "waiting_expiries",
]

EXPIRY_SUBSCRIPTION: Final = "expiry"
SECOND, DELIVER_AT, TARGET, KEYS, PROBE = "second", "deliver_at", "target", "keys", "probe"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingExpiries:
    """How many keys wait, in how many messages and bytes, and until which second since the epoch (0 if none waits)."""

    keys: int
    messages: int
    bytes: int
    until_s: int


def waiting_expiries(options: PulsarOptions, topic: str, now_s: float) -> WaitingExpiries:
    """The keys that wait on an expiry topic; changes nothing. Raises pulsar.PulsarException."""
    import pulsar

    keys = messages = size = until_s = 0
    with closing(new_client(options, is_quiet=True)) as client:
        if not client.get_topic_partitions(topic):
            return WaitingExpiries(keys=0, messages=0, bytes=0, until_s=0)
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        while reader.has_message_available():
            message = reader.read_next(timeout_millis=10_000)
            properties = message.properties()
            numbers = [properties.get(name, "0") for name in (DELIVER_AT, KEYS, SECOND)]
            if properties.get(PROBE) or not all(map(str.isdecimal, numbers)):
                continue
            deliver_at_s, in_message, second = map(int, numbers)
            if deliver_at_s < now_s:
                continue  # delivered messages stay as long as their ledger
            keys += in_message
            messages += 1
            size += len(message.data())
            until_s = max(until_s, second)
    return WaitingExpiries(keys=keys, messages=messages, bytes=size, until_s=until_s)
