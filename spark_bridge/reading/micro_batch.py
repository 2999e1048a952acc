"""The size of a micro-batch: up to where each topic partition is read next, with a limit of rows or bytes.

When PySpark 4.1 asks a source for the latest offset, it does not pass the query's position; later versions do. But
before a micro-batch runs, Spark writes the position to the checkpoint's folder `offsets`. This module reads it from
there, so that a restart makes no difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from spark_bridge.errors import CheckpointError
from spark_bridge.reading.folders import Folder, FsspecFolder
from spark_bridge.reading.topic_reader import TopicRange, end_within
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.positions import BEGINNING, Position, topic_of

__all__ = ["has_batches", "is_to_be_repeated", "limited_ends", "logged_end"]


def logged_end(
    checkpoint: str, topics: AbstractSet[str], folder_of: Callable[[str], Folder] = FsspecFolder
) -> dict[str, Position] | None:
    """The end of the newest micro-batch in a checkpoint, for these topic partitions; None for a new query.

    Format (o.a.spark.sql.execution.streaming.OffsetSeqLog): `v1`, a line about the batch, a line of JSON for each
    source. Our source writes positions, the pulsar-spark connector writes the bytes of message ids. `folder_of` reads
    the checkpoint: with fsspec in the process of the source, which has no Spark, and with Spark elsewhere. Raises
    CheckpointError.
    """
    try:
        folder = folder_of(f"{checkpoint.rstrip('/')}/offsets")
        batches = [int(name) for name in folder.names() if name.isdecimal()]
        if not batches:
            return None
        sources = folder.text(str(max(batches))).splitlines()[2:]
        found = [each for each in map(json.loads, sources) if topics & each.keys()]
        if len(found) != 1:
            reason = f"batch {max(batches)} has {len(found)} sources with these topics; limits need exactly one"
            raise CheckpointError(checkpoint, reason)
        return {topic: Position.of_offset(each) for topic, each in found[0].items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise CheckpointError(checkpoint, f"its offsets cannot be read ({error})") from None


def is_to_be_repeated(checkpoint: str, folder_of: Callable[[str], Folder]) -> bool:
    """Return True if the newest micro-batch in a checkpoint was begun but not finished. Raises CheckpointError."""
    begun, done = (_numbers(checkpoint, each, folder_of) for each in ("offsets", "commits"))
    return max(begun, default=-1) > max(done, default=-1)


def has_batches(checkpoint: str, folder_of: Callable[[str], Folder]) -> bool:
    """Return True if a checkpoint exists and a query has begun a micro-batch with it. Raises CheckpointError."""
    return bool(_numbers(checkpoint, "offsets", folder_of))


def _numbers(checkpoint: str, what: str, folder_of: Callable[[str], Folder]) -> list[int]:
    try:
        return [int(name) for name in folder_of(f"{checkpoint.rstrip('/')}/{what}").names() if name.isdecimal()]
    except OSError as error:
        raise CheckpointError(checkpoint, f"it cannot be read ({error})") from None


def limited_ends(
    options: BridgeOptions, starts: Mapping[str, Position], ends: Mapping[str, Position]
) -> dict[str, Position]:
    """The ends of a micro-batch within the limits; at least one entry of each topic partition that has entries to read.

    The topic partitions share the limits evenly. If one does not use its share, the rest goes to the next ones. The
    rows are counted by reading them, which is the cost of a limit. Raises TopicReadError.

    A topic partition without entries ends where it ends: its records may have been deleted before they were read, which
    the plan of the micro-batch notices.
    """
    planned = {
        topic: end if end.entry < 0 else max(starts.get(topic, BEGINNING), BEGINNING) for topic, end in ends.items()
    }
    behind = [topic for topic, end in ends.items() if planned[topic] < end and end.entry >= 0]
    rows_left, bytes_left = options.max_rows_per_trigger, options.max_bytes_per_trigger
    for number, topic in enumerate(behind):
        shares = len(behind) - number
        name, partition = topic_of(topic)
        span = TopicRange(name, topic, partition, planned[topic], ends[topic])
        end, rows, size = end_within(options, span, _share(rows_left, shares), _share(bytes_left, shares))
        planned[topic] = end
        rows_left = None if rows_left is None else max(0, rows_left - rows)
        bytes_left = None if bytes_left is None else max(0, bytes_left - size)
    return planned


def _share(limit: int | None, shares: int) -> int | None:
    return None if limit is None else limit // shares
