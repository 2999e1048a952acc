"""Positions in a topic partition, and the offsets that Spark keeps in a checkpoint.

An offset is `{"<topic partition>": "<ledger>:<entry>@<creation>"}`; ranges are (start, end]. An entry is a whole
batch of messages, so no batch index is needed: a range never cuts a batch. The creation is when Pulsar created the
topic partition: a position is not valid in a later topic partition of the same name. Offsets of earlier versions have
no creation. Neither have those of a Pulsar that does not return it.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schemas.errors import ConfigError, ConfigProblem

__all__ = [
    "BEGINNING",
    "Ledger",
    "Offset",
    "Position",
    "creations_of",
    "message_id_fields",
    "offset_of",
    "parse_offsets",
    "parse_time_ms",
    "positions_of",
    "size_of_range",
    "split_range",
    "topic_of",
]

_TEXT: Final = re.compile(r">?(-?\d+):(-?\d+)(?::-?\d+)?(?:@(\S+))?")
_LEDGER: Final = 1  # field numbers of MessageIdData
_ENTRY: Final = 2
_PARTITION: Final = re.compile(r"(.+)-partition-(\d+)")


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """An entry of a topic partition. Positions are ordered as the entries of the topic partition."""

    ledger: int
    entry: int

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parse `ledger:entry`, or a message id `ledger:entry:partition`. Raises ValueError.

        A `>` before it and an `@creation` after it are allowed and ignored.
        """
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is no position; a position is 'ledger:entry', such as '12:345'")
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def of_offset(cls, offset: object) -> Position:
        """The position in an offset of a checkpoint: text for `parse`, or the bytes of a message id.

        Raises ValueError.
        """
        if isinstance(offset, str):
            return cls.parse(offset)
        if isinstance(offset, list) and all(isinstance(each, int) for each in offset):
            # LookupError: the bytes end too early, or lack these fields, and so are no message id
            with suppress(LookupError):
                fields = dict(message_id_fields(bytes(each & 0xFF for each in offset)))
                return cls(_signed(fields[_LEDGER]), _signed(fields[_ENTRY]))
        raise ValueError(f"{offset!r} is neither a position nor the bytes of a message id")


def message_id_fields(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield number and value of each field of a serialized message id (MessageIdData of Pulsar's protocol: varints).

    The id of a message in chunks ends with field 7, which holds another id. Its length is yielded as the value of field
    7, and then its fields follow.
    """
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        value, at = _varint(data, at)
        yield tag >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


BEGINNING: Final = Position(-1, -1)

Offset = dict[str, str]
"""An offset as Spark keeps it: positions as text by topic partition."""


def offset_of(positions: Mapping[str, Position], creations: Mapping[str, str]) -> Offset:
    """The offset of these positions, sorted by topic partition, because Spark compares offsets as text.

    `creations`: the creations that are known, by topic partition.
    """
    known = {topic: f"@{creation}" for topic, creation in creations.items()}
    return {topic: f"{positions[topic]}{known.get(topic, '')}" for topic in sorted(positions)}


def positions_of(offset: Mapping[str, str]) -> dict[str, Position]:
    """Positions of an offset that `offset_of` made, by topic partition. Raises ValueError."""
    return {topic: Position.parse(text) for topic, text in offset.items()}


def creations_of(offset: Mapping[str, str]) -> dict[str, str]:
    """Creations in an offset that `offset_of` made, by topic partition."""
    found = {topic: _TEXT.fullmatch(text.strip()) for topic, text in offset.items()}
    return {topic: match[3] for topic, match in found.items() if match and match[3]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """An existing ledger of a topic partition. `size_bytes`: stored size of its entries."""

    ledger: int
    entries: int
    size_bytes: int


def parse_time_ms(text: str) -> int | None:
    """Milliseconds since the epoch of an ISO 8601 time with a zone; None for any other text."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if time.tzinfo is None else int(time.timestamp() * 1000)


def topic_of(partition_topic: str) -> tuple[str, int]:
    """Topic and partition of a topic partition's name; -1 for a topic without partitions."""
    match = _PARTITION.fullmatch(partition_topic)
    return (partition_topic, -1) if match is None else (match[1], int(match[2]))


def parse_offsets(option: str, text: str, topics: Sequence[str]) -> Mapping[str, Position | str]:
    """The position, `earliest`, `latest` or time of each topic partition. Raises ConfigError.

    `text`: one of the two words or a time, for all topic partitions; or a JSON object by topic partition.
    """
    if text in ("earliest", "latest") or parse_time_ms(text) is not None:
        return dict.fromkeys(topics, text)
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = f"is neither 'earliest', 'latest', a time nor JSON ({error}); e.g. {_example(topics)}"
        raise ConfigError.of(option, reason) from None
    if not isinstance(given, dict):
        raise ConfigError.of(option, f"is JSON, but no object; e.g. {_example(topics)}")
    problems = [f"names {name!r}, which is no partition of the topic" for name in given if name not in topics]
    problems += [f"has no position of {name!r}" for name in topics if name not in given]
    offsets: dict[str, Position | str] = {}
    for name, value in given.items():
        if value in ("earliest", "latest") or parse_time_ms(str(value)) is not None:
            offsets[name] = str(value)
            continue
        try:
            offsets[name] = Position.parse(str(value))
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if problems:
        problems[-1] += f"; e.g. {_example(topics)}"
        raise ConfigError([ConfigProblem(option=option, reason=reason) for reason in problems])
    return offsets


def _example(topics: Sequence[str]) -> str:
    return json.dumps(dict.fromkeys(topics[:2], "earliest"))


def split_range(
    start: Position, end: Position, ledgers: Sequence[Ledger], parts: int
) -> list[tuple[Position, Position]]:
    """Cut (start, end] into at most `parts` ranges of about equal numbers of entries, in order and without a gap.

    `ledgers`: the existing ledgers, in order. Entries of other ledgers no longer exist.
    """
    if parts < 2:
        return [(start, end)]
    runs = _runs(start, end, ledgers)
    total = sum(each.entries for each in runs)
    cuts = [_nth(runs, total * part // parts) for part in range(1, parts) if total * part // parts > 0]
    edges = [start, *dict.fromkeys(cuts), end]
    return list(itertools.pairwise(edges))


def size_of_range(start: Position, end: Position, ledgers: Sequence[Ledger]) -> int:
    """Estimate of the stored bytes of (start, end], from the mean size of each ledger's entries."""
    return sum(each.size_bytes for each in _runs(start, end, ledgers))


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive entries of one ledger."""

    ledger: int
    first: int
    last: int
    size_bytes: int

    @property
    def entries(self) -> int:
        return self.last - self.first + 1


def _runs(start: Position, end: Position, ledgers: Sequence[Ledger]) -> list[_Run]:
    """The runs to read in (start, end]."""
    runs: list[_Run] = []
    for each in ledgers:
        first = start.entry + 1 if each.ledger == start.ledger else 0
        last = end.entry if each.ledger == end.ledger else each.entries - 1
        if start.ledger <= each.ledger <= end.ledger and first <= last:
            # the end may be newer than the statistics of the ledger, and so lie after its number of entries
            share = (last - first + 1) / max(1, each.entries)
            runs.append(_Run(each.ledger, first, last, round(each.size_bytes * share)))
    return runs


def _nth(runs: Sequence[_Run], count: int) -> Position:
    """Position of the `count`-th entry (from 1)."""
    for each in runs:
        if count <= each.entries:
            return Position(each.ledger, each.first + count - 1)
        count -= each.entries
    raise AssertionError("more entries asked for than there are")
