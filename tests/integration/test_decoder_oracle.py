"""The decoder reads the same as Cassandra's own CommitLogReader, on segments that were just written."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

import pytest

from change_agent.cdc_raw.cdc_index import index_name, parse_cdc_index
from change_agent.commitlog.reader import SegmentReader
from change_agent.errors import MalformedSegmentError
from tests.oracle.features import FEATURES, FeatureCounts, absence
from tests.oracle.readings import RANDOM_MUTATIONS, Reading, read_both
from tests.oracle.variants import VARIANTS

# The other variants have the oldest and the newest version of the log, compressed. The kill tests read others beside
# Cassandra, and the golden segments have each version and each encryption.
_EXTENDED: Final = {"4.0-zstd", "4.1-jceks", "5.0"}
_MIN_SHARE: Final = 0.01
# Cassandra's message about a sync marker that points beyond the end of the file.
_BEYOND_THE_FILE: Final = "bad position but valid CRC"


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.extended) if name in _EXTENDED else name for name in VARIANTS],
)
def reading(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    feature_counts: list[FeatureCounts],
) -> Reading:
    """CQL of all kinds run on a real Cassandra, and what both readers read of it."""
    return read_both(request.param, tmp_path_factory.mktemp("oracle"), feature_counts)


def test_every_mutation_is_what_cassandra_reads(reading: Reading) -> None:
    """Every key, cell, time, deletion and range is equal, line by line, in the same order and number."""
    assert len(reading.ours) > 600
    if reading.version == 6:
        # In this version a mutation is a HashMap by table, which does not keep the order of the log.
        reading = replace(
            reading, ours=_by_table(reading.ours), oracle=replace(reading.oracle, lines=_by_table(reading.oracle.lines))
        )
    differing = [
        (ours, theirs) for ours, theirs in zip(reading.ours, reading.oracle.lines, strict=False) if ours != theirs
    ]
    assert differing[:3] == []
    assert len(reading.ours) == len(reading.oracle.lines)


def _by_table(lines: list[str]) -> list[str]:
    mutations = [json.loads(line) for line in lines]
    for mutation in mutations:
        mutation["updates"].sort(key=lambda update: str(update["table_id"]))
    return list(map(json.dumps, mutations))


def test_the_segments_are_of_the_version_and_encoding_under_test(reading: Reading) -> None:
    """Otherwise a setting of the node would have no effect."""
    found = []
    for segment in reading.segments:
        with _reader(reading, segment) as reader:
            found.append(reader.descriptor)
    assert {each.version for each in found} == {reading.version}
    assert {each.encryption or each.compression for each in found} == {reading.encoding}


def _reader(reading: Reading, segment: Path, position: int = 0) -> SegmentReader:
    return SegmentReader(segment, position, reading.options)


def test_nothing_in_them_is_an_error(reading: Reading) -> None:
    """Both readers skip the mutation of the dropped table, and report nothing else."""
    assert reading.our_errors == "cdc: skipped 1 mutation, of 1 table not in the schema\n"
    assert reading.exit_code == 0
    (unknown,) = reading.oracle.errors
    assert unknown.startswith("unknown table ")


def test_the_segments_held_every_kind_of_change(reading: Reading) -> None:
    """Otherwise the comparison above would not cover each kind."""
    updates, rows = list(reading.updates()), list(reading.rows())
    cells = [cell for row in rows for cell in row["cells"]]
    ranges = [each for update in updates for each in cast(list[dict[str, object]], update["range_tombstones"])]
    kinds = {
        "several tables": any(len(json.loads(line)["updates"]) > 1 for line in reading.ours),
        "partition deletion": any(update["partition_deletion"] for update in updates),
        "static row": any(update["static_row"] for update in updates),
        "static row alone": any(update["static_row"] and not update["rows"] for update in updates),
        "several rows": any(len(cast(list[object], update["rows"])) > 1 for update in updates),
        "row deletion": any(row["deletion"] for row in rows),
        "row deletion and cells": any(row["deletion"] and row["cells"] for row in rows),
        "row marker alone": any(row["liveness"] and not row["cells"] for row in rows),
        "row marker with TTL": any(row["liveness"] and cast(dict[str, int], row["liveness"])["ttl"] for row in rows),
        "no row marker": any(row["cells"] and not row["liveness"] for row in rows),
        "complex deletion": any(row["complex_deletions"] for row in rows),
        "more than 64 cells": any(len(row["cells"]) > 64 for row in rows),
        "cell with TTL": any(cell["ttl"] for cell in cells),
        "tombstone": any(cell["value"] is None for cell in cells),
        "empty value": any(cell["value"] == "" for cell in cells),
        "element tombstone": any(cell["path"] is not None and cell["value"] is None for cell in cells),
        "negative timestamp": any(cast(int, cell["timestamp"]) < 0 for cell in cells),
        "absent clustering": any(None in _clustering(row) for row in rows),
        "empty clustering": any("" in _clustering(row) for row in rows),
        "open range": any(each["end"] == [] for each in ranges),
        "range of one prefix": any(each["start"] and each["start"] == each["end"] for each in ranges),
        "boundary": any(
            before["end"] == after["start"] and before["end_inclusive"] != after["start_inclusive"]
            for update in updates
            for before, after in _neighbours(cast(list[dict[str, object]], update["range_tombstones"]))
        ),
    }
    assert [kind for kind, seen in kinds.items() if not seen] == []


def test_every_feature_is_in_one_of_a_hundred_random_mutations(reading: Reading) -> None:
    """Otherwise the number of random mutations would prove less."""
    counts = reading.features
    assert counts.mutations >= RANDOM_MUTATIONS
    possible = [feature for feature in FEATURES if absence(feature, counts.line) is None]
    assert len(possible) >= len(FEATURES) - 2
    assert {feature: counts.counts[feature] for feature in possible if counts.share(feature) < _MIN_SHARE} == {}


def _clustering(row: dict[str, list[dict[str, object]]]) -> list[str | None]:
    return cast(list[str | None], row["clustering"])


def _neighbours(ranges: list[dict[str, object]]) -> Iterator[tuple[dict[str, object], dict[str, object]]]:
    return itertools.pairwise(ranges)


def test_an_index_marks_the_end_of_what_was_read(reading: Reading) -> None:
    """Reading up to the index of a completed segment gives what reading the whole chain of markers gives."""
    completed = 0
    if reading.version == 6:
        assert not any((segment.parent / index_name(segment.name)).exists() for segment in reading.segments)
        return
    for segment in reading.segments:
        index_file = segment.parent / index_name(segment.name)
        index = parse_cdc_index(index_file.read_bytes()) if index_file.exists() else None
        if index is None or not index.completed:
            continue
        completed += 1
        with _reader(reading, segment) as whole, _reader(reading, segment) as limited:
            assert list(limited.read(index.offset)) == list(whole.read())
            assert limited.position <= index.offset
    assert completed > 0


def test_a_read_resumes_at_any_position(reading: Reading) -> None:
    """A reader that resumes at the position of an entry reads exactly the entries after it."""
    segment = reading.segments[0]
    with _reader(reading, segment) as reader:
        entries = list(reader.read())
    for index in range(0, len(entries), max(1, len(entries) // 40)):
        with _reader(reading, segment, entries[index].position) as resumed:
            assert list(resumed.read()) == entries[index + 1 :]


def test_a_growing_limit_yields_every_entry_once(reading: Reading) -> None:
    """A reader that follows a growing limit reads the same entries as a reader of the whole segment."""
    segment = reading.segments[0]
    with _reader(reading, segment) as reader:
        entries = list(reader.read())
    last = entries[-1].position
    with _reader(reading, segment) as following:
        seen = [entry for limit in range(0, last + 4097, 4097) for entry in following.read(limit)]
    assert seen == entries


def test_damaged_segments_are_read_as_far_as_cassandra_reads_them(reading: Reading) -> None:
    """The decoder never reads a mutation that was not written, and reports an error where Cassandra does."""
    assert len(reading.damaged) > 100
    kinds: Counter[str] = Counter()
    for each in reading.damaged:
        kinds["nothing found" if each.our_error is None else type(each.our_error).__name__] += 1
        assert each.ours == list(range(len(each.ours))), each
        if each.our_error is None:
            assert (each.theirs, each.their_error) == (each.ours, None), each
        elif _BEYOND_THE_FILE in (each.their_error or ""):
            # Only our reader reads whole entries of a section that is cut, or whose marker is wrong.
            assert each.theirs == each.ours[: len(each.theirs)], each
        elif isinstance(each.our_error, MalformedSegmentError):
            # Only Cassandra trusts lengths that no checksum covers.
            assert len(each.theirs) >= len(each.ours), each
        else:
            assert each.their_error is not None, each
            assert each.theirs == each.ours, each
        if each.our_error is not None:
            assert each.our_error.segment is not None and each.our_error.position is not None, each
    found = ("nothing found", "BufferUnderflowError", "ChecksumMismatchError", "MalformedSegmentError")
    assert min(kinds[kind] for kind in found) >= 5, kinds
