"""The native core returns the same bytes as Python for the entries that it accepts. It refuses all others."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import pytest
from cassandra.murmur3 import murmur3

from change_agent.decoder_build import native_obstacle
from change_agent.errors import NativeCoreError
from change_agent.events.events_writer import write_head
from change_agent.native_core import NativeCore, native_core
from change_agent.positions.accounts import TrackedEntry
from change_agent.publishing.outgoing import MessageHeader, OutgoingRun, WaitingEvents
from runtime.native_core import native_folder
from schemas.cql_type import NativeType
from schemas.mutation_event import MutationKind, decode_events
from schemas.table_metadata import TableMetadata
from tests.agent.both_ways import NODE_ID, SEGMENT_ID, BothWays
from tests.agent.segment_writer import entry_bytes
from tests.golden.segments import ENCODED_SEGMENTS, GOLDEN_SEGMENTS, GoldenSegment

needs_core = pytest.mark.skipif(
    native_core() is None,
    reason=f"there is no native core: {native_obstacle() or f'{native_folder().name} is not built or not chosen'}",
)
pytestmark = needs_core


def _core() -> NativeCore:
    core = native_core()
    assert core is not None
    return core


def _tables(golden: GoldenSegment, **changes: object) -> Mapping[UUID, TableMetadata]:
    return {table_id: replace(table, cdc=True, **changes) for table_id, table in golden.tables().items()}  # type: ignore[arg-type]


def _payloads(golden: GoldenSegment) -> list[bytes]:
    known = {table_id.bytes for table_id in golden.tables()}
    return [each.payload for each in golden.entries() if each.payload[1:17] in known]


def _ways(golden: GoldenSegment) -> BothWays:
    return BothWays(_core(), _tables(golden), golden.version)


GOLDEN = GOLDEN_SEGMENTS[-1]


@pytest.mark.parametrize("golden", [*GOLDEN_SEGMENTS, *ENCODED_SEGMENTS], ids=lambda golden: golden.line)
def test_every_golden_mutation_is_taken_and_gives_the_same_bytes(golden: GoldenSegment) -> None:
    """All mutations at once, and each one separately."""
    ways, payloads = _ways(golden), _payloads(golden)
    taken = ways.natively(payloads)
    assert taken is not None
    # One of the mutations wrote only a cell of a dropped column.
    assert (taken.entries, taken.skipped) == (len(payloads), 1)
    assert taken.messages == ways.plainly(payloads)
    assert [ways.outcome(each) for each in payloads] == ["taken"] * len(payloads)


@pytest.mark.parametrize(
    "flags", [b"\x30", b"\x34", b"\xb0\x02", b"\xb4\x02"], ids=["row", "marker", "shadowable", "both"]
)
def test_the_deletion_of_a_row_is_taken(flags: bytes) -> None:
    """The golden segments lack row deletions.

    The row marker is older or newer than the deletion, or undoes a shadowable one.
    """
    table = next(each for each in _tables(GOLDEN).values() if each.name == "clustered")
    clustering = b"\0" + (5).to_bytes(4, "big") + b"\3row"
    for marker, deletion in ((b"\x05", b"\x09"), (b"\x09", b"\x05")):
        row = flags + clustering + (marker if flags[0] & 4 else b"") + deletion + b"\x07"
        head = b"\1" + table.table_id.bytes + b"\4" + (3).to_bytes(4, "big")
        # Flags, statistics, no columns, estimate, the row, end.
        payload = head + b"\x10" + b"\0\0\0" + b"\0" + b"\1" + row + b"\1"
        ways = _ways(GOLDEN)
        assert ways.outcome(payload) == "taken"
        (message,) = ways.plainly([payload]).values()
        (event,) = decode_events(message).events
        assert (event.kind is MutationKind.ROW_DELETION) == (not (flags[0] & 4 and marker > deletion))


@pytest.mark.parametrize("form", ["7ff8000000000000", "fff8000000000001", "7ff0000000000001", "7ff0000000000000"])
def test_a_nan_in_a_key_is_taken(form: str) -> None:
    """In a clustering column all of them are one row, with one key. Infinity is none of them."""
    first, *others = (each for each in _tables(GOLDEN).values() if each.name == "clustered")
    assert not others
    column = replace(first.clustering_key[0], type=NativeType("double"))
    table = replace(first, clustering_key=(column, *first.clustering_key[1:]))
    row = b"\x30" + b"\0" + bytes.fromhex(form) + b"\3row" + b"\x05" + b"\x07"
    head = b"\1" + table.table_id.bytes + b"\4" + (3).to_bytes(4, "big")
    payload = head + b"\x10" + b"\0\0\0" + b"\0" + b"\1" + row + b"\1"
    ways = BothWays(_core(), {table.table_id: table}, GOLDEN.version)
    assert ways.outcome(payload) == "taken"
    (message,) = ways.plainly([payload]).values()
    (event,) = decode_events(message).events
    shown = form if form == "7ff0000000000000" else "7ff8000000000000"
    assert bytes.fromhex(shown)[::-1] in event.key


@pytest.mark.exhaustive
@pytest.mark.parametrize("golden", GOLDEN_SEGMENTS, ids=lambda golden: golden.line)
def test_a_mutation_cut_anywhere_is_what_python_says(golden: GoldenSegment) -> None:
    """Every length of every golden mutation, with a checksum that fits."""
    ways = _ways(golden)
    outcomes = Counter(
        ways.outcome(each[:end]).split()[0] for each in _payloads(golden) for end in range(10, len(each))
    )
    assert set(outcomes) == {"BufferUnderflowError"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("golden", GOLDEN_SEGMENTS, ids=lambda golden: golden.line)
def test_a_mutation_with_any_bit_flipped_is_what_python_says(golden: GoldenSegment) -> None:
    """The core returns the same bytes, or Python's error. It rarely refuses a mutation that Python accepts."""
    ways = _ways(golden)
    outcomes = Counter(
        ways.outcome(bytes(flipped)).split()[0] for each in _payloads(golden) for flipped in _with_one_bit_flipped(each)
    )
    assert outcomes["taken"] > 1000
    assert outcomes["refused"] < outcomes["taken"] / 20


