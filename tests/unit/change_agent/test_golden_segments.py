"""The decoder on segments of real nodes: whole, cut, and with wrong bits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from change_agent.commitlog.descriptor import read_descriptor
from change_agent.commitlog.segment import SYNC_MARKER_SIZE
from change_agent.db.mutation import MutationDecoder, decode_mutation
from change_agent.errors import BufferUnderflowError, CommitLogReadError, Damage, UnknownTableError
from tests.golden.segments import GOLDEN_SEGMENTS, GoldenSegment, decoded_and_expected, read_until_error

pytestmark = pytest.mark.parametrize("golden", GOLDEN_SEGMENTS, ids=lambda golden: golden.line)


def _payloads(golden: GoldenSegment) -> list[bytes]:
    """The mutations of the keyspace `golden`."""
    tables, version, found = golden.tables(), golden.version, []
    for entry in golden.entries():
        try:
            decode_mutation(entry.payload, version, tables)
        except UnknownTableError:
            continue
        found.append(entry.payload)
    return found


def test_every_mutation_is_what_cassandra_reads(golden: GoldenSegment) -> None:
    """The expected lines come from Cassandra's own reader."""
    lines, expected = decoded_and_expected(golden)
    assert lines == expected
    assert len(lines) == 20


@pytest.mark.exhaustive
def test_a_mutation_cut_anywhere_is_an_underflow(golden: GoldenSegment) -> None:
    """No prefix of a mutation is a mutation."""
    decoder, version = MutationDecoder(golden.tables()), golden.version
    for payload in _payloads(golden):
        for cut in range(len(payload)):
            with pytest.raises(BufferUnderflowError):
                decoder.decode(payload[:cut], version)


@pytest.mark.exhaustive
def test_a_mutation_with_any_bit_flipped_is_read_or_refused(golden: GoldenSegment) -> None:
    """If the checksum fits, wrong bytes give a typed error or another mutation."""
    decoder, version, refused = MutationDecoder(golden.tables()), golden.version, 0
    for payload in _payloads(golden):
        for bit in range(len(payload) * 8):
            flipped = bytearray(payload)
            flipped[bit // 8] ^= 1 << bit % 8
            try:
                decoder.decode(bytes(flipped), version)
            except CommitLogReadError:
                refused += 1
    assert refused > 1000


def test_bytes_behind_a_mutation_are_refused(golden: GoldenSegment) -> None:
    """Otherwise a schema with too short cells would be taken for the right one."""
    decoder, version = MutationDecoder(golden.tables()), golden.version
    for payload in _payloads(golden):
        with pytest.raises(CommitLogReadError, match="bytes are left after the mutation"):
            decoder.decode(payload + b"\0", version)


@pytest.mark.exhaustive
def test_a_segment_cut_anywhere_yields_its_whole_entries(golden: GoldenSegment, tmp_path: Path) -> None:
    """No part of an entry is returned. A cut section ends in a typed error."""
    whole, content = golden.entries(), golden.path.read_bytes()
    header_size = read_descriptor(content).header_size
    path = tmp_path / golden.path.name
    path.write_bytes(content)
    for cut in reversed(range(len(content))):
        os.truncate(path, cut)
        entries, error = read_until_error(path)
        assert entries == [entry for entry in whole if entry.position <= cut]
        if error is None:
            # There is no room for another marker. Cassandra takes such a segment as full, and so does the agent.
            section_end = entries[-1].position if entries else header_size
            assert section_end <= cut < section_end + SYNC_MARKER_SIZE
        else:
            assert isinstance(error, BufferUnderflowError)
            assert error.segment == path.name
            assert error.position is not None
            assert error.position <= cut


@pytest.mark.exhaustive
def test_a_segment_with_any_bit_flipped_stops_at_it(golden: GoldenSegment, tmp_path: Path) -> None:
    """The entries before the bad byte are right, then a typed error follows.

    Only the end position of a section has no checksum. With a wrong end, either an entry or a marker does not fit.
    """
    whole, content = golden.entries(), golden.path.read_bytes()
    path = tmp_path / golden.path.name
    path.write_bytes(content)
    # All bits of one segment of each version.
    step = 1 if golden.line in {"3.11", "5.0", "5.0-none"} else 13
    damages: set[Damage | None] = set()
    with path.open("r+b", buffering=0) as file:
        for bit in range(0, len(content) * 8, step):
            at = bit // 8
            os.pwrite(file.fileno(), bytes([content[at] ^ (1 << bit % 8)]), at)
            entries, error = read_until_error(path)
            os.pwrite(file.fileno(), content[at : at + 1], at)
            assert error is not None
            assert error.segment == path.name
            assert entries == whole[: len(entries)]
            damages.add(error.damage)
    assert damages - {Damage.CUT, None} == {Damage.HEADER, Damage.SYNC_MARKER, Damage.ENTRY_SIZE, Damage.ENTRY}
