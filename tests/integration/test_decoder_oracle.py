"""The decoder reads what Cassandra's own CommitLogReader reads, on segments that were made a minute ago."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

import pytest
from cassandra import DriverException, InvalidRequest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.concurrent import execute_concurrent

from cdc.commitlog_oracle.oracle import CommitLogOracle, OracleOutput
from cdc.sandbox import Sandbox, SandboxOptions
from cdc.sandbox.cassandra_node import CassandraNode
from cdc.schema_source import load_schema
from change_agent.cdc_raw.cdc_index import index_name, parse_cdc_index
from change_agent.commitlog.reader import SegmentReader
from change_agent.commitlog.section_decoder import SegmentOptions
from change_agent.configuration.commitlog_options import load_segment_options
from change_agent.errors import MalformedSegmentError
from tests.oracle.damage import DamagedReading, read_damaged
from tests.oracle.features import FEATURES, FeatureCounts, absence, count_features
from tests.oracle.random_cql import random_cql
from tests.oracle.statements import statements
from tests.oracle.variants import CIPHER, VARIANTS, Variant

# Random CQL meets limits of Cassandra (bounds of a range that exclude each other, batches that are too large).
_MAX_REFUSED = 0.1

# On each Cassandra, of which there are five: more than 10,000 in all.
_RANDOM_MUTATIONS: Final = 2500
# Statements that are refused, or change nothing.
_SPARE: Final = 1.1
_CONCURRENCY: Final = 16
_MIN_SHARE: Final = 0.01
# What Cassandra says of a sync marker that points behind the end of the file.
_BEYOND_THE_FILE: Final = "bad position but valid CRC"
# A seed to look at again, as the report of a run prints it; else each run has its own.
_SEED_VARIABLE: Final = "CDC_TEST_SEED"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The same segments, read by us and by Cassandra."""

    version: int
    encoding: str | None
    options: SegmentOptions
    segments: list[Path]
    ours: list[str]
    our_errors: str
    exit_code: int
    oracle: OracleOutput
    features: FeatureCounts
    damaged: list[DamagedReading]

    def rows(self) -> Iterator[dict[str, list[dict[str, object]]]]:
        """All rows, static ones too."""
        for update in self.updates():
            yield from cast(list[dict[str, list[dict[str, object]]]], update["rows"])
            if update["static_row"] is not None:
                yield cast(dict[str, list[dict[str, object]]], update["static_row"])

    def updates(self) -> Iterator[dict[str, object]]:
        """All partition updates."""
        for line in self.ours:
            yield from json.loads(line)["updates"]


@pytest.fixture(scope="module", params=VARIANTS)
def reading(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    feature_counts: list[FeatureCounts],
) -> _Reading:
    """CQL of all kinds run on a real Cassandra, and both readings of what it wrote."""
    variant = VARIANTS[request.param]
    work_dir = tmp_path_factory.mktemp("oracle")
    settings = {"enable_materialized_views": True, **variant.settings}
    options = SandboxOptions(cassandra=variant.line, pulsar=False, cassandra_settings=settings)
    with Sandbox(options) as sandbox:
        node = sandbox.node
        seed = int(os.environ.get(_SEED_VARIABLE) or secrets.randbelow(10**6))
        print(f"Cassandra {node.version} ({request.param}): random CQL of seed {seed}")
        _write(node, variant, seed)
        schema_file = work_dir / "schema.json"
        _cdc_decode(
            "--contact-point", f"{node.address}:{node.native_port}", "--write-schema", str(schema_file)
        ).check_returncode()
        node.drain()
        node.kill()
        # Before 4.0 a segment comes to cdc_raw only when it is discarded, and some are not yet.
        found = {path.name: path for folder in (node.commitlog_dir, node.cdc_raw) for path in folder.glob("*.log")}
        segments = [path for _, path in sorted(found.items())]
        judge = CommitLogOracle(variant.line, work_dir)
        oracle = judge.read(segments, node.folder)
        needed = ("--commitlog-options", str(node.cassandra_yaml)) if variant.encoding == CIPHER else ()
        decoded = _cdc_decode("--schema", str(schema_file), *needed, *map(str, segments))
        features = FeatureCounts(request.param, variant.version, seed)
        feature_counts.append(features)
        kept = [_copied(segment, work_dir) for segment in segments]
        segment_options = load_segment_options(node.cassandra_yaml, "node")
        ours = decoded.stdout.splitlines()
        count_features(features, "random", _with_payloads(ours, kept, segment_options), load_schema(schema_file))
        known = {(str(each["segment"]), int(each["position"])): line for line in ours for each in [json.loads(line)]}
        return _Reading(
            features=features,
            damaged=read_damaged(kept, segment_options, known, (judge, node.folder), work_dir),
            version=variant.version,
            encoding=variant.encoding,
            options=segment_options,
            segments=kept,
            ours=ours,
            our_errors=decoded.stderr,
            exit_code=decoded.returncode,
            oracle=oracle,
        )


