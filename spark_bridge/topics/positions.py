"""Positions in a topic partition, and the offsets that Spark keeps in a checkpoint.

An offset is `{"<topic partition>": "<ledger>:<entry>@<creation>"}`; ranges are (start, end]. An entry is a whole
batch of messages, so no batch index is needed: a range never cuts a batch. The creation is when Pulsar created the
topic partition, because a position means nothing for another topic partition of the same name. Offsets of earlier
versions have no creation, nor do those of a Pulsar that does not return it.
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
    """An entry of a topic partition; ordered as the topic is."""

    ledger: int
    entry: int

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """`ledger:entry`, or a message id `ledger:entry:partition`; a `>` before it and an `@creation` behind it change nothing.

        Raises ValueError.
        """
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is no position; a position is 'ledger:entry', such as '12:345'")
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def of_offset(cls, offset: object) -> Position:
        """Of a checkpoint: a text that `parse` takes, or the bytes of a message id. Raises ValueError."""
        if isinstance(offset, str):
            return cls.parse(offset)
        if isinstance(offset, list) and all(isinstance(each, int) for each in offset):
            # bytes that end too early, or without these fields, are no message id
            with suppress(LookupError):
                fields = dict(message_id_fields(bytes(each & 0xFF for each in offset)))
                return cls(_signed(fields[_LEDGER]), _signed(fields[_ENTRY]))
        raise ValueError(f"{offset!r} is neither a position nor the bytes of a message id")


def message_id_fields(data: bytes) -> Iterator[tuple[int, int]]:
    """Numbers and values of the fields of a serialized message id (MessageIdData of Pulsar's protocol: varints).

    The id of a message in chunks ends with a field 7 that holds another id: its length comes as value, then its fields.
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
"""As Spark keeps it: positions as text by topic partition."""


def offset_of(positions: Mapping[str, Position], creations: Mapping[str, str]) -> Offset:
    """Sorted, for Spark compares offsets as text. `creations` of the topic partitions, as far as they are known."""
    known = {topic: f"@{creation}" for topic, creation in creations.items()}
    return {topic: f"{positions[topic]}{known.get(topic, '')}" for topic in sorted(positions)}


def positions_of(offset: Mapping[str, str]) -> dict[str, Position]:
    """Reads the text of `offset_of`. Raises ValueError."""
    return {topic: Position.parse(text) for topic, text in offset.items()}


def creations_of(offset: Mapping[str, str]) -> dict[str, str]:
    """The creations that `offset_of` has written, by topic partition."""
    found = {topic: _TEXT.fullmatch(text.strip()) for topic, text in offset.items()}
    return {topic: match[3] for topic, match in found.items() if match and match[3]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """A ledger of a topic partition that still exists; `size_bytes` is that of its entries as they are stored."""

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
    """What each of the topic partitions is given: a position, `earliest`, `latest` or a time. Raises ConfigError.

    `text` is one of the words or a time, for all of them, or a JSON object.
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
    """Cut (start, end] into at most `parts` ranges of about as many entries each, in order and without a gap.

    `ledgers` are those that exist, in order; entries in none of them no longer exist.
    """
    if parts < 2:
        return [(start, end)]
    runs = _runs(start, end, ledgers)
    total = sum(each.entries for each in runs)
    cuts = [_nth(runs, total * part // parts) for part in range(1, parts) if total * part // parts > 0]
    edges = [start, *dict.fromkeys(cut for cut in cuts if cut < end), end]
    return list(itertools.pairwise(edges))


def size_of_range(start: Position, end: Position, ledgers: Sequence[Ledger]) -> int:
    """About how many bytes (start, end] takes where it is stored, by the mean size of each ledger's entries."""
    return sum(each.size_bytes for each in _runs(start, end, ledgers))


@dataclass(frozen=True, slots=True)
class _Run:
    """Entries of one ledger."""

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
            # an end that is known already may be behind the entries that the ledger is said to have
            share = (last - first + 1) / max(1, each.entries)
            runs.append(_Run(each.ledger, first, last, round(each.size_bytes * share)))
    return runs


def _nth(runs: Sequence[_Run], count: int) -> Position:
    """The place of the `count`-th entry (from 1)."""
    for each in runs:
        if count <= each.entries:
            return Position(each.ledger, each.first + count - 1)
        count -= each.entries
    raise AssertionError("more entries asked for than there are")
