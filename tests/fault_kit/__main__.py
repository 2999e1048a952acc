"""`python -m tests.fault_kit`: break every part on purpose, and prove that nothing was lost."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Final

import click

from cdc.main import run as run_command
from cdc.progress import progress_display
from cdc.sandbox.versions import CASSANDRA_VERSIONS
from schemas.errors import ConfigError
from tests.fault_kit.commitlog import CommitLogEncoding
from tests.fault_kit.completeness import CompletenessOptions, run_completeness
from tests.fault_kit.kinds import DESCRIPTIONS, FaultKind
from tests.fault_kit.plan import FULL_COUNTS, counts_for_minutes, draw_plan, fitting
from tests.fault_kit.run import RunOptions, run_faults
from tests.fault_kit.sinks import SinkOptions, run_sinks
from tests.fault_kit.soak import SoakOptions, run_soak
from tests.fault_kit.soak_plot import plot_soak

__all__ = ["faults"]

_NAME: Final = "python -m tests.fault_kit"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show a traceback with errors.")
def faults(debug: bool) -> None:
    """Break every part on purpose, and compare what arrived with Cassandra."""


@faults.command()
def kinds() -> None:
    """List the kinds of faults."""
    for kind, text in DESCRIPTIONS.items():
        click.echo(f"{kind:20} {text}")


@faults.command()
@click.option("--seed", type=int, help="What the faults are drawn from; without, one is drawn and told.")
@click.option("--checks", type=click.IntRange(1), default=1_000, show_default=True, help="At least so many checks.")
@click.option("--faults", "count", type=click.IntRange(0), default=20, show_default=True, help="So many faults.")
@click.option(
    "--nodes", type=click.IntRange(1, 3), default=1, show_default=True, help="Cassandra nodes, each with an agent."
)
@click.option("--synced", is_flag=True, help="Agents without readUnsynced, and nodes that sync each batch.")
@click.option("--mirror", is_flag=True, help="Also keep a mirror by Spark, and check what each of its runs says.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Where evidence goes.")
def resolved(
    seed: int | None, checks: int, count: int, nodes: int, synced: bool, mirror: bool, folder: Path | None
) -> None:
    """Look for resolved timestamps that come too early.

    The exit code is 1 when a row was missing, or when the line did not recover.
    """
    seed = secrets.randbelow(10**6) if seed is None else seed
    options = CompletenessOptions(
        seed=seed,
        folder=(folder or Path("build") / "faults" / f"resolved-{seed}").absolute(),
        checks=checks,
        faults=count,
        nodes=nodes,
        is_unsynced=not synced,
        with_mirror=mirror,
    )
    report = run_completeness(options, say=click.echo)
    for line in report.lines():
        click.echo(line)
    sys.exit(0 if report.is_good else 1)


@faults.command()
@click.option("--seed", type=int, help="What faults and statements are drawn from; without, one is drawn and told.")
@click.option("--faults", "count", type=click.IntRange(0), default=20, show_default=True, help="So many faults.")
@click.option(
    "--nodes", type=click.IntRange(1, 3), default=2, show_default=True, help="Cassandra nodes, each with an agent."
)
@click.option("--rate", type=click.FloatRange(1), default=30.0, show_default=True, help="Statements a second.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Where evidence goes.")
def sinks(seed: int | None, count: int, nodes: int, rate: float, folder: Path | None) -> None:
    """Compare sinks with tables that are deleted from in every way, expire, and are truncated and dropped.

    The exit code is 1 when a row differs.
    """
    seed = secrets.randbelow(10**6) if seed is None else seed
    folder = (folder or Path("build") / "faults" / f"sinks-{seed}").absolute()
    report = run_sinks(SinkOptions(seed=seed, folder=folder, faults=count, nodes=nodes, rate=rate), say=click.echo)
    for line in report.lines():
        click.echo(line)
    sys.exit(0 if report.is_good else 1)


@faults.command()
@click.option("--seed", type=int, help="What plan and workload are drawn from; without, one is drawn and told.")
@click.option("--minutes", type=click.FloatRange(0.1), help="About how long faults are struck.")
@click.option("--faults", "count", type=click.IntRange(1), help="About how many faults, instead of --minutes.")
@click.option("--kinds", "names", default="all", show_default=True, help="Kinds of faults, parted by commas.")
@click.option(
    "--nodes", type=click.IntRange(1, 3), default=1, show_default=True, help="Cassandra nodes, each with an agent."
)
@click.option("--cassandra", type=click.Choice(list(CASSANDRA_VERSIONS)), default="5.0", show_default=True)
@click.option(
    "--commitlog",
    type=click.Choice([each.value for each in CommitLogEncoding]),
    default="plain",
    show_default=True,
    help="How the commit log is written.",
)
@click.option("--rate", type=click.FloatRange(1), default=60.0, show_default=True, help="Statements a second.")
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), help="Where evidence goes; build/faults/seed-S."
)
@click.option("--keep", is_flag=True, help="Keep the servers' files of a good run, too.")
@click.option("--plan", "only_plan", is_flag=True, help="Print the faults in order, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def run(
    seed: int | None,
    minutes: float | None,
    count: int | None,
    names: str,
    nodes: int,
    cassandra: str,
    commitlog: str,
    rate: float,
    folder: Path | None,
    keep: bool,
    only_plan: bool,
    as_json: bool,
) -> None:
    """Write, break, and compare. Without --minutes and --faults it strikes 90 faults (some minutes on a quiet machine).

    The exit code is 1 when something was lost, invented or out of order, or when the line did not recover.
    """
    seed = secrets.randbelow(10**6) if seed is None else seed
    counts = _counts(_kinds(names), minutes, count)
    if only_plan:
        fit, left_out = fitting(counts, nodes=nodes, cassandra=cassandra)
        for line in (*left_out, *draw_plan(seed, fit, nodes=nodes, pace_s=0.4)):
            click.echo(line)
        return
    options = RunOptions(
        seed=seed,
        counts=counts,
        folder=(folder or Path("build") / "faults" / f"seed-{seed}").absolute(),
        nodes=nodes,
        cassandra=cassandra,
        commitlog=CommitLogEncoding(commitlog),
        rate=rate,
        keep=keep,
        replay=_replay(seed, names, minutes, count, nodes, cassandra, commitlog, rate),
    )
    click.echo(f"seed {seed}, evidence in {options.folder}", err=True)
    with progress_display(quiet=as_json) as on_progress:
        report = run_faults(options, say=lambda text: click.echo(text, err=True), on_progress=on_progress)
    click.echo(report.as_json() if as_json else "\n".join(report.lines()))
    sys.exit(0 if report.is_good else 1)


@faults.command()
@click.option("--seed", type=int, default=1, show_default=True, help="What the workload is drawn from.")
@click.option("--minutes", type=click.FloatRange(0.5), default=30.0, show_default=True)
@click.option("--rate", type=click.FloatRange(1), default=60.0, show_default=True, help="Statements a second.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Where the report goes; build/soak.")
def soak(seed: int, minutes: float, rate: float, folder: Path | None) -> None:
    """Load without faults: memory, open files, threads and lag over time, and a plot of them.

    The exit code is 1 when a process of ours grew, or a row is not equal in the end.
    """
    options = SoakOptions(seed=seed, minutes=minutes, rate=rate, folder=(folder or Path("build") / "soak").absolute())
    with progress_display(quiet=False) as on_progress:
        report = run_soak(options, on_progress=on_progress, say=lambda text: click.echo(text, err=True))
    plot_soak(report, options.folder / "soak.png")
    for line in (*report.growths, *report.differences[:20]):
        click.echo(line, err=True)
    verdict = "flat, every row equal" if report.is_good else "NOT good"
    click.echo(f"soak: {minutes:g} min, {report.statements:,} statements, {verdict}; {options.folder / 'soak.png'}")
    sys.exit(0 if report.is_good else 1)


def _replay(
    seed: int,
    names: str,
    minutes: float | None,
    count: int | None,
    nodes: int,
    cassandra: str,
    commitlog: str,
    rate: float,
) -> str:
    """Return the command that draws the same plan and the same statements."""
    words = [f"{_NAME} run", f"--seed {seed}", f"--nodes {nodes}", f"--cassandra {cassandra}", f"--rate {rate:g}"]
    words += [f"--commitlog {commitlog}"] if commitlog != CommitLogEncoding.PLAIN.value else []
    words += [f"--minutes {minutes:g}"] if minutes is not None else []
    words += [f"--faults {count}"] if count is not None else []
    words += [f"--kinds {names}"] if names != "all" else []
    return " ".join(words)


def _kinds(names: str) -> list[FaultKind]:
    if names == "all":
        return list(FaultKind)
    wanted = [name.strip() for name in names.split(",")]
    unknown = sorted(set(wanted) - {kind.value for kind in FaultKind})
    if unknown:
        raise ConfigError.of("--kinds", f"{', '.join(unknown)}: no such kind; `{_NAME} kinds` lists them")
    return [FaultKind(name) for name in wanted]


def _counts(kinds: list[FaultKind], minutes: float | None, count: int | None) -> dict[FaultKind, int]:
    if minutes is not None:
        return counts_for_minutes(minutes, kinds)
    counts = {kind: FULL_COUNTS[kind] for kind in kinds}
    if count is None:
        return counts
    share = count / sum(counts.values())
    return {kind: max(1, round(each * share)) for kind, each in counts.items()}


if __name__ == "__main__":
    run_command(faults, _NAME)
