"""Plans the read of a query: from options and the topics' current state to ranges of topic partitions with fixed ends.

Planning notices when records were deleted before they were read (retention, a message TTL or a deleted subscription).
It also notices when a position belongs to another topic than the one that has its name now (deleted and made again,
or a rebuilt Pulsar).
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
"""Of a Spark partition: half of what Spark takes of files, for entries may be compressed. What is sorted or cached of a
partition has to fit into a task's memory, however long the topic is."""


def plan_batch(options: BridgeOptions) -> list[TopicRange]:
    """What a batch read that is planned now reads.

    Raises ConfigError, TopicError, PulsarUnreachableError, DataLossError.
    """
    with PulsarAdmin(options) as admin:
        topics = admin.topic_partitions()
        refuse_other_records(admin, {topic_of(each)[0] for each in topics})
        starts = starting_positions(options, admin, topics)
        ends = ending_positions(options, admin, topics)
        return plan_ranges(options, starts, ends, admin)


def refuse_other_records(admin: PulsarAdmin, topics: Iterable[str]) -> set[str]:
    """Those of the topics that have a schema; the others have it yet to come. Raises TopicError where it is none of KEY_VALUE.

    Without this look a key that is any text would do, if only it is base64 by chance.
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
    """Where each topic partition is read from, by `startingOffsets`. Raises ConfigError."""
    return _resolved(admin, "startingOffsets", options.starting_offsets, topics)


def ending_positions(options: BridgeOptions, admin: PulsarAdmin, topics: Sequence[str]) -> dict[str, Position]:
    """How far a batch reads each topic partition, by `endingOffsets`. Raises ConfigError."""
    return _resolved(admin, "endingOffsets", options.ending_offsets, topics)


def plan_ranges(
    options: BridgeOptions,
    starts: Mapping[str, Position],
    ends: Mapping[str, Position],
    admin: PulsarAdmin,
    creations: Sequence[Mapping[str, str]] = (),
) -> list[TopicRange]:
    """(start, end] of each topic partition, divided by `minPartitions` and by size; those without a start from the beginning.

    `creations` are those of the starts and of the ends, as far as they are known. Raises DataLossError where records of a range no
    longer exist, or a position is of another topic, and `failOnDataLoss` is true; where it is false another topic is read from
    its beginning.
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
    """Whether a position may be one of the topic partition that has these ledgers; `creations` are those that are known of both.

    Pulsar drops whole ledgers from the front: one between two others, or behind all of them, is of another topic.
    """
    if len(set(creations)) > 1:
        return False
    if not ledgers or read.ledger < ledgers[0].ledger:
        return True  # dropped, as far as one can see
    if read.entry < 0:
        return read.ledger <= ledgers[-1].ledger  # Pulsar removes a ledger in which nothing was
    return any(each.ledger == read.ledger and read.entry < max(1, each.entries) for each in ledgers)


def last_of(ledgers: Sequence[Ledger]) -> Position:
    """The last entry that is in any of the ledgers."""
    filled = [each for each in ledgers if each.entries]
    return Position(filled[-1].ledger, filled[-1].entries - 1) if filled else BEGINNING


def refuse_gap(
    topic: str, start: Position, end: Position, ledgers: Sequence[Ledger], acknowledged: Position | None
) -> None:
    """Pulsar drops whole ledgers from the front: a start in a dropped one has lost what followed it there.

    Whether anything followed, Pulsar no longer knows. Our subscription does: it holds everything that was not read.
    Raises DataLossError.
    """
    if start.entry < 0:
        return  # nothing of that ledger was read: `earliest` takes what there is
    if ledgers and start.ledger >= ledgers[0].ledger:
        return
    if acknowledged is not None and acknowledged <= start:
        return
    raise DataLossError(topic, str(start), str(Position(ledgers[0].ledger, 0)) if ledgers else str(end))


def _ledger_ends(start: Position, end: Position, ledgers: Iterable[Ledger]) -> tuple[Position, ...]:
    """The last entry of (start, end] in each ledger that has any."""
    lasts = (min(Position(each.ledger, each.entries - 1), end) for each in ledgers if each.ledger <= end.ledger)
    return tuple(last for last in lasts if last > start and last.entry >= 0)
