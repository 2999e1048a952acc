"""Segments of a real Cassandra after CQL of all kinds, read by us and by Cassandra's own CommitLogReader."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from cassandra import DriverException, InvalidRequest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.concurrent import execute_concurrent

from cdc.sandbox import Sandbox, SandboxOptions
from cdc.sandbox.cassandra_node import CassandraNode
from cdc.schema_source import load_schema
from change_agent.cdc_raw.cdc_index import index_name
from change_agent.commitlog.reader import SegmentReader
from change_agent.commitlog.section_decoder import SegmentOptions
from change_agent.configuration.commitlog_options import load_segment_options
from tests.commitlog_oracle.oracle import CommitLogOracle, OracleOutput
from tests.oracle.damage import DamagedReading, read_damaged
from tests.oracle.features import FeatureCounts, count_features
from tests.oracle.random_cql import random_cql
from tests.oracle.statements import statements
from tests.oracle.variants import CIPHER, VARIANTS, Variant

__all__ = ["RANDOM_MUTATIONS", "Reading", "read_both"]

# Cassandra refuses some random CQL (contradicting bounds of a range, batches that are too large).
_MAX_REFUSED = 0.1
# For each variant. `make test` reads three variants, and `make test-all` reads five.
RANDOM_MUTATIONS: Final = 2500
# Allows for statements that are refused or change nothing.
_SPARE: Final = 1.1
_CONCURRENCY: Final = 16
# A seed to repeat, as the report of a run prints it; otherwise each run has its own.
_SEED_VARIABLE: Final = "CDC_TEST_SEED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
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
        """All rows, including static rows."""
        for update in self.updates():
            yield from cast(list[dict[str, list[dict[str, object]]]], update["rows"])
            if update["static_row"] is not None:
                yield cast(dict[str, list[dict[str, object]]], update["static_row"])

    def updates(self) -> Iterator[dict[str, object]]:
        """All partition updates."""
        for line in self.ours:
            yield from json.loads(line)["updates"]


def read_both(name: str, work_dir: Path, feature_counts: list[FeatureCounts]) -> Reading:
    """Run CQL of all kinds on a real Cassandra, and read its segments with both readers.

    `name` is the name of a variant. The features of the random mutations are added to `feature_counts`.
    """
    variant = VARIANTS[name]
    settings = {"enable_materialized_views": True, **variant.settings}
    options = SandboxOptions(cassandra=variant.line, pulsar=False, cassandra_settings=settings)
    with Sandbox(options) as sandbox:
        node = sandbox.node
        seed = int(os.environ.get(_SEED_VARIABLE) or secrets.randbelow(10**6))
        print(f"Cassandra {node.version} ({name}): random CQL of seed {seed}")
        _write(node, variant, seed)
        schema_file = work_dir / "schema.json"
        _cdc_decode(
            "--contact-point", f"{node.address}:{node.native_port}", "--write-schema", str(schema_file)
        ).check_returncode()
        node.drain()
        node.kill()
        # Before 4.0, Cassandra moves a segment to cdc_raw only when it discards it, so some are still in its own
        # folder.
        found = {path.name: path for folder in (node.commitlog_dir, node.cdc_raw) for path in folder.glob("*.log")}
        segments = [path for _, path in sorted(found.items())]
        judge = CommitLogOracle(variant.line, work_dir)
        oracle = judge.read(segments, node.folder)
        needed = ("--commitlog-options", str(node.cassandra_yaml)) if variant.encoding == CIPHER else ()
        decoded = _cdc_decode("--schema", str(schema_file), *needed, *map(str, segments))
        features = FeatureCounts(name, variant.version, seed)
        feature_counts.append(features)
        kept = [_copied(segment, work_dir) for segment in segments]
        segment_options = load_segment_options(node.cassandra_yaml, "node")
        ours = decoded.stdout.splitlines()
        count_features(features, "random", _with_payloads(ours, kept, segment_options), load_schema(schema_file))
        known = {(str(each["segment"]), int(each["position"])): line for line in ours for each in [json.loads(line)]}
        return Reading(
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
    """Copy a segment and its index, so that they remain after the sandbox."""
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
    """Run statements of all kinds one after the other, then many random ones."""
    profile = ExecutionProfile(request_timeout=60)
    cluster = Cluster(
        [node.address],
        port=node.native_port,
        schema_metadata_enabled=False,
        token_metadata_enabled=False,
        connect_timeout=60,
        control_connection_timeout=60,
        max_schema_agreement_wait=60,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    )
    with_vectors = variant.line == "5.0"
    count = round(RANDOM_MUTATIONS * _SPARE)
    random_part = random_cql(seed, "random", count, with_vectors=with_vectors)
    with cluster, cluster.connect() as session, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The server warns about some of these statements.
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
