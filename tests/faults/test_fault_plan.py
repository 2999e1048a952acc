"""The faults of a run are drawn before it starts, and are the same for the same seed."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fault_kit.kinds import DESCRIPTIONS, LANES, FaultKind
from tests.fault_kit.plan import FULL_COUNTS, SHORT_COUNTS, counts_for_minutes, draw_plan, fitting
from tests.fault_kit.statements import StatementWriter


def test_a_seed_gives_the_same_plan_every_time() -> None:
    """Another seed gives another plan."""
    first = draw_plan(7, FULL_COUNTS, nodes=2)
    assert first == draw_plan(7, FULL_COUNTS, nodes=2)
    assert first != draw_plan(8, FULL_COUNTS, nodes=2)


def test_a_plan_holds_as_many_of_each_kind_as_it_was_asked_for() -> None:
    """The faults are numbered and strike both nodes, and each part is suspended at least once."""
    plan = draw_plan(3, FULL_COUNTS, nodes=2)
    assert Counter(fault.kind for fault in plan) == FULL_COUNTS
    assert [fault.number for fault in plan] == list(range(1, len(plan) + 1))
    assert {fault.node for fault in plan} == {1, 2}
    stopped = {fault.target for fault in plan if fault.kind is FaultKind.STANDSTILL}
    assert stopped == {"agent", "child", "host", "pulsar", "cassandra"}


def test_the_short_plan_strikes_every_kind() -> None:
    """`make test` has time for one fault of most kinds."""
    assert set(SHORT_COUNTS) == set(FaultKind)
    assert min(SHORT_COUNTS.values()) == 1
    assert all(SHORT_COUNTS[kind] <= FULL_COUNTS[kind] for kind in FaultKind)


def test_the_full_plan_kills_each_part_often_enough() -> None:
    """The counts include restarts of everything: 3 kills of Pulsar, 6 of Cassandra, 15 of the agent; and 4 of the host,
    8 of the child, 3 of all other kinds."""
    everything = FULL_COUNTS[FaultKind.RESTART_ALL]
    assert FULL_COUNTS[FaultKind.PULSAR_KILL] + everything >= 3
    assert FULL_COUNTS[FaultKind.CASSANDRA_KILL] + everything >= 6
    assert FULL_COUNTS[FaultKind.AGENT_KILL] + everything >= 15
    assert FULL_COUNTS[FaultKind.HOST_KILL] >= 4
    assert FULL_COUNTS[FaultKind.CHILD_KILL] >= 8
    assert min(FULL_COUNTS[kind] for kind in FaultKind if kind is not FaultKind.PULSAR_KILL) >= 3


@pytest.mark.parametrize(
    ("nodes", "cassandra", "missing"),
    [
        (1, "5.0", {FaultKind.REPLICA_STOPPED}),
        (1, "4.0", {FaultKind.REPLICA_STOPPED, FaultKind.LEVEL_DISALLOWED}),
        (2, "5.0", {FaultKind.LEVEL_DISALLOWED}),
    ],
)
def test_what_a_cluster_cannot_be_struck_by_is_left_out_and_told(
    nodes: int, cassandra: str, missing: set[FaultKind]
) -> None:
    """A silent node needs a second one that answers. Guardrails came with 4.1, and need logins, which one of two nodes
    refuses alone."""
    counts, left_out = fitting(FULL_COUNTS, nodes=nodes, cassandra=cassandra)
    assert counts == {kind: count for kind, count in FULL_COUNTS.items() if kind not in missing}
    assert {line.partition(" is left out: ")[0] for line in left_out} == {kind.value for kind in missing}
    assert fitting({FaultKind.AGENT_KILL: 1}, nodes=nodes, cassandra=cassandra)[1] == []


def test_every_kind_has_a_lane_and_a_description() -> None:
    """A kind without a lane would never strike."""
    assert set(LANES) == set(DESCRIPTIONS) == set(FaultKind)


def test_a_long_run_strikes_more() -> None:
    """Eight hours have more than a thousand faults, only of the requested kinds."""
    counts = counts_for_minutes(480, [FaultKind.AGENT_KILL, FaultKind.PULSAR_KILL])
    assert set(counts) == {FaultKind.AGENT_KILL, FaultKind.PULSAR_KILL}
    assert sum(counts.values()) > 1_000


def test_a_seed_gives_the_same_statements_but_for_the_times_in_them() -> None:
    """A replay has the workload of its run."""
    first, second = (StatementWriter(5, has_vectors=True, schema_every=50) for _ in range(2))
    pairs = [(first.next().cql, second.next().cql) for _ in range(500)]
    assert all(one == other or "TIMESTAMP" in one for one, other in pairs)
    assert {"CREATE", "ALTER", "DROP", "INSERT", "UPDATE", "DELETE", "BEGIN"} >= {one.split()[0] for one, _ in pairs}
    assert any(one.startswith(("ALTER", "DROP TABLE")) for one, _ in pairs)
