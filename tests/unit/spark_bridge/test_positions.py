"""Positions, offsets in JSON, and the division of a range."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ConfigError
from spark_bridge.topics.positions import BEGINNING, Ledger, Position, parse_offsets, size_of_range, split_range


def test_positions_are_ordered_as_the_topic_is() -> None:
    """Positions are ordered by ledger, then entry; the beginning is before all of them."""
    assert sorted([Position(10, 2), Position(9, 30), Position(10, -1), BEGINNING]) == [
        BEGINNING,
        Position(9, 30),
        Position(10, -1),
        Position(10, 2),
    ]


def test_a_position_is_its_text() -> None:
    """Text and position convert both ways; the mark of a stream's start and a message id's partition are ignored."""
    assert str(Position(12, -1)) == "12:-1"
    assert Position.parse(">12:-1") == Position.parse(" 12:-1 ") == Position.parse("12:-1:3") == Position(12, -1)


@pytest.mark.parametrize("text", ["", "12", "12:", "a:b", "1:2:3:4"])
def test_what_is_no_position_is_refused(text: str) -> None:
    """The error has the right form."""
    with pytest.raises(ValueError, match="a position is 'ledger:entry', such as '12:345'"):
        Position.parse(text)


def test_offsets_by_topic_partition() -> None:
    """Positions and words may be mixed."""
    offsets = parse_offsets("o", '{"a": "1:2", "b": "latest"}', ["a", "b"])
    assert offsets == {"a": Position(1, 2), "b": "latest"}


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("{", ["o: is neither 'earliest', 'latest', a time nor JSON"]),
        ('["a"]', ["o: is JSON, but no object"]),
        (
            '{"c": "1:2", "a": "x"}',
            [
                "o: names 'c', which is no partition of the topic",
                "o: has no position of 'b'",
                "o: a: 'x' is no position",
            ],
        ),
    ],
)
def test_wrong_offsets_are_all_named(text: str, problems: Sequence[str]) -> None:
    """The error has every problem, and an example of the right form."""
    with pytest.raises(ConfigError) as error:
        parse_offsets("o", text, ["a", "b"])
    found = [str(each) for each in error.value.problems]
    assert [each[: len(wanted)] for each, wanted in zip(found, problems, strict=True)] == problems
    assert found[-1].endswith('e.g. {"a": "earliest", "b": "earliest"}')


LEDGERS = [
    Ledger(ledger=5, entries=4, size_bytes=400),
    Ledger(ledger=8, entries=0, size_bytes=0),
    Ledger(ledger=9, entries=6, size_bytes=60),
]


@pytest.mark.parametrize(
    ("start", "end", "parts", "cuts"),
    [
        (BEGINNING, "9:5", 1, []),
        (BEGINNING, "9:5", 2, ["9:0"]),
        (BEGINNING, "9:5", 5, ["5:1", "5:3", "9:1", "9:3"]),
        (BEGINNING, "5:1", 4, ["5:0"]),
        ("5:3", "9:5", 3, ["9:1", "9:3"]),
        ("9:5", "9:5", 3, []),
        ("3:7", "9:5", 2, ["9:0"]),
    ],
)
def test_a_range_is_cut_between_entries(start: str | Position, end: str, parts: int, cuts: Sequence[str]) -> None:
    """Parts have about equal numbers of entries: never more parts than entries, and none before existing entries."""
    first = start if isinstance(start, Position) else Position.parse(start)
    edges = [first, *map(Position.parse, cuts), Position.parse(end)]
    assert split_range(first, Position.parse(end), LEDGERS, parts) == list(itertools.pairwise(edges))


@pytest.mark.parametrize(
    ("start", "end", "size_bytes"),
    [
        (BEGINNING, "9:5", 460),
        ("5:1", "9:5", 260),
        ("5:1", "9:2", 230),
        ("9:1", "9:2", 10),
        ("9:5", "9:5", 0),
        ("9:5", "9:7", 20),  # Beyond the end that the ledger was reported to have.
        ("3:7", "5:0", 100),
        ("9:5", "12:-1", 0),
    ],
)
def test_the_size_of_a_range_is_that_of_its_entries(start: str | Position, end: str, size_bytes: int) -> None:
    """The mean entry size of each existing ledger counts."""
    first = start if isinstance(start, Position) else Position.parse(start)
    assert size_of_range(first, Position.parse(end), LEDGERS) == size_bytes


@given(st.data())
def test_the_parts_of_a_range_hold_each_entry_once(data: st.DataObject) -> None:
    """For any ledgers, the parts join without a gap and have all entries of the range."""
    sizes = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=5))
    ledgers = [Ledger(ledger=10 * number, entries=size, size_bytes=size) for number, size in enumerate(sizes, start=1)]
    entries = [Position(each.ledger, entry) for each in ledgers for entry in range(each.entries)]
    places = [BEGINNING, *entries, Position(10 * len(sizes), -1)]
    start, end = sorted([data.draw(st.sampled_from(places)), data.draw(st.sampled_from(places))])
    parts = split_range(start, end, ledgers, data.draw(st.integers(1, 9)))
    assert parts[0][0] == start
    assert parts[-1][1] == end
    assert all(left[1] == right[0] for left, right in itertools.pairwise(parts))
    assert [each for low, high in parts for each in entries if low < each <= high] == [
        each for each in entries if start < each <= end
    ]


def test_an_offset_of_the_pulsar_spark_connector_is_a_position() -> None:
    """Its checkpoints have the bytes of message ids as signed numbers; anything else is refused."""
    data = pulsar.MessageId(2, 300, 5, 7).serialize()
    assert Position.of_offset([each - 256 if each > 127 else each for each in data]) == Position(300, 5)
    assert Position.of_offset(list(pulsar.MessageId.earliest.serialize())) == Position(-1, -1)
    assert Position.of_offset("12:3") == Position(12, 3)
    for wrong in (None, 12, ["8"], [8], [], [16, 1]):
        with pytest.raises(ValueError, match="is neither a position nor the bytes of a message id"):
            Position.of_offset(wrong)
