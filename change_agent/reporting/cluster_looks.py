"""ClusterLooks: asks the node for the cluster's nodes before times of the progress are published.

A reader of the progress takes the least time over the nodes that the records name. So a time must not be published
before the agent knows every node that may have answered a write before this time. A coordinator has a node in its list
of nodes before it counts this node's answer to a write. So a list that was asked for after the time was taken is
enough. docs/architecture.md has the proof.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from schemas.progress_record import Peer

__all__ = ["ClusterLooks", "ClusterView"]

# A node that does not answer for this time may be down. What it knew before, the other nodes know by then.
_UNANSWERED_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The nodes of the cluster, and the replication options of each keyspace, as the agent's node knows them.

    `is_new`: the node gave the nodes after it was asked for this view.
    """

    peers: Sequence[Peer] = ()
    replication: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    is_new: bool = True


class ClusterLooks:
    """Used by one thread.

    `ask` returns the newest view; None if this run of the agent has none yet. `view` is the newest one; at first the one
    that an earlier run published.
    """

    def __init__(
        self,
        ask: Callable[[], ClusterView | None],
        view: ClusterView,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask: Final = ask
        self._clock: Final = clock
        self._answered_at: float | None = None
        self.view = view

    def look(self) -> bool:
        """Ask the node. Return True if times that were taken before this call may be published with `view`.

        Otherwise these times must wait: the node does not answer, and has answered within the last 10 s. The 10 s begin
        with the first look.
        """
        view = self._ask()
        if view is not None:
            self.view = view
        if self._answered_at is None or (view is not None and view.is_new):
            self._answered_at = self._clock()
        return (view is not None and view.is_new) or self._clock() >= self._answered_at + _UNANSWERED_S
