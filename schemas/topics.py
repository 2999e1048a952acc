"""Names of topics. A table's topic is a prefix, which may contain tenant and namespace, and `<keyspace>.<table>`."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

__all__ = [
    "DEFAULT_DATA_PREFIX",
    "DEFAULT_EVENTS_PREFIX",
    "DEFAULT_SUBSCRIPTION",
    "RESEND_SUBSCRIPTION",
    "dead_letters_topic",
    "events_topic",
    "expiry_topic",
    "full_topic_name",
    "partition_of_token",
    "rest_path",
    "schema_changes_topic",
]

# Not DataStax's `events-`: a broker refuses two kinds of schema on one topic.
DEFAULT_EVENTS_PREFIX: Final = "persistent://public/default/cdc-events-"
DEFAULT_DATA_PREFIX: Final = "persistent://public/default/data-"
DEFAULT_SUBSCRIPTION: Final = "sub"
RESEND_SUBSCRIPTION: Final = "resend"
"""Subscription of a dead-letter topic. Dead letters that it has not acknowledged wait for `cdc connector resend`."""


def events_topic(keyspace: str, table: str, prefix: str = DEFAULT_EVENTS_PREFIX) -> str:
    """The full name of a table's events topic."""
    return full_topic_name(f"{prefix}{keyspace}.{table}")


def dead_letters_topic(events: str) -> str:
    """The full name of the dead-letter topic for an events topic, or for a prefix of such topics.

    Each namespace has one.
    """
    return f"{full_topic_name(events).rpartition('/')[0]}/cdc-dead-letters"


def schema_changes_topic(events: str, keyspace: str, table: str) -> str:
    """The topic of changed table definitions: the prefix of this table's events topic, and `schema-changes`.

    The prefix is the default one if the events topic's name does not end with the table's name.
    """
    return f"{_prefix_of(events, keyspace, table)}schema-changes"


def expiry_topic(events: str, keyspace: str, table: str) -> str:
    """The topic where rows wait for the second in which they expire: the same prefix, and `expiry-<keyspace>.<table>`.

    No keyspace name can have a hyphen, so it is not the events topic of another table.
    """
    return f"{_prefix_of(events, keyspace, table)}expiry-{keyspace}.{table}"


def _prefix_of(events: str, keyspace: str, table: str) -> str:
    name = f"{keyspace}.{table}"
    return events.removesuffix(name) if events.endswith(name) else DEFAULT_EVENTS_PREFIX


def full_topic_name(topic: str) -> str:
    """`persistent://tenant/namespace/name` of a name that may be short, completed as Pulsar's clients do."""
    if "://" in topic:
        return topic
    if topic.count("/") == 2:
        return f"persistent://{topic}"
    return f"persistent://public/default/{topic}"


def rest_path(topic: str) -> str:
    """A topic's full name as in paths of Pulsar's admin interface: `tenant/namespace/name`, quoted."""
    return "/".join(quote(part, safe="") for part in topic.removeprefix("persistent://").split("/"))


def partition_of_token(token: int, partitions: int) -> int:
    """The topic partition of a Murmur3 token: its top 16 bits, counted from the smallest token, modulo `partitions`.

    DataStax's rule: `((int16)(token >>> 48) + 32768) % partitions`.
    """
    return ((token >> 48) + 32_768) % partitions
