"""The kinds of faults and their lanes. Faults of one lane never overlap; faults of different lanes do."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

__all__ = ["COUNTED", "DESCRIPTIONS", "LANES", "FaultKind"]


class FaultKind(StrEnum):
    """The kinds of faults; the value is the name on the command line."""

    AGENT_KILL = "agent-kill"
    AGENT_RESTART = "agent-restart"
    CHILD_KILL = "child-kill"
    HOST_KILL = "host-kill"
    PULSAR_KILL = "pulsar-kill"
    CASSANDRA_KILL = "cassandra-kill"
    STANDSTILL = "standstill"
    NETWORK_AWAY = "network-away"
    NETWORK_DELAY = "network-delay"
    NETWORK_CUT = "network-cut"
    DISK_CDC_RAW = "disk-cdc-raw"
    DISK_OFFSETS = "disk-offsets"
    DISK_SPILL = "disk-spill"
    IDX_TORN = "idx-torn"
    IDX_EMPTY = "idx-empty"
    IDX_SHRUNK = "idx-shrunk"
    CLOCK_STEP = "clock-step"
    TWO_AGENTS = "two-agents"
    SUBSCRIPTION_REMOVED = "subscription-removed"
    TOPIC_DELETED = "topic-deleted"
    BUNDLE_UNLOADED = "bundle-unloaded"
    PARTITIONS_ADDED = "partitions-added"
    LEVEL_DISALLOWED = "level-disallowed"
    REPLICA_STOPPED = "replica-stopped"
    TABLE_TRUNCATED = "table-truncated"
    RESTART_ALL = "restart-all"


DESCRIPTIONS: Final[dict[FaultKind, str]] = {
    FaultKind.AGENT_KILL: "kill -9 of an agent; it is started again, at once or a moment later",
    FaultKind.AGENT_RESTART: "SIGTERM to an agent, and a start",
    FaultKind.CHILD_KILL: "kill -9 of the connector's Python process",
    FaultKind.HOST_KILL: "kill -9 of the connector's Java host",
    FaultKind.PULSAR_KILL: "kill -9 of Pulsar and all that it runs; it is started again",
    FaultKind.CASSANDRA_KILL: "kill -9 of a Cassandra node; it is started again",
    FaultKind.STANDSTILL: "SIGSTOP for seconds of agent, child, host, Pulsar or a Cassandra node",
    FaultKind.NETWORK_AWAY: "connections between two parts are reset and refused, or stand still, for seconds",
    FaultKind.NETWORK_DELAY: "each packet between two parts is late",
    FaultKind.NETWORK_CUT: "connections between two parts are reset in the middle of a frame",
    FaultKind.DISK_CDC_RAW: "cdc_raw is full: Cassandra refuses writes to tables with CDC",
    FaultKind.DISK_OFFSETS: "the agent can write no file: neither positions nor its schema history",
    FaultKind.DISK_SPILL: "cdc_raw fills up, and what the agent writes to off-load segments to another disk fails",
    FaultKind.IDX_TORN: "an index file has only the first digits of its offset, for a moment",
    FaultKind.IDX_EMPTY: "an index file is empty, for a moment",
    FaultKind.IDX_SHRUNK: "an index file tells a smaller offset than before, for a moment",
    FaultKind.CLOCK_STEP: "the clock of agent and connector steps by up to an hour, forward or back",
    FaultKind.TWO_AGENTS: "a second agent of the same node, in the same working directory or in one of its own: it is kept out",
    FaultKind.SUBSCRIPTION_REMOVED: "an events topic's subscription is removed, while the connector runs or just ended",
    FaultKind.TOPIC_DELETED: "an events topic is deleted by force, while the connector runs or just ended",
    FaultKind.BUNDLE_UNLOADED: "Pulsar unloads bundles and partitions of events topics; the connector has two instances then",
    FaultKind.PARTITIONS_ADDED: "a data topic is given more partitions; it lasts until a record is in one of them",
    FaultKind.LEVEL_DISALLOWED: "a guardrail of Cassandra refuses reads at levels that the connector uses (one node, 4.1 or later)",
    FaultKind.REPLICA_STOPPED: "SIGSTOP of one of several Cassandra nodes for a quarter of a minute or more",
    FaultKind.TABLE_TRUNCATED: "TRUNCATE of a table that is written to, repeated until all nodes have done it",
    FaultKind.RESTART_ALL: "everything is killed, and started in a drawn order",
}
"""One line each, for users."""

COUNTED: Final[dict[FaultKind, str]] = {
    FaultKind.NETWORK_CUT: "connections cut in mid-frame",
    FaultKind.DISK_SPILL: "moves to the spill folder failed",
    FaultKind.LEVEL_DISALLOWED: "reads refused for their level",
    FaultKind.BUNDLE_UNLOADED: "unloads of bundles and partitions",
    FaultKind.PARTITIONS_ADDED: "new partitions have records",
    FaultKind.TABLE_TRUNCATED: "rows were in the table before",
}
"""What a strike counts, for the kinds that may break nothing."""

LANES: Final[dict[FaultKind, str]] = {
    FaultKind.AGENT_KILL: "agent",
    FaultKind.AGENT_RESTART: "agent",
    FaultKind.CLOCK_STEP: "agent",
    FaultKind.TWO_AGENTS: "agent",
    FaultKind.DISK_OFFSETS: "agent",
    FaultKind.SUBSCRIPTION_REMOVED: "agent",
    FaultKind.TOPIC_DELETED: "agent",
    FaultKind.DISK_SPILL: "conditions",
    FaultKind.CHILD_KILL: "connector",
    FaultKind.HOST_KILL: "connector",
    FaultKind.BUNDLE_UNLOADED: "connector",
    FaultKind.PARTITIONS_ADDED: "topics",
    FaultKind.LEVEL_DISALLOWED: "levels",
    FaultKind.TABLE_TRUNCATED: "tables",
    FaultKind.REPLICA_STOPPED: "servers",
    FaultKind.PULSAR_KILL: "servers",
    FaultKind.CASSANDRA_KILL: "servers",
    FaultKind.RESTART_ALL: "servers",
    FaultKind.STANDSTILL: "conditions",
    FaultKind.NETWORK_AWAY: "conditions",
    FaultKind.NETWORK_DELAY: "conditions",
    FaultKind.NETWORK_CUT: "conditions",
    FaultKind.DISK_CDC_RAW: "conditions",
    FaultKind.IDX_TORN: "conditions",
    FaultKind.IDX_EMPTY: "conditions",
    FaultKind.IDX_SHRUNK: "conditions",
}
