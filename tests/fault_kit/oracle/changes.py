"""Compares the changes that Cassandra's own reader finds in the kept segments with the events that the agents
published."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.fault_kit.oracle.gaps import Gap, in_a_gap
from tests.fault_kit.oracle.topics import Event

__all__ = ["Change", "Judged", "compare_events", "covered", "order_problems"]

_SHOWN: Final = 20

Change = tuple[int, int, str, str, str, tuple[str | None, ...], object]
"""Segment, end of the entry, table id, kind, partition key, clustering, bounds. A row and its deletion have the same
kind."""


@dataclass(slots=True)
class Judged:
    """Changes of one node, as Cassandra's reader returns them. `optional` are changes only to columns that were dropped
    since: the topics may lack them."""

    changes: set[Change] = field(default_factory=set)
    optional: set[Change] = field(default_factory=set)
    _entries: set[tuple[int, int]] = field(default_factory=set)

    def add(self, lines: Iterable[str], keyspace: str, tracked: Sequence[str], columns: Mapping[str, set[str]]) -> None:
        """Take the reader's lines. An entry counts once, as it is read with the first, the oldest schema.

        `columns`: table -> its columns at the end of the run.
        """
        entries: set[tuple[int, int]] = set()
        mark = f'"keyspace": "{keyspace}"'
        for line in lines:
            if mark not in line:
                continue
            mutation = json.loads(line)
            segment = int(mutation["segment"].removesuffix(".log").rpartition("-")[2])
            place = segment, int(mutation["position"])
            if place in self._entries:
                continue
            entries.add(place)
            for update in mutation["updates"]:
                if update["table"] in tracked:
                    self._add(place, update, columns[update["table"]])
        self._entries |= entries

    def _add(self, place: tuple[int, int], update: Mapping[str, Any], columns: set[str]) -> None:
        for kind, clustering, bounds, written in _changes(update):
            change = (*place, update["table_id"], kind, update["partition_key"], clustering, bounds)
            self.changes.add(change)
            if written and not written & columns:
                self.optional.add(change)


def _changes(update: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str | None, ...], object, set[str]]]:
    """Yield kind, clustering, bounds and written columns of each change. The columns are empty if the change stays
    without them: a deletion, or a row with a liveness or a deletion."""
    if update["partition_deletion"] is not None:
        yield "PARTITION_DELETION", (), None, set()
    for each in update["range_tombstones"]:
        bounds = tuple(each["start"]), each["start_inclusive"], tuple(each["end"]), each["end_inclusive"]
        yield "RANGE_DELETION", (), bounds, set()
    if update["static_row"] is not None:
        yield "STATIC_ROW", (), None, _written(update["static_row"])
    for row in update["rows"]:
        whole = row["liveness"] is not None or row["deletion"] is not None
        yield "ROW", tuple(row["clustering"]), None, set() if whole else _written(row)


def _written(row: Mapping[str, Any]) -> set[str]:
    return {each["column"] for each in (*row["cells"], *row["complex_deletions"])}


def _change(event: Event) -> Change:
    kind = "ROW" if event.kind == "ROW_DELETION" else event.kind
    clustering = event.clustering if kind == "ROW" else ()
    return event.segment, event.position, event.table_id, kind, event.partition_key, clustering, event.bounds


def compare_events(
    node: str, judged: Judged, events: Iterable[Event], columns: Mapping[str, set[str]], gaps: Sequence[Gap] = ()
) -> list[str]:
    """Describe the changes of a node that are missing on the events topics, and the events that are no change of the
    node.

    Each text starts with a number, and has the first changes and events. Changes in a gap may be missing. Events that
    have only dropped columns are ignored, because Cassandra's reader, which reads later, finds nothing left of the row.
    `columns`: table -> its columns at the end of the run.
    """
    found = {_change(event): event for event in events if event.node == node}
    absent = judged.changes - judged.optional - found.keys()
    missing = sorted((each for each in absent if not in_a_gap(gaps, node, each[2], each[:2])), key=repr)
    unknown = found.keys() - judged.changes
    invented = sorted((each for each in unknown if not _is_dropped(found[each], columns)), key=repr)
    lines = [f"{len(missing):,} changes are on no events topic"] if missing else []
    lines += [f"is on no events topic: {change}" for change in missing[:_SHOWN]]
    lines += [f"{len(invented):,} events are of no change that Cassandra reads"] if invented else []
    lines += [f"is an event, and no change that Cassandra reads: {found[change]}" for change in invented[:_SHOWN]]
    return lines


def covered(gap: Gap, judged: Judged, events: Iterable[Event]) -> tuple[set[Change], int]:
    """Return the changes that a gap covers, and how many of them are on no events topic.

    `judged`: the changes of the gap's node; `events`: the events of all nodes.
    """
    inside = {each for each in judged.changes if each[2] == gap.table_id and gap.has(each[:2])}
    published = {_change(event) for event in events if event.node == gap.node and event.table_id == gap.table_id}
    return inside, len(inside - judged.optional - published)


def _is_dropped(event: Event, columns: Mapping[str, set[str]]) -> bool:
    return event.kind == "ROW" and bool(event.columns) and not columns[event.table].intersection(event.columns)


def order_problems(events: Iterable[Event]) -> list[str]:
    """Describe first events of a partition key that are not in the order of the commit log, and keys in two topic
    partitions.

    `events` are the events of one table, topic partition by topic partition, each in its order. An event that comes
    again is not checked for its order. Rows, ranges and the partition itself are checked together, because a deletion
    of many rows that comes too early or too late is out of order with each row of its scope.
    """
    last: dict[tuple[str, str, str], Event] = {}
    topic_partitions: dict[tuple[str, str], int] = {}
    seen: set[tuple[str, int, int, int]] = set()
    problems: list[str] = []
    for event in events:
        # Checked for repeated events, too: there is no order between two topic partitions.
        table_key = event.table_id, event.partition_key
        home = topic_partitions.setdefault(table_key, event.partition)
        if event.partition != home:
            topic_partitions[table_key] = event.partition
            problems.append(
                f"{event.table}: partition key {event.partition_key} is in topic partitions {home} and {event.partition}"
            )
        if event.place in seen:
            continue
        seen.add(event.place)
        key = event.node, event.table_id, event.partition_key
        before = last.get(key)
        if before is not None and event.place < before.place:
            problems.append(
                f"{event.table}: {before.kind} at {before.place} came before {event.kind} at {event.place}"
                f" of the same partition key {event.partition_key}"
            )
        else:
            last[key] = event
    return problems
