"""Resolved timestamps with all parts: none comes too early while parts are killed, and all advance afterwards.

`make faults-resolved` is the long form, with all kinds of faults, and on two nodes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault_kit.completeness import CompletenessOptions, run_completeness
from tests.fault_kit.kinds import FaultKind

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_500)]

_KINDS = (FaultKind.AGENT_KILL, FaultKind.CHILD_KILL, FaultKind.NETWORK_CUT, FaultKind.CASSANDRA_KILL)


def test_no_write_that_was_answered_before_a_resolved_timestamp_is_missing(tmp_path: Path) -> None:
    """No acknowledged write is missing before a resolved timestamp, on one node with the default sync of 10 s and
    readUnsynced."""
    options = CompletenessOptions(seed=11, folder=tmp_path, checks=200, faults=4, kinds=_KINDS)
    report = run_completeness(options, say=print)
    print("\n".join(report.lines()))
    assert report.wrong == []
    assert report.checks >= 200
    assert report.faults == 4
    assert report.sensitive > 0
    assert report.settled
