"""SegmentReader.read_unsynced: the entries of a segment that Cassandra has not synced yet."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from change_agent.commitlog.entry import CommitLogEntry
from change_agent.commitlog.reader import SegmentReader
from tests.agent.growing_segment import GrowingSegment
from tests.agent.segment_writer import encoded_segment_bytes, header_bytes, lz4_bytes, segment_bytes

_ID = 1_700_000_000_000
_PAYLOADS = [bytes([index]) * (12 + 7 * index) for index in range(1, 9)]


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[GrowingSegment]:
    """A new segment, without a change."""
    made = GrowingSegment(tmp_path / f"CommitLog-7-{_ID}.log", _ID)
    yield made
    made.close()


@pytest.fixture
def reader(segment: GrowingSegment) -> Iterator[SegmentReader]:
    """A reader of the segment."""
    with SegmentReader(segment.path) as made:
        yield made


def _payloads(entries: Iterator[CommitLogEntry]) -> list[bytes]:
    return [each.payload for each in entries]


def test_an_entry_is_there_before_any_marker(segment: GrowingSegment, reader: SegmentReader) -> None:
    """There is no index yet. Its later reading returns no entry twice."""
    assert _payloads(reader.read_unsynced()) == []
    end = segment.append(_PAYLOADS[:2])
    assert _payloads(reader.read_unsynced()) == _PAYLOADS[:2]
    assert reader.position == end
    assert _payloads(reader.read_unsynced()) == []
    limit = segment.sync()
    assert _payloads(reader.read(limit)) == []
    segment.append(_PAYLOADS[2:])
    assert _payloads(reader.read_unsynced()) == _PAYLOADS[2:]
    assert _payloads(reader.read(segment.sync())) == []


def test_positions_are_those_of_a_synced_read(segment: GrowingSegment, reader: SegmentReader) -> None:
    """An event's position must not depend on the time of its reading."""
    early = []
    for index, payload in enumerate(_PAYLOADS):
        segment.append([payload])
        early += list(reader.read_unsynced())
        if index % 3 == 2:
            segment.sync()
    segment.complete()
    with SegmentReader(segment.path) as late:
        assert early == list(late.read())


def test_an_entry_that_is_not_whole_is_waited_for_and_those_behind_it_too(
    segment: GrowingSegment, reader: SegmentReader
) -> None:
    """This holds for any number of its bytes. Cassandra's threads fill their entries concurrently."""
    position, entry = segment.allocate(_PAYLOADS[0])
    behind = segment.allocate(_PAYLOADS[1])
    segment.write(*behind)
    for length in range(len(entry)):
        segment.write(position, entry[:length])
        assert _payloads(reader.read_unsynced()) == [], length
    segment.write(position, entry)
    assert _payloads(reader.read_unsynced()) == _PAYLOADS[:2]


def test_a_marker_that_is_on_its_way_ends_the_look(segment: GrowingSegment, reader: SegmentReader) -> None:
    """Its space is allocated before it is written, so later entries may be written first."""
    segment.append(_PAYLOADS[:1])
    marker = segment.reserve_marker()
    segment.append(_PAYLOADS[1:2])
    assert _payloads(reader.read_unsynced()) == _PAYLOADS[:1]
    segment.mark(marker)
    assert _payloads(reader.read_unsynced()) == _PAYLOADS[1:2]


def test_damage_is_left_to_the_index(segment: GrowingSegment, reader: SegmentReader) -> None:
    """Later entries wait. Reading up to the index raises the error."""
    position, entry = segment.allocate(_PAYLOADS[0])
    segment.write(position, entry[:-1] + bytes([entry[-1] ^ 1]))
    segment.append(_PAYLOADS[1:])
    limit = segment.sync()
    assert _payloads(reader.read_unsynced()) == []
    assert not reader.is_complete()
    with pytest.raises(Exception, match="checksum of an entry's mutation") as raised:
        list(reader.read(limit))
    reader.skip_to(raised.value.resume_position)  # type: ignore[attr-defined]
    assert _payloads(reader.read(limit)) == _PAYLOADS[1:]


