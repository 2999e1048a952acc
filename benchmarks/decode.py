"""Compares our decoder, compiled and as plain Python, with Cassandra's own CommitLogReader: `make bench-decode`.

All read the same segments of a real Cassandra, with one thread each, and in turns, so that other load on the machine
affects all of them. Cassandra's reader has a handler that does nothing. Its JVM is warm: it has both compilers, and
reads all segments some times before a pass counts. The result of a reader is the CPU time of its thread in its fastest
pass.

    python -m benchmarks.decode [--mutations 160000] [--passes 5] [--folder FOLDER] [--json]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, cast

import click

from benchmarks.commit_log_load import Load, write_load
from cdc.sandbox.artifacts import cassandra_class_path
from cdc.sandbox.cassandra_config import jvm_options
from cdc.sandbox.prerequisites import java_home

__all__ = ["RIVAL", "WARM_PASSES", "Reader", "Result", "java_command", "started"]

_HERE: Final = Path(__file__).parent
_ROOT: Final = _HERE.parent
WARM_PASSES: Final = 3
_HEAP_MB: Final = 1024
RIVAL: Final = "Cassandra's CommitLogReader, warm"
_BAR: Final = 0.45
_EVENT_BAR_US: Final = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The fastest pass of one reader."""

    reader: str
    items: int
    size_bytes: int
    cpu_seconds: float
    wall_seconds: float
    rss_bytes: int

    @property
    def rate(self) -> float:
        """Items a second of CPU."""
        return self.items / self.cpu_seconds

    def line(self, rival: Result) -> str:
        """The figures as a text line, beside those of the rival."""
        return (
            f"{self.reader:<34}{self.rate:>10,.0f} mutations/s{self.size_bytes / self.cpu_seconds / 1e6:>8.1f} MB/s"
            f"{self.rate / rival.rate:>7.2f} of it{self.rss_bytes / 2**20:>7,.0f} MiB"
        )


class Reader:
    """A process that makes one pass for each line on its stdin."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self._name, self._process = name, process
        self._fastest: dict[str, dict[str, int]] = {}

    def run(self, kind: str) -> None:
        """Make one pass of the kind `mutations` or `events`. Raises click.ClickException when the process has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(kind + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise click.ClickException(f"{self._name} ended with exit code {self._process.wait()}")
        found = cast("dict[str, int]", json.loads(line))
        before = self._fastest.get(kind)
        if before is None or found["cpu_ns"] < before["cpu_ns"]:
            self._fastest[kind] = found

    def forget(self) -> None:
        """Drop all figures so far: those passes were warm-up."""
        self._fastest.clear()

    def result(self, kind: str) -> Result:
        """The fastest pass of a kind."""
        found = self._fastest[kind]
        return Result(
            reader=self._name,
            items=found[kind],
            size_bytes=found.get("bytes", 0),
            cpu_seconds=found["cpu_ns"] / 1e9,
            wall_seconds=found["wall_ns"] / 1e9,
            rss_bytes=found["rss_bytes"],
        )


@contextmanager
def started(name: str, command: list[str], **environment: str) -> Iterator[Reader]:
    """Start a reader in its own process, which is killed at the end."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT, env=os.environ | environment
    )
    try:
        yield Reader(name, process)
    finally:
        process.kill()
        process.wait()


def java_command(load: Load, classes: Path) -> list[str]:
    """Return the command that runs Cassandra's reader over a load. The reader is compiled to the folder `classes`."""
    jars = cassandra_class_path("5.0")
    class_path = ":".join(map(str, [classes, *jars]))
    source = _HERE / "java" / "ReaderBenchmark.java"
    javac = [str(java_home() / "bin" / "javac"), "-nowarn", "-d", str(classes), "-cp", class_path, str(source)]
    subprocess.run(javac, check=True)
    (jamm,) = (jar for jar in jars if jar.name.startswith("jamm-"))
    options = jvm_options(load.node_folder, heap_mb=_HEAP_MB, jamm=jamm)
    # The sandbox starts servers with the JVM's first compiler only. The benchmark needs both.
    options = [option for option in options if not option.startswith("-XX:TieredStopAtLevel")]
    silence = classes / "logback.xml"
    silence.write_text('<configuration><root level="OFF"/></configuration>')
    options.append(f"-Dlogback.configurationFile={silence}")
    return [str(java_home() / "bin" / "java"), *options, "-cp", class_path, "ReaderBenchmark", *map(str, load.segments)]


def _measure(load: Load, passes: int) -> tuple[list[Result], list[Result]]:
    """Return the results of `mutations` for all readers, the rival first, and of `events` for our readers."""
    ours = [sys.executable, "-m", "benchmarks.decode_passes", str(load.schema_file), *map(str, load.segments)]
    with ExitStack() as stack:
        classes = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cdc-bench-")))
        rival = stack.enter_context(started(RIVAL, java_command(load, classes)))
        compiled = stack.enter_context(started("ours, compiled", ours, CDC_DECODER="compiled"))
        plain = stack.enter_context(started("ours, plain Python", ours, CDC_DECODER="python"))
        for _ in range(WARM_PASSES):
            rival.run("mutations")
        rival.forget()
        for _ in range(passes):
            for reader in (rival, compiled, plain):
                reader.run("mutations")
            for reader in (compiled, plain):
                reader.run("events")
        readers = (rival, compiled, plain)
        return [each.result("mutations") for each in readers], [each.result("events") for each in readers[1:]]


@click.command()
@click.option("--mutations", default=160_000, show_default=True, type=click.IntRange(1000), help="To write first.")
@click.option(
    "--passes", default=5, show_default=True, type=click.IntRange(1), help="Over all segments, of each reader."
)
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Keep the segments here, and take them from here again."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of lines.")
def main(mutations: int, passes: int, folder: Path | None, as_json: bool) -> None:
    """Time the decoder beside Cassandra's own."""
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as temporary:
        load = write_load(Path(temporary) / "load" if folder is None else folder.absolute(), mutations)
        decoded, events = _measure(load, passes)
    rival, compiled = decoded[0], decoded[1]
    load_average = round(os.getloadavg()[0], 2)
    if as_json:
        results = {"mutations": [asdict(each) for each in decoded], "events": [asdict(each) for each in events]}
        click.echo(json.dumps({**results, "load_average_1_min": load_average}))
        return
    click.echo(
        f"{rival.items:,} mutations, {rival.size_bytes / rival.items:.0f} bytes each, one thread, machine's load {load_average}"
    )
    for each in decoded:
        click.echo(each.line(rival))
    for each in events:
        click.echo(f"{each.reader:<34}{1e6 / each.rate:>10.1f} us CPU from entry to event")
    met = compiled.rate / rival.rate >= _BAR and 1e6 / events[0].rate <= _EVENT_BAR_US
    click.echo(
        f"bars: {_BAR} of Cassandra's rate, {_EVENT_BAR_US:.0f} us an event, compiled: {'met' if met else 'NOT met'}"
    )


if __name__ == "__main__":
    main()
