"""The faults of a run. They are drawn from its seed before anything starts, so a replay strikes the same faults in
order."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.fault_kit.kinds import LANES, FaultKind

__all__ = [
    "ALL_TARGETS",
    "FULL_COUNTS",
    "SHORT_COUNTS",
    "Fault",
    "counts_for_minutes",
    "draw_plan",
    "draw_short_plan",
    "fitting",
]

FULL_COUNTS: Final[Mapping[FaultKind, int]] = {
    **dict.fromkeys(FaultKind, 3),
    FaultKind.AGENT_KILL: 12,
    FaultKind.CHILD_KILL: 8,
    FaultKind.HOST_KILL: 4,
    FaultKind.PULSAR_KILL: 1,
    FaultKind.CASSANDRA_KILL: 3,
    FaultKind.STANDSTILL: 5,
    FaultKind.RESTART_ALL: 3,
}
"""The faults of `make test-faults`. A restart of everything kills Pulsar, Cassandra and the agent once, too."""

SHORT_COUNTS: Final[Mapping[FaultKind, int]] = {
    **dict.fromkeys(FaultKind, 1),
    FaultKind.AGENT_KILL: 4,
    FaultKind.CHILD_KILL: 3,
    # One alone may break nothing: no read at the disallowed level comes, or the connector is not running.
    FaultKind.PARTITIONS_ADDED: 3,
    FaultKind.LEVEL_DISALLOWED: 3,
}
"""The faults of `make test`: every kind once; the most common kills and faults that may break nothing several times."""

# By lane: the seconds that a fault takes on two cores, including its recovery. The slowest lane decides.
_SECONDS: Final[Mapping[str, float]] = {
    "agent": 3.0,
    "connector": 12.0,
    "conditions": 3.0,
    "topics": 30.0,
    "levels": 30.0,
    "tables": 15.0,
    "servers": 30.0,
}

ALL_TARGETS: Final = ("agent", "child", "host", "pulsar", "cassandra")
"""The processes that SIGSTOP can stop."""

_LINKS: Final = ("agent-pulsar", "agent-cassandra", "connector-pulsar", "connector-cassandra")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. `number` counts from 1 in the order of the plan. `target` is the struck part, if the kind leaves a
    choice.

    `node` is the number of the Cassandra node, or of its agent. `length_s` is how long the fault lasts (for a kill:
    until the process is started again). `pause_s` is the pause after the fault before it. `choice` is a number in [0,
    1), from which the kind makes its own choices.
    """

    number: int
    kind: FaultKind
    node: int
    target: str
    pause_s: float
    length_s: float
    choice: float

    def __str__(self) -> str:
        target = f" {self.target}" if self.target else ""
        return f"{self.number}. {self.kind}{target} of node {self.node}, {self.length_s:.1f} s ({self.choice:.2f})"


def counts_for_minutes(minutes: float, kinds: Sequence[FaultKind]) -> dict[FaultKind, int]:
    """How many faults of each kind fit into a run of this length: many cheap ones, few that restart servers."""
    counts = {}
    for lane, each_s in _SECONDS.items():
        members = [kind for kind in kinds if LANES[kind] == lane]
        for kind in members:
            counts[kind] = max(1, round(minutes * 60 / (each_s * len(members))))
    return counts


def fitting(counts: Mapping[FaultKind, int], *, nodes: int, cassandra: str) -> tuple[dict[FaultKind, int], list[str]]:
    """Return the faults that are possible with such a cluster, and a line for each kind that is left out, with the
    reason."""
    reasons = {
        FaultKind.REPLICA_STOPPED: "there is one node, and it needs two" if nodes == 1 else "",
        FaultKind.LEVEL_DISALLOWED: _why_no_guardrail(nodes, cassandra),
    }
    left_out = [f"{kind} is left out: {reason}" for kind, reason in reasons.items() if reason and counts.get(kind)]
    return {kind: count for kind, count in counts.items() if not reasons.get(kind)}, left_out


