"""SegmentRotation: limits the delay with Cassandra 3.11, which moves a segment to `cdc_raw` only when it discards it.

A segment is discarded when it is not the active one and all its tables are flushed. CQL has no flush. But when a
keyspace is dropped, Cassandra switches to a new segment, flushes every table that is dirty in the old ones, and
discards them (o.a.c.db.commitlog.AbstractCommitLogSegmentManager.forceRecycleAll). So an empty keyspace is created
and dropped at an interval. It leaves nothing on the disk; docs/agent.md says what it costs.
"""

from __future__ import annotations

import logging
import threading
from typing import Final, Protocol

from change_agent.schema.node_connection import NodeUnavailableError

__all__ = ["ROTATION_KEYSPACE", "SegmentRotation"]

_log: Final = logging.getLogger(__name__)
ROTATION_KEYSPACE: Final = "cdc_agent_rotation"
_STATEMENTS: Final = (
    f"CREATE KEYSPACE IF NOT EXISTS {ROTATION_KEYSPACE}"
    " WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
    f"DROP KEYSPACE IF EXISTS {ROTATION_KEYSPACE}",
)
# All tables of the node are flushed within it.
_TIMEOUT_S: Final = 120.0


class Connection(Protocol):
    """A session with the node, of one thread."""

    def execute(self, statement: str, timeout_s: float) -> None:
        """Execute a statement. Raises NodeUnavailableError."""

    def close(self) -> None:
        """Close the session."""


class SegmentRotation:
    """Rotates at an interval, on a thread of its own. A failed turn is told once, and the next comes as ever."""

    def __init__(self, connection: Connection, interval_s: float) -> None:
        self._connection: Final = connection
        self._interval_s: Final = interval_s
        self._stopping: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, name="rotation", daemon=True)
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; does not wait for a turn that is under way."""
        self._stopping.set()

    def _run(self) -> None:
        failed = False
        try:
            while not self._stopping.wait(self._interval_s):
                try:
                    for statement in _STATEMENTS:
                        self._connection.execute(statement, _TIMEOUT_S)
                except NodeUnavailableError as error:
                    if not failed:
                        _log.warning("segments are not rotated: %s; trying again at the next turn", error)
                    failed = True
                else:
                    failed = False
            self._connection.close()
        except Exception as error:  # noqa: BLE001  # the top of a thread
            _log.exception("the rotation of segments failed")
            self.failure = error
