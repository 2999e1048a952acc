"""The fault kit on two nodes, each with an agent (`make test-multinode`): every row and every change is compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault_kit.kinds import FaultKind
from tests.fault_kit.plan import draw_plan
from tests.fault_kit.run import RunOptions, run_faults

pytestmark = [pytest.mark.integration, pytest.mark.multinode, pytest.mark.timeout(2400)]

_SEED = 7
_NODES = 2
_COUNTS = {
    FaultKind.AGENT_KILL: 4,
    FaultKind.CASSANDRA_KILL: 2,
    FaultKind.CHILD_KILL: 2,
    FaultKind.DISK_SPILL: 1,
    FaultKind.NETWORK_CUT: 1,
    FaultKind.IDX_TORN: 1,
    FaultKind.REPLICA_STOPPED: 1,
}


def test_the_plan_kills_both_nodes_and_both_agents() -> None:
    """The plan of another seed must do so, too."""
    plan = draw_plan(_SEED, _COUNTS, nodes=_NODES)
    for kind in (FaultKind.AGENT_KILL, FaultKind.CASSANDRA_KILL):
        assert {fault.node for fault in plan if fault.kind is kind} == {1, 2}, kind


def test_nothing_is_lost_on_two_nodes_whatever_is_broken() -> None:
    """Both nodes have every row, because hints bring missed writes; each node's changes are on the topics, in order."""
    folder = Path("build").absolute() / "faults" / "two-nodes"
    options = RunOptions(seed=_SEED, counts=_COUNTS, folder=folder, nodes=_NODES)
    report = run_faults(options, say=print, on_progress=lambda name, step: None)
    lines = "\n".join(report.lines())
    print(lines)
    assert report.is_good, f"evidence in {folder}\n{lines}"
    assert len(report.struck) == sum(_COUNTS.values())
    assert report.broken(FaultKind.NETWORK_CUT) >= 1
    assert report.broken(FaultKind.DISK_SPILL) >= 1 or not report.spill_is_on_another_disk
    # Each change is in the log of both nodes.
    assert report.judged_changes > 1_000
    assert min(table.rows for table in report.tables) > 0
