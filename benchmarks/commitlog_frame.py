"""Compares the commit log as a DataFrame with Cassandra's own CommitLogReader: `make bench-commitlog`.

Both read the same segments of a real Cassandra in turns. For us, they are in an archive, as an agent keeps it. Spark
runs with one core, and all of its CPU counts: driver, JVM and Python worker. Cassandra's reader has a handler that does
nothing, and its JVM is warm; the CPU of its thread counts. It converts no value to text. So `values=cql` is the fair
comparison; `values=json` is the option that most users have.

    python -m benchmarks.commitlog_frame [--mutations 160000] [--passes 3] [--folder FOLDER] [--json]
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from uuid import UUID

import click
from pyspark.sql import DataFrame

from benchmarks.commit_log_load import Load, write_load
from benchmarks.decode import RIVAL, WARM_PASSES, Result, java_command, started
from benchmarks.spark_meter import Measured, scan, timed
from benchmarks.spark_session import bench_session
from cdc.sandbox import artifacts
from change_agent.archive.segment_archive import SegmentArchive
from change_agent.schema.schema_history import NodeSchema, SchemaHistory
from spark_bridge import as_of, commit_log, register

_NODE: Final = UUID("0b6f4a3e-8f0e-4c0e-9d57-5f0c1d2e3a4b")
_TABLE: Final = "shop.orders"
_BAR: Final = 0.35


def archive_of(load: Load, folder: Path) -> str:
    """Archive the load in `folder`, as an agent does. Return the URL of the archive."""
    archive = SegmentArchive(str(folder), "zstd")
    with tempfile.TemporaryDirectory() as working:
        history = SchemaHistory(Path(working))
        history.load()
        history.add(NodeSchema(node_id=_NODE, schema=json.loads(load.schema_file.read_text())))
        archive.store_schema(history.archived(_NODE, 0))
        history.close()
    for each in load.segments:
        archive.store(each, str(_NODE))
    return str(folder)


def _measure(load: Load, folder: Path, passes: int) -> tuple[Result, list[Measured]]:
    """Return the fastest pass of Cassandra's reader, and the fastest scan of each of our frames."""
    url = archive_of(load, folder / "archive")
    options = {"archiveUrl": url, "table": _TABLE}
    with ExitStack() as stack:
        rival = stack.enter_context(started(RIVAL, java_command(load, folder)))
        spark = stack.enter_context(bench_session(artifacts.ensure("spark-avro"), folder, cores=1))
        register(spark)
        for _ in range(WARM_PASSES):
            rival.run("mutations")
        rival.forget()
        moment = int(time.time() * 1_000_000)
        frames: dict[str, DataFrame] = {
            "commit_log, values=cql": commit_log(spark, {**options, "values": "cql"}),
            "commit_log, values=json": commit_log(spark, options),
            "as_of": as_of(spark, options, moment, partial=True),
        }
        scan(frames["commit_log, values=cql"])
        best: dict[str, Measured] = {}
        for _ in range(passes):
            rival.run("mutations")
            mutations = rival.result("mutations").items
            for stage, frame in frames.items():
                found = timed(stage, mutations, lambda frame=frame: scan(frame))  # type: ignore[misc]  # mypy infers no lambda with a default
                if stage not in best or found.cpu_us_per_row < best[stage].cpu_us_per_row:
                    best[stage] = found
        return rival.result("mutations"), list(best.values())


@click.command()
@click.option("--mutations", default=160_000, show_default=True, type=click.IntRange(1000), help="To write first.")
@click.option(
    "--passes", default=3, show_default=True, type=click.IntRange(1), help="Over all segments, of each reader."
)
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Keep the segments here, and take them from here again."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of lines.")
def main(mutations: int, passes: int, folder: Path | None, as_json: bool) -> None:
    """Time the DataFrame of an archive beside Cassandra's own reader."""
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as temporary:
        load = write_load(Path(temporary) / "load" if folder is None else folder.absolute(), mutations)
        rival, ours = _measure(load, Path(temporary), passes)
    ratios = {each.stage: 1e6 / each.cpu_us_per_row / rival.rate for each in ours}
    load_average = round(os.getloadavg()[0], 2)
    if as_json:
        click.echo(
            json.dumps({"rival_mutations_per_s": rival.rate, "ratios": ratios, "load_average_1_min": load_average})
        )
        return
    click.echo(f"{rival.items:,} mutations, machine's load {load_average}")
    click.echo(f"{rival.reader:<34}{rival.rate:>10,.0f} mutations/s of CPU")
    for each in ours:
        rate = 1e6 / each.cpu_us_per_row
        click.echo(f"{each.stage:<34}{rate:>10,.0f} mutations/s of CPU{ratios[each.stage]:>7.2f} of it")
    click.echo(
        f"bar: {_BAR} of Cassandra's rate a core: {'met' if ratios['commit_log, values=cql'] >= _BAR else 'NOT met'}"
    )


if __name__ == "__main__":
    main()
