"""TopicStatus: the state of one events topic, for people and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["TopicProblem", "TopicStatus"]


class TopicProblem(NamedTuple):
    """Why a topic was last refused. `since_s`: the time of the first refusal, in seconds since the epoch.

    `attempts`: the number of refusals. Both count from the last acknowledgement on.
    """

    reason: str
    since_s: float
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    """The state of a topic. `problem`, `problem_since_s` and `attempts` are those of its TopicProblem.

    `hazards` are policies of Pulsar that would delete its unread events.
    """

    topic: str
    partitions: int
    is_usable: bool
    waiting_events: int
    held_bytes: int
    too_large_bytes: int
    problem: str | None
    problem_since_s: float | None
    attempts: int
    hazards: tuple[str, ...] = ()
