"""Names of topics. Tables are named `<keyspace>.<table>` behind a prefix that may hold tenant and namespace."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

__all__ = [
    "DEFAULT_EVENTS_PREFIX",
    "DEFAULT_SUBSCRIPTION",
    "events_topic",
    "full_topic_name",
    "partition_of_token",
    "rest_path",
    "schema_changes_topic",
]

# Not DataStax's `events-`: a broker refuses two kinds of schema on one topic.
DEFAULT_EVENTS_PREFIX: Final = "persistent://public/default/cdc-events-"
DEFAULT_SUBSCRIPTION: Final = "sub"


def events_topic(keyspace: str, table: str, prefix: str = DEFAULT_EVENTS_PREFIX) -> str:
    """The full name of a table's events topic."""
    return full_topic_name(f"{prefix}{keyspace}.{table}")


def schema_changes_topic(events: str, keyspace: str, table: str) -> str:
    """Where changes of definitions are told: `schema-changes` behind the prefix of this events topic of the table.

    Behind the default prefix, when the topic's name has another form.
    """
    name = f"{keyspace}.{table}"
    prefix = events.removesuffix(name) if events.endswith(name) else DEFAULT_EVENTS_PREFIX
    return f"{prefix}schema-changes"


def full_topic_name(topic: str) -> str:
    """`persistent://tenant/namespace/name` for a name that may be short, as Pulsar's clients complete it."""
    if "://" in topic:
        return topic
    if topic.count("/") == 2:
        return f"persistent://{topic}"
    return f"persistent://public/default/{topic}"


def rest_path(topic: str) -> str:
    """A topic's full name as Pulsar's admin interface has it in paths: `tenant/namespace/name`, quoted."""
    return "/".join(quote(part, safe="") for part in topic.removeprefix("persistent://").split("/"))


def partition_of_token(token: int, partitions: int) -> int:
    """The topic partition of a Murmur3 token: its top 16 bits, from the smallest token to the largest, modulo.

    DataStax's rule: `((int16)(token >>> 48) + 32768) % partitions`.
    """
    return ((token >> 48) + 32_768) % partitions
