"""Makes tests/golden/commitlog: small segments of real nodes, and the lines of Cassandra's own reader about them.

    python -m tests.oracle.make_golden 3.11 4.0 4.1 5.0 5.0-none

`schema.cql` runs first, then `writes.cql`, into a new segment, and `later.cql` at the end. A segment that is not
encoded is cut after the last entry of `writes.cql`. `schema.json` has the keyspace `golden` as the node describes it at
the end.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from cassandra.cluster import Cluster, Session

from cdc.sandbox import Sandbox, SandboxOptions
from cdc.sandbox.cassandra_node import CassandraNode
from cdc.schema_source import fetch_schema
from change_agent.commitlog.reader import SegmentReader
from change_agent.configuration.commitlog_options import load_segment_options
from tests.commitlog_oracle.oracle import CommitLogOracle
from tests.oracle.variants import ENCODED_VARIANTS, PLAIN_VARIANTS, Variant

GOLDEN = Path(__file__).parents[1] / "golden" / "commitlog"
ENCODED = GOLDEN.with_name("commitlog_encoded")
_SYNC_S = 1.0


def make_golden(name: str) -> None:
    """Write the folder of one of PLAIN_VARIANTS or ENCODED_VARIANTS again."""
    encoded = name in ENCODED_VARIANTS
    variant, folder = (ENCODED_VARIANTS if encoded else PLAIN_VARIANTS)[name], (ENCODED if encoded else GOLDEN) / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    options = SandboxOptions(cassandra=variant.line, pulsar=False, cassandra_settings=variant.settings)
    write_options(variant, folder)
    with tempfile.TemporaryDirectory() as work_dir, Sandbox(options) as sandbox:
        node = sandbox.node
        with Cluster([node.address], port=node.native_port) as cluster, cluster.connect() as session:
            _run(session, "schema.cql")
            # A dropped table makes Cassandra start a new segment.
            session.execute("CREATE TABLE golden.rotate (k int PRIMARY KEY)")
            session.execute("DROP TABLE golden.rotate")
            _run(session, "writes.cql")
            time.sleep(_SYNC_S)
            segment = _cut(_newest(node), folder, encoded=encoded)
            _run(session, "later.cql")
        schema = fetch_schema((node.address, node.native_port))
        kept = {name: [row for row in rows if row["keyspace_name"] == "golden"] for name, rows in schema.items()}
        (folder / "schema.json").write_text(json.dumps(kept, indent=1) + "\n")
        node.kill()
        oracle = CommitLogOracle(variant.line, Path(work_dir)).read([segment], node.folder)
        golden = [text for text in oracle.lines if json.loads(text)["keyspace"] == "golden"]
        (folder / "mutations.jsonl").write_text("".join(text + "\n" for text in golden))
        print(f"Cassandra {node.version}: {segment.name}, {segment.stat().st_size} bytes, {len(golden)} mutations")


def write_options(variant: Variant, folder: Path) -> None:
    """Write the options for `cdc decode --commitlog-options`, if any; the key store's path is relative to the file."""
    name = "transparent_data_encryption_options"
    if name in variant.settings:
        options = {name: copy.deepcopy(variant.settings[name])}
        (provider,) = options[name]["key_provider"]
        (parameters,) = provider["parameters"]
        parameters["keystore"] = os.path.relpath(parameters["keystore"], folder)
        (folder / "commitlog-options.json").write_text(json.dumps(options, indent=1) + "\n")


def _run(session: Session, script: str) -> None:
    for statement in (GOLDEN / script).read_text().splitlines():
        session.execute(statement)


def _newest(node: CassandraNode) -> Path:
    """The active segment: the last one with an entry."""
    options = load_segment_options(node.cassandra_yaml, "node")
    for path in sorted(node.commitlog_dir.glob("*.log"), reverse=True):
        with SegmentReader(path, options=options) as reader:
            if any(True for _ in reader.read()):
                return path
    raise AssertionError(f"no segment in {node.commitlog_dir} holds an entry")


def _cut(segment: Path, folder: Path, *, encoded: bool) -> Path:
    content = segment.read_bytes()
    if not encoded:
        # An encoded file is only as long as its content.
        with SegmentReader(segment) as reader:
            content = content[: max(entry.position for entry in reader.read())]
    (folder / segment.name).write_bytes(content)
    return folder / segment.name


if __name__ == "__main__":
    for each in sys.argv[1:]:
        make_golden(each)
