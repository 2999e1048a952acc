"""Plans the read of a query: from options and the topics' current state to ranges of topic partitions with fixed ends.

Planning notices if records were deleted before they were read (by retention, a message TTL or a deleted subscription).
It also notices if a position belongs to an earlier topic of the same name (the topic was deleted and made again, or
Pulsar was rebuilt).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from spark_bridge.errors import DataLossError, OtherTopicError, TopicError
from spark_bridge.reading.topic_reader import TopicRange
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.positions import (
    BEGINNING,
    Ledger,
    Position,
    parse_offsets,
    parse_time_ms,
    size_of_range,
    split_range,
    topic_of,
)

__all__ = [
    "ending_positions",
    "is_of_topic",
    "last_of",
    "plan_batch",
    "plan_ranges",
    "refuse_gap",
    "refuse_other_records",
    "starting_positions",
]

_STORED_BYTES_PER_PARTITION: Final = 64 << 20
"""Stored bytes of a Spark partition: half of Spark's default for files, because entries may be compressed.

The rows of a partition that are sorted or cached must fit into a task's memory, for a topic of any length.
"""


def plan_batch(options: BridgeOptions) -> list[TopicRange]:
    """The ranges of a batch read that is planned now.

    Raises ConfigError, TopicError, PulsarUnreachableError, DataLossError.
    """
    with PulsarAdmin(options) as admin:
        topics = admin.topic_partitions()
        refuse_other_records(admin, {topic_of(each)[0] for each in topics})
        starts = starting_positions(options, admin, topics)
        ends = ending_positions(options, admin, topics)
        return plan_ranges(options, starts, ends, admin)


def refuse_other_records(admin: PulsarAdmin, topics: Iterable[str]) -> set[str]:
    """Raise TopicError if the schema of a topic is not KEY_VALUE. Return the topics that have a schema already.

    Without this check, any topic could be read whose keys happen to be base64.
    """
    found = {topic: admin.schemas(topic) for topic in sorted(topics)}
    for topic, versions in found.items():
        if versions and versions[-1].get("type") != "KEY_VALUE":
            reason = (
                f"has a schema of type {versions[-1].get('type')}: it is no topic of KEY_VALUE records; read one that the "
                "connector writes with outputFormat key-value-avro or key-value-json"
            )
            raise TopicError(topic, reason)
    return {topic for topic, versions in found.items() if versions}


def starting_positions(options: BridgeOptions, admin: PulsarAdmin, topics: Sequence[str]) -> dict[str, Position]:
    """The position after which each topic partition is read, by `startingOffsets`. Raises ConfigError."""
    return _resolved(admin, "startingOffsets", options.starting_offsets, topics)


def ending_positions(options: BridgeOptions, admin: PulsarAdmin, topics: Sequence[str]) -> dict[str, Position]:
    """The position up to which a batch reads each topic partition, by `endingOffsets`. Raises ConfigError."""
    return _resolved(admin, "endingOffsets", options.ending_offsets, topics)


def plan_ranges(
    options: BridgeOptions,
    starts: Mapping[str, Position],
    ends: Mapping[str, Position],
    admin: PulsarAdmin,
    creations: Sequence[Mapping[str, str]] = (),
) -> list[TopicRange]:
    """(start, end] of each topic partition, divided by `minPartitions` and by size.

    A topic partition without a start is read from its beginning. `creations`: the known creations of the starts and of
    the ends. With `failOnDataLoss`, this raises DataLossError if records of a range no longer exist, or OtherTopicError
    if a position belongs to another topic. Without it, another topic is read from its beginning.
    """
    ranges = []
    least = -(-options.min_partitions // max(1, len(ends)))
    for partition_topic, wanted in ends.items():
        start, end = starts.get(partition_topic, BEGINNING), wanted
        known = {each[partition_topic] for each in creations if partition_topic in each}
        if start == end != BEGINNING and len(known) < 2:
            continue
        ledgers, cursors = admin.storage(partition_topic)
        known |= {now for now in [admin.creation(partition_topic)] if known and now is not None}
        if start != BEGINNING and not is_of_topic(start, ledgers, known):
            if start.entry >= 0 and options.fail_on_data_loss:
                raise OtherTopicError(partition_topic, str(start), str(last_of(ledgers)))
            start = BEGINNING
            end = min(end, last_of(ledgers))
        if options.fail_on_data_loss:
            refuse_gap(partition_topic, start, end, ledgers, cursors.get(options.subscription or ""))
        if start >= end:
            continue
        topic, partition = topic_of(partition_topic)
        parts = max(least, -(-size_of_range(start, end, ledgers) // _STORED_BYTES_PER_PARTITION))
        ranges += [
            TopicRange(topic, partition_topic, partition, low, high, _ledger_ends(low, high, ledgers))
            for low, high in split_range(start, end, ledgers, parts)
        ]
    return ranges


def _resolved(admin: PulsarAdmin, option: str, text: str, topics: Sequence[str]) -> dict[str, Position]:
    positions = {}
    for topic, given in parse_offsets(option, text, topics).items():
        if isinstance(given, Position):
            positions[topic] = given
        elif given == "earliest":
            positions[topic] = BEGINNING
        elif (time_ms := parse_time_ms(given)) is not None:
            positions[topic] = admin.position_before(topic, time_ms)
        else:
            positions[topic] = admin.last_position(topic)
    return positions


def is_of_topic(read: Position, ledgers: Sequence[Ledger], creations: Collection[str]) -> bool:
    """Return True if a position may belong to the topic partition that has these ledgers.

    `creations`: the known creations of the position and of the topic partition. Pulsar drops whole ledgers from the
    front. So an unknown ledger between two existing ones, or after all of them, belongs to another topic.
    """
    if len(set(creations)) > 1:
        return False
    if not ledgers or read.ledger < ledgers[0].ledger:
        return True  # the ledger was probably dropped
    if read.entry < 0:
        return read.ledger <= ledgers[-1].ledger  # the ledger may be missing, because Pulsar removes empty ledgers
    return any(each.ledger == read.ledger and read.entry < max(1, each.entries) for each in ledgers)


def last_of(ledgers: Sequence[Ledger]) -> Position:
    """The last entry in the ledgers; BEGINNING if all are empty."""
    filled = [each for each in ledgers if each.entries]
    return Position(filled[-1].ledger, filled[-1].entries - 1) if filled else BEGINNING


def refuse_gap(
    topic: str, start: Position, end: Position, ledgers: Sequence[Ledger], acknowledged: Position | None
) -> None:
    """Raise DataLossError if entries after the start may have been deleted before they were read.

    Pulsar drops whole ledgers from the front. If the start is in a dropped ledger, the entries after it there are lost.
    Pulsar no longer knows if there were any. Our subscription does, because it keeps all entries that were not read.
    """
    if start.entry < 0:
        return  # nothing of that ledger was read: `earliest` reads what exists
    if ledgers and start.ledger >= ledgers[0].ledger:
        return
    if acknowledged is not None and acknowledged <= start:
        return
    raise DataLossError(topic, str(start), str(Position(ledgers[0].ledger, 0)) if ledgers else str(end))


def _ledger_ends(start: Position, end: Position, ledgers: Iterable[Ledger]) -> tuple[Position, ...]:
    """The last entry of (start, end] in each ledger that has entries of it."""
    lasts = (min(Position(each.ledger, each.entries - 1), end) for each in ledgers if each.ledger <= end.ledger)
    return tuple(last for last in lasts if last > start and last.entry >= 0)
