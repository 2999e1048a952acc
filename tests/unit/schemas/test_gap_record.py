"""Gap records: their bytes, those of earlier agents, and which gaps a topic leaves open."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from schemas.gap_record import GapRecord, MalformedGapError, decode_gap, encode_gap, open_gaps

_GAP = GapRecord(
    node_id=UUID(int=1),
    keyspace="shop",
    table="orders",
    table_id=UUID(int=2),
    first_segment_id=1_795_219_249_195,
    first_position=100,
    last_segment_id=1_795_219_249_198,
    from_ms=1_795_000_000_000,
    to_ms=1_795_000_060_000,
    detected_ms=1_795_000_060_001,
    reason="gone",
)
_BEFORE = (
    b"\x4800000000-0000-0000-0000-000000000001\x08shop\x0corders\x4800000000-0000-0000-0000-000000000002"
    + bytes.fromhex("d6e0beb6bf68c801dce0beb6bf68 0280f8b2e5bd68c0a1bae5bd68c2a1bae5bd68")
    + b"\x08gone\x00"
)
"""The same gap as written by agents of 0.1, without fields after `last_position`."""


def test_a_record_of_an_agent_of_before_is_an_open_gap() -> None:
    """It lacks the fields of a closing record."""
    assert decode_gap(_BEFORE) == _GAP
    assert encode_gap(_GAP) == _BEFORE + b"\x00\x00"
    assert decode_gap(encode_gap(_GAP)) == _GAP


def test_a_closing_record_survives_its_bytes_and_no_cut_of_them_is_another_one() -> None:
    """An earlier reader takes it for the gap's record once more, as after a crash of the agent."""
    closing = _GAP.closed(1_795_000_100_000, "3 rows were sent again")
    payload = encode_gap(closing)
    assert decode_gap(payload) == closing
    assert payload.startswith(_BEFORE)
    for length in range(len(payload)):
        if length != len(_BEFORE):
            with pytest.raises(MalformedGapError):
                decode_gap(payload[:length])


_CLOSING = _GAP.closed(1_795_000_100_000, "sent")


@pytest.mark.parametrize(
    ("records", "still_open"),
    [
        ([_GAP], [_GAP]),
        ([_GAP, _CLOSING], []),
        ([_CLOSING, _GAP], []),
        ([_GAP, _GAP, _CLOSING, _CLOSING], []),
        ([_CLOSING], []),
    ],
)
def test_a_gap_is_open_until_a_record_closes_it(records: list[GapRecord], still_open: list[GapRecord]) -> None:
    """Records may be repeated, in any order: a killed agent reports a gap twice, and two runs may close it."""
    assert open_gaps(records) == still_open


@pytest.mark.parametrize(
    "other",
    [
        replace(_GAP, node_id=UUID(int=7)),
        replace(_GAP, table="others"),
        replace(_GAP, table_id=UUID(int=7)),
        replace(_GAP, first_position=99),
        replace(_GAP, last_segment_id=_GAP.last_segment_id + 1),
        replace(_GAP, to_ms=_GAP.to_ms + 1),
        replace(_GAP, first_segment_id=_GAP.last_segment_id + 1, last_segment_id=_GAP.last_segment_id + 2),
    ],
)
def test_a_closing_record_closes_no_gap_that_says_more_or_other(other: GapRecord) -> None:
    """The other gap differs in node, table, table id or range, covers more of the log, or ends later."""
    assert open_gaps([_GAP, other, _CLOSING]) == [other]


def test_a_gap_that_lies_in_a_closed_one_is_closed() -> None:
    """An agent that was killed between two looks first reports a smaller part of the log."""
    inner = replace(_GAP, first_position=200, last_segment_id=_GAP.last_segment_id - 1, detected_ms=1)
    ended = replace(_GAP, last_position=50)
    assert open_gaps([inner, ended, _GAP, _CLOSING]) == []
    assert open_gaps([_GAP, ended.closed(1, "sent")]) == [_GAP]


def test_the_gaps_of_thousands_of_tables_are_judged_soon() -> None:
    """A closing record is compared only with the gaps of its table."""
    gaps = [replace(_GAP, table=f"t{number}") for number in range(1_000)]
    compared = 0

    class Counted(GapRecord):
        __slots__ = ()

        def closes(self, gap: GapRecord) -> bool:
            nonlocal compared
            compared += 1
            return GapRecord.closes(self, gap)

    closings = [
        Counted(**{name: getattr(each.closed(1, "sent"), name) for name in GapRecord.__slots__}) for each in gaps
    ]
    assert open_gaps([*gaps, *closings]) == []
    assert compared == len(gaps)