def _with_one_bit_flipped(payload: bytes) -> list[bytearray]:
    flipped = [bytearray(payload) for _ in range(8 * len(payload))]
    for bit, each in enumerate(flipped):
        each[bit // 8] ^= 1 << bit % 8
    return flipped


@pytest.mark.exhaustive
@pytest.mark.parametrize("golden", GOLDEN_SEGMENTS, ids=lambda golden: golden.line)
def test_a_damaged_window_gives_only_the_entries_before_the_damage(golden: GoldenSegment) -> None:
    """Each byte is changed: in sizes, payloads and both checksums."""
    ways, payloads = _ways(golden), _payloads(golden)[:4]
    ends = [100 + sum(len(entry_bytes(each)) for each in payloads[: count + 1]) for count in range(len(payloads))]
    window = b"".join(map(entry_bytes, payloads))
    for at in range(len(window)):
        damaged = window[:at] + bytes([window[at] ^ 0x41]) + window[at + 1 :]
        found = ways.encode(damaged, 0, 100)
        whole = sum(end - 100 <= at for end in ends)
        assert (0 if found is None else found.entries) == whole
        cut = ways.encode(window[:at], 0, 100)
        assert (0 if cut is None else cut.entries) == whole


def test_no_entry_that_ends_behind_the_limit_is_taken() -> None:
    """The limit is the position up to which Cassandra has synced."""
    ways, payloads = _ways(GOLDEN), _payloads(GOLDEN)[:3]
    window = b"".join(map(entry_bytes, payloads))
    ends = [100 + sum(len(entry_bytes(each)) for each in payloads[: count + 1]) for count in range(3)]
    for limit in range(90, ends[-1] + 5):
        found = ways.encode(window, 0, 100, limit)
        assert (100 if found is None else found.end) == max([100, *(end for end in ends if end <= limit)])


def test_an_entry_of_an_unknown_table_stops_a_batch_before_it() -> None:
    """Later entries wait until Python has read it, so the order is kept."""
    ways, payloads = _ways(GOLDEN), _payloads(GOLDEN)
    unknown = payloads[1][:1] + bytes(16) + payloads[1][17:]
    taken = ways.natively([payloads[0], unknown, payloads[2]])
    assert taken is not None
    assert taken.entries == 1
    assert ways.natively([unknown, payloads[2]]) is None


def test_a_table_whose_keys_the_core_does_not_write_is_left_to_python() -> None:
    """The types decimal, duration, inet and those that are not native are rare in keys."""
    tables = _tables(GOLDEN)
    changed = {
        table_id: replace(
            table, partition_key=tuple(replace(each, type=NativeType("decimal")) for each in table.partition_key)
        )
        for table_id, table in tables.items()
    }
    ways = BothWays(_core(), changed, GOLDEN.version)
    assert all(ways.natively([each]) is None for each in _payloads(GOLDEN))


def test_a_second_table_of_a_topic_waits_for_the_next_batch() -> None:
    """After a DROP and a CREATE, both tables publish to the same topic, in the order of the log."""
    tables = _tables(GOLDEN)
    payload = next(each for each in _payloads(GOLDEN) if tables[UUID(bytes=each[1:17])].name == "simple")
    again = replace(tables[UUID(bytes=payload[1:17])], table_id=UUID(int=9))
    ways = BothWays(_core(), {**tables, again.table_id: again}, GOLDEN.version)
    other = payload[:1] + again.table_id.bytes + payload[17:]
    taken = ways.natively([payload, payload, other, payload])
    assert taken is not None
    assert taken.entries == 2


def test_a_panic_is_an_error_that_says_where() -> None:
    """The reader never passes a start after the end of the window. The core panics on it."""
    with pytest.raises(NativeCoreError, match="position 100: the native core broke off"):
        _ways(GOLDEN).encode(b"short", 99, 100)


def test_tokens_are_those_of_the_driver() -> None:
    """Bytes above 127 are at each position of the tail, where Cassandra's Murmur3 differs from others."""
    choice = random.Random(20)
    for size in range(80):
        key = choice.randbytes(size)
        assert _core().token(key) == murmur3(key)


def test_messages_keep_their_limits_and_the_order_whatever_is_taken() -> None:
    """All limits of events and bytes.

    No event is lost, doubled or out of order, and a message with one event may be larger.
    """
    ways, payloads = _ways(GOLDEN), _payloads(GOLDEN)
    (name, message), *_ = sorted(ways.plainly(payloads).items(), key=lambda each: -len(each[1]))
    expected = decode_events(message).events
    header = MessageHeader(NODE_ID, SEGMENT_ID, *name.split(".", 1), UUID(int=1), "{}")
    for max_events in (1, 2, 3, 1000):
        for max_bytes in (1, 150, 300, 100_000):
            seen = []
            waiting = _waiting(ways, payloads, name, header)
            while waiting:
                runs = waiting.take_encoded(max_events, max_bytes)
                part = decode_events(_core().pack(write_head(*header), [each.run for each in runs])).events
                assert len(part) == sum(each.count for each in runs) <= max_events
                assert len(part) == 1 or sum(each.size for each in runs) <= max_bytes
                seen += part
            assert waiting.size == 0
            assert [event._replace(position=0) for event in seen] == [
                event._replace(position=0) for event in (*expected, *expected)
            ]


def _waiting(ways: BothWays, payloads: list[bytes], name: str, header: MessageHeader) -> WaitingEvents:
    """The events of one table, from two batches with the same entries."""
    waiting = WaitingEvents()
    for _ in range(2):
        found = ways.encode(b"".join(map(entry_bytes, payloads)), 0, 100)
        assert found is not None
        for index, run in found.runs:
            if ways.tables[index].full_name == name:
                waiting.add(OutgoingRun(header, run, TrackedEntry(1, found.events_end, len(run))))
    return waiting


def test_runs_are_split_by_the_partition_of_their_tokens() -> None:
    """Each event goes to the same partition as a single event."""
    ways, payloads = _ways(GOLDEN), _payloads(GOLDEN)
    found = ways.encode(b"".join(map(entry_bytes, payloads)), 0, 100)
    assert found is not None
    for _, run in found.runs:
        for partitions in (1, 2, 5):
            parts = run.split(partitions)
            assert sum(len(part) for _, part in parts) == len(run)
            for index, part in parts:
                events = decode_events(_core().pack(write_head(NODE_ID, 1, "k", "t", UUID(int=1), "{}"), [part])).events
                assert {((murmur3(each.partition_key) >> 48) + 32_768) % partitions for each in events} == {index}
                assert [each.position for each in events] == sorted(each.position for each in events)
