"""SegmentRotation: limits the delay with Cassandra 3.11, which moves a segment to `cdc_raw` only when it discards it.

A segment is discarded when it is not the active one and all its tables are flushed. CQL has no flush. But when a
keyspace is dropped, Cassandra switches to a new segment, flushes every table that is dirty in the old ones, and
discards them (o.a.c.db.commitlog.AbstractCommitLogSegmentManager.forceRecycleAll). So an empty keyspace is created
and dropped at an interval. It leaves nothing on the disk; docs/agent.md says what it costs.
"""

from __future__ import annotations

import logging
from typing import Final

from change_agent.schema.node_connection import NodeConnection, NodeUnavailableError
from runtime.notices import Notices
from runtime.stage import Stage

__all__ = ["ROTATION_KEYSPACE", "SegmentRotation"]

_log: Final = logging.getLogger(__name__)
ROTATION_KEYSPACE: Final = "cdc_agent_rotation"
_STATEMENTS: Final = (
    f"CREATE KEYSPACE IF NOT EXISTS {ROTATION_KEYSPACE}"
    " WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
    f"DROP KEYSPACE IF EXISTS {ROTATION_KEYSPACE}",
)
# The statement returns after all tables of the node are flushed.
_TIMEOUT_S: Final = 120.0


class SegmentRotation(Stage):
    """Rotates at an interval, on a separate thread.

    A failure is reported once, and the next rotation is tried as usual.
    """

    def __init__(self, connection: NodeConnection, interval_s: float) -> None:
        super().__init__("rotation of segments")
        self._connection: Final = connection
        self._interval_s: Final = interval_s
        self._notices: Final = Notices(_log, again_after_s=None)

    def stop(self) -> None:
        """Ask the thread to end. Does not wait for a rotation that is under way, which may take minutes."""
        self.ask_to_stop()

    def run(self) -> None:
        """Rotate at each interval."""
        while not self.stopping.wait(self._interval_s):
            try:
                for statement in _STATEMENTS:
                    self._connection.execute(statement, _TIMEOUT_S)
            except NodeUnavailableError as error:
                self._notices.say("node", f"segments are not rotated: {error}; trying again at the next turn")
            else:
                self._notices.clear("node")
        self._connection.close()
