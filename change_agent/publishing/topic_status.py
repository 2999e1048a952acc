"""TopicStatus: the state of one events topic, for people and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["TopicProblem", "TopicStatus"]


class TopicProblem(NamedTuple):
    """Why a topic was refused last; since when, in seconds of the epoch; how often since it last acknowledged something."""

    reason: str
    since_s: float
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    """How it stands with a topic. `problem` is what it was last refused for, since then in seconds of the epoch.

    `hazards` are policies of Pulsar that would drop its unread events.
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
