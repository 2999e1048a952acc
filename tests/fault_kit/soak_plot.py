"""Draws a long run: memory, open files, threads, lag and load over time, into one PNG. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from schemas.errors import ConfigError
from tests.fault_kit.soak import SoakReport

__all__ = ["plot_soak"]

_PROCESSES = {"rss_mib": "resident memory, MiB", "open_files": "open files", "threads": "threads"}


def plot_soak(report: SoakReport, file: Path) -> None:
    """Write the PNG. Raises ConfigError if matplotlib is not installed."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise ConfigError.of("plot", "matplotlib is not installed; `pip install matplotlib`") from error
    figure, axes = plt.subplots(len(_PROCESSES) + 2, 1, figsize=(11, 15), sharex=True, layout="constrained")
    for axis, (name, title) in zip(axes, _PROCESSES.items(), strict=False):
        for process in sorted({sample.process for sample in report.samples}):
            own = [sample for sample in report.samples if sample.process == process]
            axis.plot([sample.at_s / 60 for sample in own], [getattr(sample, name) for sample in own], label=process)
        _finish(axis, title)
    _line(axes[-2], report.lag_s, "agent's lag, s")
    _line(axes[-2], report.waiting, "messages that wait for the connector")
    _finish(axes[-2], "lag")
    _line(axes[-1], report.load, "load average of the machine")
    _finish(axes[-1], "load")
    axes[-1].set_xlabel("minutes")
    figure.suptitle(f"{report.minutes:g} minutes, {report.statements:,} statements, seed {report.seed}")
    figure.savefig(file, dpi=90)
    plt.close(figure)


def _line(axis: Any, points: list[tuple[float, float]], label: str) -> None:
    axis.plot([at_s / 60 for at_s, _ in points], [value for _, value in points], label=label)


def _finish(axis: Any, title: str) -> None:
    axis.set_ylabel(title)
    axis.set_ylim(bottom=0)
    axis.grid(visible=True, alpha=0.3)
    # above the lines, not over them
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, frameon=False, fontsize="small", ncols=5)
