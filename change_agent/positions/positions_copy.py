"""PositionsCopy: keeps a copy of the stored positions in Pulsar, so that a replaced machine or pod can continue.

Only one agent can have a node's copy, on any machine. A second one waits before it reads anything. When it continues,
the copy is farther than its own positions, which may be of a time when it was the first one. So the farther ones count.
A copy never skips events, however old it is.

The copy is a few seconds old, so a new machine publishes the events of those seconds again. No copy is made while
events that count as acknowledged are only on this machine's disk (held events, parked mutations): a new machine would
skip them.

A new machine takes a segment that is gone, and is not finished in the copy, for lost. So a segment is deleted only when
the copy has it as finished. That has two limits. While no copy may be made, segments are deleted without it: events are
lost with the machine then, and a gap is right. When the broker has not taken the copy for `patience_s`, segments are
deleted without it as well, because `cdc_raw` must not fill up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Container
from typing import Final, Protocol

from change_agent.cdc_raw.segment_key import SegmentKey
from change_agent.errors import PublishError, StateFormatError
from change_agent.positions.offsets import StoredPositions, format_positions, parse_positions
from change_agent.positions.segment_ids import SegmentIds
from runtime.notices import Notices
from runtime.stage import Stage

__all__ = ["PositionsCopy"]

_log: Final = logging.getLogger(__name__)
_INTERVAL_S: Final = 2.0
_RETRY_S: Final = 2.0
# Longer than a restart of a broker usually takes.
_PATIENCE_S: Final = 30.0


class Topic(Protocol):
    """Has the newest copy; implemented by CopyTopic."""

    def read(self) -> bytes | None:
        """Return the newest copy; None when there is none. Raises PublishError."""

    def store(self, payload: bytes) -> None:
        """Store a copy. When this returns, the broker has it. Raises PublishError."""


class PositionsCopy(Stage):
    """Claims the node's copy, restores positions from it if it is farther, and then copies stored positions.

    `own` are the positions that this machine has at its start. `adopt` is called with the restored positions, on the
    thread of the copy. When `is_ready` is set, the reader of the log may begin.
    """

    def __init__(
        self,
        open_topic: Callable[[str], Topic],
        node_id: Callable[[], str | None],
        latest: Callable[[], StoredPositions],
        is_portable: Callable[[], bool],
        adopt: Callable[[StoredPositions], None],
        own: StoredPositions,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        super().__init__("copy of positions")
        self._open_topic: Final = open_topic
        self._node_id: Final = node_id
        self._latest: Final = latest
        self._is_portable: Final = is_portable
        self._adopt: Final = adopt
        self._own: Final = own
        self._otherwise: Final = (
            "everything in cdc_raw is read" if own == StoredPositions() else "this machine's own positions are used"
        )
        self._topic: Topic | None = None
        self._patience_s: Final = patience_s
        self._copied = StoredPositions()
        self._copied_at = time.monotonic()
        self._refusal = "the broker does not answer"
        self._wanted: Final = threading.Event()
        self._notices: Final = Notices(_log, again_after_s=None)
        # Used by the thread that calls `deletable`.
        self._waits_since: float | None = None
        self._late_notices: Final = Notices(_log, again_after_s=None)
        self.is_ready: Final = threading.Event()

    def claim(self) -> None:
        """Become the only agent that has this node's copy.

        Waits for both servers and for other agents, or for the stop.
        """
        while not self.stopping.is_set():
            try:
                if self._node_id() is not None:
                    self._opened()
                    self._notices.clear("topic", "the node's positions are this agent's now")
                    return
            except PublishError as error:
                self._complain(error)
            self.stopping.wait(_RETRY_S)

    def restore(self) -> StoredPositions | None:
        """Return the positions of the copy; None when there are none that can be used, or this machine's are as far.

        Waits for both servers, or for the stop. A machine that has positions waits at most for `patience_s`.
        """
        began = time.monotonic()
        while not self.stopping.is_set():
            try:
                payload = self._opened().read() if self._node_id() is not None else b""
            except PublishError as error:
                self._complain(error)
                payload = b""
                if self._own != StoredPositions() and time.monotonic() - began >= self._patience_s:
                    _log.warning("%s; %s", error, self._otherwise)
                    return None
            if payload is None:
                _log.info("there is no copy of this node's positions yet; %s", self._otherwise)
                return None
            if payload:
                return self._parsed(payload)
            self.stopping.wait(_RETRY_S)
        return None

    def _parsed(self, payload: bytes) -> StoredPositions | None:
        try:
            parsed = parse_positions(payload, "the copy of this node's positions")
        except StateFormatError as error:
            _log.error("%s; %s", error, self._otherwise)
            return None
        if parsed is None:
            _log.error("the copy of this node's positions is damaged; %s", self._otherwise)
            return None
        _, copied = parsed
        if copied.last_place <= self._own.last_place:
            return None
        _log.info("positions are taken from their copy: %d segments are open", len(copied.segments))
        # A segment that waits here for a second reading is read, although the other machine may have read it twice.
        return copied.of_first_readings

    def run(self) -> None:
        """Claim the copy, restore positions, then copy at an interval, and once more at the end."""
        self.claim()
        restored = self.restore()
        if restored is not None:
            self._adopt(restored)
        if self._topic is None:
            return  # the agent was stopped before it had claimed the copy
        self.is_ready.set()
        stopping = False
        while not stopping:
            self._wanted.wait(_INTERVAL_S)
            self._wanted.clear()
            stopping = self.stopping.is_set()
            if not self._copy():
                self.stopping.wait(_RETRY_S)
                self._wanted.set()

    def wake(self) -> None:
        """Make a copy now."""
        self._wanted.set()

    def deletable(self, finished: SegmentIds) -> Container[SegmentKey]:
        """Return which of the stored finished segments may be deleted now. Called by the writer of positions."""
        copied, now = self._copied.finished, time.monotonic()
        # Before `is_ready` is set, nothing is read or deleted.
        if copied == finished or not self.is_ready.is_set() or not self._is_portable():
            self._waits_since = None
            self._late_notices.clear("late")
            return finished
        self._waits_since = now if self._waits_since is None else self._waits_since
        self.wake()
        waited_s = now - max(self._waits_since, self._copied_at)
        if waited_s < self._patience_s:
            self._late_notices.clear("late")
            # The copy may have segments as finished that came back since, and are read now.
            return _InBoth(finished, copied)
        self._late_notices.say(
            "late",
            f"no copy of this node's positions could be stored for {waited_s:.0f} s ({self._refusal}): finished segments are"
            " deleted without it, and a machine that replaces this one now reports them as a gap; see that the agent may"
            " publish to the topics of positionsTopicPrefix",
        )
        return finished

    def _copy(self) -> bool:
        """Store a copy if positions have changed and it may be made; False when the broker did not take it."""
        latest = self._latest()
        if latest == self._copied or self._node_id() is None or not self._is_portable():
            return True
        try:
            self._opened().store(format_positions(0, latest))
        except PublishError as error:
            self._complain(error)
            return False
        self._copied, self._copied_at = latest, time.monotonic()
        self._notices.clear("topic")
        return True

    def _opened(self) -> Topic:
        if self._topic is None:
            node_id = self._node_id()
            assert node_id is not None
            self._topic = self._open_topic(node_id)
        return self._topic

    def _complain(self, error: PublishError) -> None:
        self._refusal = str(error)
        self._notices.say("topic", f"{error}; trying again")


class _InBoth:
    """The segments of two sets."""

    def __init__(self, finished: SegmentIds, copied: SegmentIds) -> None:
        self._finished: Final = finished
        self._copied: Final = copied

    def __contains__(self, segment: object) -> bool:
        return segment in self._finished and segment in self._copied
