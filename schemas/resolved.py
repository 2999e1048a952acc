"""Resolved timestamps: the time up to which a table's data topic is complete.

They come from the nodes' progress and the connector's cursor. Every write that Cassandra acknowledged before a table's
resolved timestamp is in its data topic. For each node, the newest checkpoint counts whose positions the connector's
subscription has passed, because the connector acknowledges an event when the data topic has its row. The resolved
timestamp is the lowest of these times. Times are those of the nodes' clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from schemas.progress_record import UNKNOWN_POSITION, Checkpoint, Peer, ProgressRecord, TableProgress, TopicPosition

__all__ = [
    "DEAD_LETTERS",
    "NOT_READ",
    "NodeResolved",
    "PartitionCursor",
    "TableResolved",
    "pinned",
    "resolved_of",
    "utc_text",
]

# The reasons of a node whose agent has published everything.
DEAD_LETTERS: Final = "events of it are dead letters: see cdc connector dead-letters, then run cdc connector resend"
NOT_READ: Final = "the connector has not read all of its events yet"
_NOT_PUBLISHED: Final = "its agent has not published everything of this table"

_FRESH_MS: Final = 60_000
_SILENT_MS: Final = 30_000
# Longer than three syncs of 10 s: without a memory map, a moment passes only then.
_STANDS_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCursor:
    """A partition of the events topic: up to where the subscription has acknowledged all, and the last entry.

    If the partition has no message, `end` is UNKNOWN_POSITION. `is_held`: an event after `consumed` was acknowledged
    only because it is a dead letter.
    """

    consumed: TopicPosition
    end: TopicPosition = UNKNOWN_POSITION
    is_held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResolved:
    """The time up to which the data topic has one node's writes; None if not known.

    `why` is the reason why no newer time counts, if there is one.
    """

    node_id: UUID
    address: str
    resolved_ms: int | None
    why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResolved:
    """A table's resolved timestamp, in milliseconds since the epoch; None if there is none.

    `problems` are for people.
    """

    table: str
    resolved_ms: int | None
    nodes: Sequence[NodeResolved]
    problems: Sequence[str]


def pinned(checkpoint: Checkpoint, partitions: Sequence[PartitionCursor]) -> Checkpoint:
    """The checkpoint with the ends of the partitions in place of unknown positions.

    The ends must have been looked up after the checkpoint was published.
    """
    known = [*checkpoint.positions[: len(partitions)]]
    known += [UNKNOWN_POSITION] * (len(partitions) - len(known))
    return Checkpoint(
        checkpoint.resolved_ms,
        tuple(
            cursor.end if position == UNKNOWN_POSITION else position
            for position, cursor in zip(known, partitions, strict=True)
        ),
    )


def resolved_of(
    table: str,
    records: Mapping[UUID, ProgressRecord],
    earlier: Mapping[UUID, Sequence[Checkpoint]],
    partitions: Sequence[PartitionCursor],
    now_ms: int,
) -> TableResolved:
    """The resolved timestamp of `keyspace.table`.

    `records` are the newest records by node. `earlier` are checkpoints that were pinned before. `partitions` are those
    of the events topic, looked up after the records; empty if there is no topic, because nothing was ever published.
    """
    nodes = [
        _node(table, peer, records.get(peer.host_id), earlier.get(peer.host_id, ()), partitions, now_ms)
        for peer in _members(table, records)
    ]
    times = [each.resolved_ms for each in nodes if each.resolved_ms is not None]
    problems = [f"node {each.address or each.node_id}: {each.why}" for each in nodes if each.why is not None]
    is_known = bool(nodes) and len(times) == len(nodes)
    if not nodes:
        problems.append("no agent has published its progress")
    problems += _without(table, records, nodes)
    return TableResolved(table=table, resolved_ms=min(times) if is_known else None, nodes=nodes, problems=problems)


def _node(
    table: str,
    peer: Peer,
    record: ProgressRecord | None,
    earlier: Sequence[Checkpoint],
    partitions: Sequence[PartitionCursor],
    now_ms: int,
) -> NodeResolved:
    if record is None:
        why = "its agent has not published its progress: start it, or let it publish (progressIntervalMs)"
        return NodeResolved(node_id=peer.host_id, address=peer.address, resolved_ms=None, why=why)
    progress = next((each for each in record.tables if each.name == table), None)
    if progress is None:
        why = "its agent does not publish this table"
        return NodeResolved(node_id=peer.host_id, address=peer.address, resolved_ms=None, why=why)
    # A checkpoint with more positions than the topic has partitions is of an earlier topic with the same name.
    # An agent whose newest record has no checkpoints has withdrawn the earlier ones: the events topic was lost.
    known = (*progress.checkpoints, *earlier) if progress.checkpoints else ()
    candidates = [each for each in known if len(each.positions) <= len(partitions)]
    passed = [each.resolved_ms for each in candidates if _is_passed(pinned(each, partitions), partitions)]
    newest = max((each.resolved_ms for each in progress.checkpoints), default=None)
    resolved = max(passed, default=None)
    return NodeResolved(
        node_id=peer.host_id,
        address=peer.address,
        resolved_ms=resolved,
        why=_why(record, progress, newest, resolved, now_ms, is_held=any(each.is_held for each in partitions)),
    )


def _why(
    record: ProgressRecord,
    progress: TableProgress,
    newest: int | None,
    resolved: int | None,
    now_ms: int,
    *,
    is_held: bool,
) -> str | None:
    silent_s = (now_ms - record.published_ms) // 1000
    if progress.stopped is not None:
        return progress.stopped
    if now_ms - record.published_ms > _SILENT_MS:
        return f"its agent has not reported for {silent_s} s"
    if record.behind is not None:
        return record.behind
    if newest is None:
        return f"{_NOT_PUBLISHED} yet"
    if is_held and resolved != newest:
        return DEAD_LETTERS
    if resolved is None or newest - resolved > _SILENT_MS:
        return NOT_READ
    if record.published_ms - newest > _STANDS_MS:
        return f"{_NOT_PUBLISHED} for {(record.published_ms - newest) // 1000} s"
    return None


def _is_passed(checkpoint: Checkpoint, partitions: Sequence[PartitionCursor]) -> bool:
    positions = zip(checkpoint.positions, partitions, strict=True)
    return all(cursor.consumed >= position for position, cursor in positions)


def _members(table: str, records: Mapping[UUID, ProgressRecord]) -> list[Peer]:
    """Nodes that may have accepted a write of the table, by id: nodes of the cluster, and nodes with a record."""
    newest_ms = max((each.published_ms for each in records.values()), default=0)
    fresh = [each for each in records.values() if newest_ms - each.published_ms < _FRESH_MS]
    members: dict[UUID, Peer] = {each.node_id: Peer(each.node_id, "", "") for each in records.values()}
    for record in sorted(fresh, key=lambda each: each.published_ms):
        members |= {each.host_id: each for each in record.peers}
    centers = _data_centers(table, fresh)
    # A node counts unless it is known to be in another data center.
    wanted = [each for each in members.values() if not centers or not each.data_center or each.data_center in centers]
    return sorted(wanted, key=lambda each: each.host_id.bytes)


def _replications(table: str, records: Iterable[ProgressRecord]) -> list[Mapping[str, str]]:
    """The replication of the table's keyspace in each record, the newest first: an agent may not know a change yet."""
    keyspace = table.partition(".")[0]
    known = [each for each in records if keyspace in each.replication]
    return [each.replication[keyspace] for each in sorted(known, key=lambda each: -each.published_ms)]