def _why_no_guardrail(nodes: int, cassandra: str) -> str:
    """Return why no guardrail can be set; empty if it can. A guardrail does not apply to superusers, so nodes have to
    ask for passwords. A node of several cannot check passwords while it starts and the others are down."""
    if cassandra in {"3.11", "4.0"}:
        return f"Cassandra {cassandra} has no such guardrail"
    return "" if nodes == 1 else "a node that starts while the other one is down lets nobody log in"


def draw_plan(seed: int, counts: Mapping[FaultKind, int], *, nodes: int, pace_s: float = 1.0) -> list[Fault]:
    """The faults of a seed. The faults of each lane are spread evenly over the run, so that lanes overlap and none
    waits long."""
    rng = random.Random(f"plan {seed}")
    by_lane: dict[str, list[FaultKind]] = {}
    for kind in FaultKind:  # in a fixed order, whatever the order of `counts`
        by_lane.setdefault(LANES[kind], []).extend([kind] * counts.get(kind, 0))
    placed: list[tuple[float, FaultKind]] = []
    for kinds in by_lane.values():
        rng.shuffle(kinds)
        placed += [((index + rng.random()) / len(kinds), kind) for index, kind in enumerate(kinds)]
    placed.sort(key=lambda each: each[0])
    stopped = list(ALL_TARGETS)
    rng.shuffle(stopped)
    faults: list[Fault] = []
    for number, (_, kind) in enumerate(placed, start=1):
        faults.append(
            Fault(
                number=number,
                kind=kind,
                node=rng.randint(1, nodes),
                target=_target(kind, rng, stopped),
                pause_s=round(rng.uniform(0.1, 2 * pace_s), 2),
                length_s=round(_length_s(kind, rng), 2),
                choice=round(rng.random(), 4),
            )
        )
    return faults


def draw_short_plan(seed: int, kinds: Sequence[FaultKind], faults: int, *, nodes: int, pace_s: float) -> list[Fault]:
    """The first faults of a plan with equal shares of these kinds; kinds that restart or stop servers have a third of a
    share."""
    share = max(1, faults // len(kinds))
    rare = {FaultKind.CASSANDRA_KILL, FaultKind.PULSAR_KILL, FaultKind.HOST_KILL, FaultKind.REPLICA_STOPPED}
    counts = {kind: max(1, share // 3) if kind in rare else share for kind in kinds}
    fit, _ = fitting(counts, nodes=nodes, cassandra="5.0")
    return draw_plan(seed, fit, nodes=nodes, pace_s=pace_s)[:faults]


def _target(kind: FaultKind, rng: random.Random, stopped: list[str]) -> str:
    match kind:
        case FaultKind.STANDSTILL:  # each in turn
            stopped.append(stopped.pop(0))
            return stopped[-1]
        case FaultKind.NETWORK_AWAY | FaultKind.NETWORK_DELAY | FaultKind.NETWORK_CUT:
            return rng.choice(_LINKS)
        case FaultKind.RESTART_ALL:
            parts = ["agent", "pulsar", "cassandra"]
            rng.shuffle(parts)
            return "-".join(parts)
    return ""


def _length_s(kind: FaultKind, rng: random.Random) -> float:
    if kind in {FaultKind.IDX_TORN, FaultKind.IDX_EMPTY, FaultKind.IDX_SHRUNK}:
        return rng.uniform(0.05, 0.6)
    if kind in {FaultKind.AGENT_KILL, FaultKind.AGENT_RESTART}:
        return rng.choice([0.0, rng.uniform(0.0, 1.5)])
    if kind in {FaultKind.CHILD_KILL, FaultKind.HOST_KILL, FaultKind.PULSAR_KILL, FaultKind.CASSANDRA_KILL}:
        return rng.uniform(0.0, 2.0)
    return rng.uniform(12.0, 25.0) if kind is FaultKind.REPLICA_STOPPED else rng.uniform(1.0, 5.0)