def test_a_wrong_marker_is_left_to_the_index(segment: GrowingSegment, reader: SegmentReader) -> None:
    """The two numbers of a marker are not written together."""
    segment.append(_PAYLOADS[:1])
    segment.write(segment.last_marker, b"\0\0\1\0")
    assert _payloads(reader.read_unsynced()) == []
    segment.sync()
    assert _payloads(reader.read_unsynced()) == _PAYLOADS[:1]


def test_a_segment_is_complete_when_its_last_section_reaches_the_end(
    segment: GrowingSegment, reader: SegmentReader
) -> None:
    """Then the next segment may be read, because no more entries are added to this one."""
    segment.append(_PAYLOADS[:3])
    list(reader.read_unsynced())
    assert not reader.is_complete()
    segment.sync()
    segment.append(_PAYLOADS[3:])
    list(reader.read_unsynced())
    assert not reader.is_complete()
    segment.complete()
    list(reader.read_unsynced())
    assert reader.is_complete()


def test_what_a_killed_node_cannot_read_itself_is_counted(segment: GrowingSegment, reader: SegmentReader) -> None:
    """The start of a node reads only up to the last marker."""
    segment.append(_PAYLOADS[:1])
    synced = segment.sync()
    end = segment.append(_PAYLOADS[1:])
    list(reader.read_unsynced())
    assert _payloads(reader.read()) == []
    assert reader.unsynced_size == end - (synced + 8)


def test_a_compressed_segment_has_nothing_before_its_sync(tmp_path: Path) -> None:
    """It is written together with the sync."""
    path = tmp_path / f"CommitLog-7-{_ID}.log"
    plain = segment_bytes(_ID, [_PAYLOADS])[len(header_bytes(_ID)) + 8 :]
    parameters = {"compressionClass": "LZ4Compressor"}
    path.write_bytes(encoded_segment_bytes(_ID, parameters, [(len(plain), lz4_bytes(plain))]))
    with SegmentReader(path) as reader:
        assert not reader.can_read_unsynced
        assert list(reader.read_unsynced()) == []
        assert len(list(reader.read())) == len(_PAYLOADS)


@pytest.mark.parametrize("seed", range(40))
def test_however_writes_syncs_and_looks_meet_each_entry_comes_once_in_order(tmp_path: Path, seed: int) -> None:
    """Bytes appear in pieces and in any order, markers late, and the index later.

    Both kinds of reading happen at any time.
    """
    chance = random.Random(seed)
    segment = GrowingSegment(tmp_path / f"CommitLog-7-{_ID}.log", _ID)
    pieces: list[list[tuple[int, bytes]]] = []
    found: list[CommitLogEntry] = []
    limit = 0
    marker: int | None = None
    with SegmentReader(segment.path) as reader:
        for _ in range(400):
            step = chance.random()
            if step < 0.3:
                position, entry = segment.allocate(chance.randbytes(chance.randint(10, 60)))
                cuts = sorted({0, len(entry), *(chance.randrange(len(entry)) for _ in range(3))})
                parts = [(position + a, entry[a:b]) for a, b in itertools.pairwise(cuts)]
                pieces.append(chance.sample(parts, len(parts)))
            elif step < 0.7 and pieces:
                one = chance.choice(pieces)
                segment.write(*one.pop())
                pieces = [each for each in pieces if each]
            elif step < 0.72 and marker is None:
                marker = segment.reserve_marker()
            elif step < 0.8 and marker is not None:
                before = [part for each in pieces for part in each if part[0] < marker]
                for part in before:
                    segment.write(*part)
                pieces = [kept for each in pieces if (kept := [part for part in each if part not in before])]
                new_limit = segment.mark(marker)
                marker = None
                limit = new_limit if chance.random() < 0.7 else limit
            elif step < 0.9:
                found += reader.read_unsynced()
            else:
                found += reader.read(limit)
        for part in (part for each in pieces for part in each):
            segment.write(*part)
        if marker is not None:
            segment.mark(marker)
        segment.complete()
        found += reader.read_unsynced()
        assert reader.is_complete()
        assert list(reader.read()) == []
    with SegmentReader(segment.path) as late:
        assert found == list(late.read())
    assert len(found) > 50
    segment.close()
