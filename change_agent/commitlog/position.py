"""A place in the commit log of one node.

Cassandra source: o.a.c.db.commitlog.CommitLogPosition.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CommitLogPosition"]


@dataclass(frozen=True, slots=True, order=True)
class CommitLogPosition:
    """Segment, then position in it; ordered, for segment ids only grow. An entry's position is its end."""

    segment_id: int
    position: int
