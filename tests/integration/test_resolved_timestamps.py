"""Resolved timestamps on a whole line of its own: none comes too early while parts are killed, and all move on afterwards.

`make faults-resolved` is the long form, with all kinds of faults, and on two nodes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault_kit.completeness import CompletenessOptions, run_completeness
from tests.fault_kit.kinds import FaultKind

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_500)]

_KINDS = (FaultKind.AGENT_KILL, FaultKind.CASSANDRA_KILL)
_MORE_KINDS = (FaultKind.CHILD_KILL, FaultKind.NETWORK_CUT)


def test_no_write_that_was_answered_before_a_resolved_timestamp_is_missing(tmp_path: Path, is_extended: bool) -> None:
    """One node with the default sync of 10 s, and readUnsynced."""
    kinds = (*_KINDS, *_MORE_KINDS) if is_extended else _KINDS
    checks = 200 if is_extended else 120
    options = CompletenessOptions(seed=11, folder=tmp_path, checks=checks, faults=len(kinds), kinds=kinds)
    report = run_completeness(options, say=print)
    print("\n".join(report.lines()))
    assert report.wrong == []
    assert report.checks >= checks
    assert report.faults == len(kinds)
    assert report.sensitive > 0
    assert report.settled
