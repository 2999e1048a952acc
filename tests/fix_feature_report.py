"""Prints at the end of a run what the random mutations of the decoder's tests held, also when every test passed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.features import FeatureCounts, feature_table

__all__ = ["feature_counts"]

_COUNTS = pytest.StashKey[list[FeatureCounts]]()
_REPORT = Path(__file__).parents[1] / "build" / "decoder-features.txt"


@pytest.fixture(scope="session")
def feature_counts(pytestconfig: pytest.Config) -> list[FeatureCounts]:
    """Where a test that counted features puts its counts, to have them printed."""
    return pytestconfig.stash.setdefault(_COUNTS, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table, and keep it in build/."""
    counts = config.stash.get(_COUNTS, [])
    if not counts:
        return
    lines = feature_table(counts)
    _REPORT.parent.mkdir(exist_ok=True)
    _REPORT.write_text("\n".join(lines) + "\n")
    terminalreporter.section("what the random mutations of the decoder's judge held")
    for line in lines:
        terminalreporter.write_line(line)
