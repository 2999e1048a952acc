"""The fault kit on real servers: everything is broken on purpose, and nothing is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cdc.faults.kinds import FaultKind
from cdc.faults.plan import TEST_COUNTS
from cdc.faults.run import RunOptions, run_faults

pytestmark = pytest.mark.integration

_SEED_VARIABLE = "CDC_TEST_SEED"


@pytest.mark.timeout(5400)
def test_nothing_is_lost_whatever_is_broken() -> None:
    """Kills, standstills, networks, disks, index files, clocks, second agents, restarts in every order: every row is equal."""
    seed = int(os.environ.get(_SEED_VARIABLE) or 1)
    print(f"faults of seed {seed} ({_SEED_VARIABLE} repeats them)")
    folder = Path("build").absolute() / "faults" / f"seed-{seed}"
    options = RunOptions(seed=seed, counts=TEST_COUNTS, folder=folder, pace_s=0.4)
    report = run_faults(options, say=print, on_progress=lambda name, step: None)
    lines = "\n".join(report.lines())
    print(lines)
    assert report.is_good, f"evidence in {folder}\n{lines}"
    assert len(report.struck) == sum(TEST_COUNTS.values())
    assert report.judged_changes > 1_000
    assert min(table.rows for table in report.tables) > 0
    met = report.kinds_with_changes_in_flight()
    assert met[FaultKind.AGENT_KILL] >= TEST_COUNTS[FaultKind.AGENT_KILL] // 2, met