def _copied(segment: Path, folder: Path) -> Path:
    """The segment and its index outlive the sandbox."""
    for path in (segment, segment.parent / index_name(segment.name)):
        if path.exists():
            (folder / path.name).write_bytes(path.read_bytes())
    return folder / segment.name


def _with_payloads(lines: list[str], segments: list[Path], options: SegmentOptions) -> Iterator[tuple[str, bytes]]:
    """Each line with the bytes of its entry."""
    payloads: dict[tuple[str, int], bytes] = {}
    for segment in segments:
        with SegmentReader(segment, options=options) as reader:
            payloads |= {(reader.name, entry.position): entry.payload for entry in reader.read()}
    for line in lines:
        printed = json.loads(line)
        yield line, payloads[printed["segment"], printed["position"]]


def _cdc_decode(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cdc.main", "decode", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def _write(node: CassandraNode, variant: Variant, seed: int) -> None:
    """Statements of all kinds one after the other, then many random ones."""
    profile = ExecutionProfile(request_timeout=60)
    cluster = Cluster(
        [node.address],
        port=node.native_port,
        schema_metadata_enabled=False,
        token_metadata_enabled=False,
        connect_timeout=60,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    )
    with_vectors = variant.line == "5.0"
    count = round(_RANDOM_MUTATIONS * _SPARE)
    random_part = random_cql(seed, "random", count, with_vectors=with_vectors)
    with cluster, cluster.connect() as session, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the server's advice about what it is asked to do here
        for statement in statements("written", with_vectors=with_vectors, beyond_2038=variant.version >= 8):
            session.execute(statement)
        for schema, writes in (
            (random_part.schema, random_part.writes),
            (random_part.alterations, random_part.later_writes),
        ):
            for statement in schema:
                session.execute(statement)
            _run(session, writes)


def _run(session: Session, cql: list[str]) -> None:
    refused: Counter[str] = Counter()
    outcomes = execute_concurrent(
        session, [(statement, ()) for statement in cql], concurrency=_CONCURRENCY, raise_on_first_error=False
    )
    for statement, (success, outcome) in zip(cql, outcomes, strict=True):
        if success:
            continue
        assert isinstance(outcome, InvalidRequest | DriverException), outcome
        refused[f"{outcome} in {statement[:200]}"] += 1
    assert refused.total() <= _MAX_REFUSED * len(cql), refused


def test_every_mutation_is_what_cassandra_reads(reading: _Reading) -> None:
    """Line by line: every key, cell, time, deletion and range, in the same order, and none more or less."""
    assert len(reading.ours) > 600
    if reading.version == 6:
        # There a mutation is a HashMap by table, which has lost the order of the log.
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


def test_the_segments_are_of_the_version_and_encoding_under_test(reading: _Reading) -> None:
    """Else a setting of the node does not do what it should."""
    found = []
    for segment in reading.segments:
        with _reader(reading, segment) as reader:
            found.append(reader.descriptor)
    assert {each.version for each in found} == {reading.version}
    assert {each.encryption or each.compression for each in found} == {reading.encoding}


def _reader(reading: _Reading, segment: Path, position: int = 0) -> SegmentReader:
    return SegmentReader(segment, position, reading.options)


def test_nothing_in_them_is_an_error(reading: _Reading) -> None:
    """Both readers skip the mutation of the table that was dropped, and have nothing else to say."""
    assert reading.our_errors == "cdc: skipped 1 mutation, of 1 table not in the schema\n"
    assert reading.exit_code == 0
    (unknown,) = reading.oracle.errors
    assert unknown.startswith("unknown table ")


def test_the_segments_held_every_kind_of_change(reading: _Reading) -> None:
    """Else the comparison above would prove less than it says."""
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


def test_every_feature_is_in_one_of_a_hundred_random_mutations(reading: _Reading) -> None:
    """Else the comparison of random mutations would prove less than their number says."""
    counts = reading.features
    assert counts.mutations >= _RANDOM_MUTATIONS
    possible = [feature for feature in FEATURES if absence(feature, counts.line) is None]
    assert len(possible) >= len(FEATURES) - 2
    assert {feature: counts.counts[feature] for feature in possible if counts.share(feature) < _MIN_SHARE} == {}


def _clustering(row: dict[str, list[dict[str, object]]]) -> list[str | None]:
    return cast(list[str | None], row["clustering"])


def _neighbours(ranges: list[dict[str, object]]) -> Iterator[tuple[dict[str, object], dict[str, object]]]:
    return itertools.pairwise(ranges)


def test_an_index_marks_the_end_of_what_was_read(reading: _Reading) -> None:
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


def test_a_read_resumes_at_any_position(reading: _Reading) -> None:
    """From every place where a reader may have stopped, the rest is the rest."""
    segment = reading.segments[0]
    with _reader(reading, segment) as reader:
        entries = list(reader.read())
    for index in range(0, len(entries), max(1, len(entries) // 40)):
        with _reader(reading, segment, entries[index].position) as resumed:
            assert list(resumed.read()) == entries[index + 1 :]


def test_a_growing_limit_yields_every_entry_once(reading: _Reading) -> None:
    """A reader that follows the index sees what a reader of the finished segment sees, whatever the steps."""
    segment = reading.segments[0]
    with _reader(reading, segment) as reader:
        entries = list(reader.read())
    last = entries[-1].position
    with _reader(reading, segment) as following:
        seen = [entry for limit in range(0, last + 4097, 4097) for entry in following.read(limit)]
    assert seen == entries


def test_damaged_segments_are_read_as_far_as_cassandra_reads_them(reading: _Reading) -> None:
    """Never a mutation that was not written, never silence where Cassandra complains."""
    assert len(reading.damaged) > 100
    kinds: Counter[str] = Counter()
    for each in reading.damaged:
        kinds["nothing found" if each.our_error is None else type(each.our_error).__name__] += 1
        assert each.ours == list(range(len(each.ours))), each
        if each.our_error is None:
            assert (each.theirs, each.their_error) == (each.ours, None), each
        elif _BEYOND_THE_FILE in (each.their_error or ""):
            # whole entries of a section that is cut, or whose marker lies, are read by us alone
            assert each.theirs == each.ours[: len(each.theirs)], each
        elif isinstance(each.our_error, MalformedSegmentError):
            # lengths that no checksum covers are trusted by Cassandra alone
            assert len(each.theirs) >= len(each.ours), each
        else:
            assert each.their_error is not None, each
            assert each.theirs == each.ours, each
        if each.our_error is not None:
            assert each.our_error.segment is not None and each.our_error.position is not None, each
    found = ("nothing found", "BufferUnderflowError", "ChecksumMismatchError", "MalformedSegmentError")
    assert min(kinds[kind] for kind in found) >= 5, kinds
