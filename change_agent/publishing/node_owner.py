"""NodeOwner: lets only one agent at a time publish a node's changes, on any machine.

The agent checks this at its start, with a topic that belongs to the node and has no messages. If the broker does not
answer, the agent does not wait: the lock on `cdc_raw` keeps out agents on the same machine. But once the broker has
said that there is another agent, this agent waits until the broker says that the other one has ended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from change_agent.errors import NodeTakenError, PublishError
from change_agent.metrics import AgentMetrics
from runtime.notices import Notices

__all__ = ["NodeOwner"]

_log: Final = logging.getLogger(__name__)
_RETRY_S: Final = 2.0


class NodeOwner:
    """`wait` is called once, by one thread."""

    def __init__(
        self,
        claim: Callable[[str], None],
        node_id: Callable[[], str | None],
        metrics: AgentMetrics,
        stopping: threading.Event,
    ) -> None:
        self._claim: Final = claim
        self._node_id: Final = node_id
        self._metrics: Final = metrics
        self._stopping: Final = stopping
        self._notices: Final = Notices(_log)

    def wait(self) -> None:
        """Wait until no other agent has the node, or the agent stops.

        Also return if the broker does not answer and has not said before that there is another agent.
        """
        while not self._stopping.is_set():
            node_id = self._node_id()
            if node_id is not None and self._is_free(node_id):
                return
            self._stopping.wait(_RETRY_S if self._metrics.standby else _RETRY_S / 20)

    def _is_free(self, node_id: str) -> bool:
        try:
            self._claim(node_id)
        except NodeTakenError as error:
            if not self._metrics.standby:
                _log.warning("%s", error)
            self._metrics.standby = 1
            return False
        except PublishError as error:
            if self._metrics.standby:
                # Both would publish the same changes.
                self._notices.say(
                    "unknown", f"{error}; this agent waits until the broker says that the other one has ended"
                )
                return False
            _log.info("it is not known whether another machine has an agent for this node (%s); continuing", error)
        else:
            if self._metrics.standby:
                _log.info("the other agent has ended; this one continues")
        self._metrics.standby = 0
        return True