def _data_centers(table: str, records: Iterable[ProgressRecord]) -> set[str]:
    """Data centers with replicas of the table by any record; empty if all data centers may have replicas."""
    found = _replications(table, records)
    if not all(each.get("class", "").endswith("NetworkTopologyStrategy") for each in found):
        return set()
    counts = [(name, count) for each in found for name, count in each.items()]
    return {name for name, count in counts if name not in ("class", "replication_factor") and count != "0"}


def _without(table: str, records: Mapping[UUID, ProgressRecord], nodes: Sequence[NodeResolved]) -> list[str]:
    """A line with the timestamp without the nodes that have a problem; empty if there is no such node, or no other."""
    late = [each for each in nodes if each.why is not None]
    others = [each.resolved_ms for each in nodes if each.why is None and each.resolved_ms is not None]
    if not late or not others:
        return []
    options = next(iter(_replications(table, records.values())), {})
    factors = {name: count for name, count in options.items() if name != "class"}
    told = ", ".join(f"{name} {count}" for name, count in sorted(factors.items())) or "not known"
    return [
        f"without {'this node' if len(late) == 1 else f'these {len(late)} nodes'} the table is complete until"
        f" {utc_text(min(others))} for writes that at least {len(late) + 1} replicas had answered (replication: {told})"
    ]


def utc_text(time_ms: int) -> str:
    """A time since the epoch as text: `2026-11-24T21:05:03.120Z`."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
