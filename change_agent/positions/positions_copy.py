"""PositionsCopy: keeps a copy of the stored positions in Pulsar, so that a replaced machine or pod can continue.

Only one agent can have a node's copy, on any machine. A second one waits before it reads anything. When it continues,
the copy is farther than its own positions, which may be of a time when it was the first one. So the farther ones count.
If both are as far, the copy counts if another working directory has made it, because that one had the node last. A copy
never skips events, however old it is.

The copy also has the stops of the node's tables. A machine that takes positions from the copy, or whose copy another
one has made, adds these stops to its own. Otherwise its own stops are newer: an operator may have ended one since. A
copy has all stops that its positions need, because a stop is stored before the positions that need it. Until a copy
that could not be read at the start is read, no table has progress. A copy that is damaged, or of a newer version, is
replaced, but first every table gets a stop that only an operator ends.

A machine that takes positions from the copy also takes its published truncations and drops. It publishes the others.
A copy has all that were published before its positions, because a clearing is stored before the positions behind it.

The copy is a few seconds old, so a new machine publishes the events of those seconds again. No copy is made while
events that count as acknowledged are only on this machine's disk (held events, parked mutations): a new machine would
skip them. In that time the copy keeps its positions. It gets changed stops, and the segments that are new since, as not
read.

A new machine takes a segment that is gone, and is not finished in the copy, for lost. So a segment is deleted only when
the copy has it as finished. That has two limits. While positions may not be copied, a segment is deleted when the copy
has it as not read: its events may be lost with the machine then, and a gap is right. When the broker has not taken the
copy for `patience_s`, segments are deleted without it, because `cdc_raw` must not fill up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Any, Final

from change_agent.cdc_raw.segment_key import SegmentKey
from change_agent.errors import PublishError, StateFormatError
from change_agent.positions.copied_state import CopiedState, format_copy, parse_copy, unreadable_copy
from change_agent.positions.copy_topic import CopyTopic
from change_agent.positions.offsets import StoredPositions, StoredSegment
from change_agent.positions.published_clearings import PublishedClearings
from change_agent.positions.segment_ids import SegmentIds
from change_agent.positions.stops import EVERY_TABLE, Stop, Stops
from runtime.notices import Notices
from runtime.stage import Stage

__all__ = ["PositionsCopy"]

_log: Final = logging.getLogger(__name__)
_INTERVAL_S: Final = 2.0
_RETRY_S: Final = 2.0
# Longer than a restart of a broker usually takes.
_PATIENCE_S: Final = 30.0
# How many segments a copy may have as not read. If one of them is gone, a new machine reports all that are gone.
_MOST_UNREAD: Final = 1_000


class PositionsCopy(Stage):
    """Claims the node's copy, restores positions and stops from it, and then copies what is stored here.

    `own` are the positions that this machine has at its start. `adopt` is called with the restored positions, on the
    thread of the copy. `maker` names this working directory (`maker_of`). When `is_ready` is set, the reader of the log
    may begin.
    """

    def __init__(
        self,
        open_topic: Callable[[str], CopyTopic],
        node_id: Callable[[], str | None],
        latest: Callable[[], StoredPositions],
        is_portable: Callable[[], bool],
        adopt: Callable[[StoredPositions], None],
        own: StoredPositions,
        stops: Stops,
        clearings: PublishedClearings,
        maker: str,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        super().__init__("copy of positions")
        self._open_topic: Final = open_topic
        self._node_id: Final = node_id
        self._latest: Final = latest
        self._is_portable: Final = is_portable
        self._adopt: Final = adopt
        self._own: Final = own
        self._stops: Final = stops
        self._clearings: Final = clearings
        self._maker: Final = maker
        self._otherwise: Final = (
            "everything in cdc_raw is read" if own == StoredPositions() else "this machine's own positions are used"
        )
        self._topic: CopyTopic | None = None
        self._patience_s: Final = patience_s
        # What the topic has, once it was read or stored.
        self._copied = CopiedState()
        # True while the agent reads the log without having read the copy, in which another machine may have noted stops.
        self._is_late = False
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
        """Return the positions of the copy; None when there are none that can be used, or this machine's count.

        Take the stops of the copy, if they are newer than this machine's. Waits for both servers, or for the stop. A
        machine that has positions waits at most for `patience_s`.
        """
        began = time.monotonic()
        while not self.stopping.is_set():
            try:
                if self._node_id() is not None:
                    return self._restored(self._opened().read())
            except PublishError as error:
                self._complain(error)
                if self._own != StoredPositions() and time.monotonic() - began >= self._patience_s:
                    _log.warning("%s; %s", error, self._otherwise)
                    self._is_late = True
                    return None
            self.stopping.wait(_RETRY_S)
        return None

    @property
    def unknown_stops(self) -> str | None:
        """The reason why no table may have progress: this machine may lack stops of another one. None otherwise.

        Any thread may call this. Call it before the stops are read: the copy's stops are added to them before this
        becomes None.
        """
        if not self._is_late:
            return None
        return (
            "the copy of this node's positions, which may have stops of another machine, is not read yet"
            f" ({self._refusal})"
        )

    def _read_late(self) -> bool:
        """Read the copy if `restore` could not, and take the stops of another machine: no other place has them.

        The positions of this machine are in use by now. False when the agent stops before it has these stops. Raises
        PublishError.
        """
        if not self._is_late:
            return True
        payload = self._opened().read()
        copied = None if payload is None else self._parsed(payload)
        self._is_late = copied is not None and self._is_other(copied) and not self._take_stops(copied.stops)
        return not self._is_late

    def _is_other(self, copied: CopiedState) -> bool:
        """True when the agent of another working directory has made this copy."""
        return copied.maker not in ("", self._maker)

    def _parsed(self, payload: bytes) -> CopiedState:
        """Return the copy; what counts instead if it cannot be read."""
        why = "is damaged"
        try:
            copied = parse_copy(payload, "the copy of this node's positions")
        except StateFormatError:
            copied, why = None, "is of a newer version of the agent"
        if copied is None:
            _log.error("the copy of this node's positions %s; %s", why, self._otherwise)
            return unreadable_copy(why)
        self._copied = copied
        return copied

    def _restored(self, payload: bytes | None) -> StoredPositions | None:
        if payload is None:
            _log.info("there is no copy of this node's positions yet; %s", self._otherwise)
            return None
        copied = self._parsed(payload)
        is_other = self._is_other(copied)
        copied_place, own_place = copied.positions.last_place, self._own.last_place
        is_used = copied_place > own_place or (copied_place == own_place != (0, 0) and is_other)
        # A stop is stored before the positions that need it.
        has_stops = not (is_used or is_other) or self._take_stops(copied.stops)
        if not (is_used and has_stops and self._take_clearings(copied.clearings)):
            return None
        _log.info("positions are taken from their copy: %d segments are open", len(copied.positions.segments))
        # A segment that waits here for a second reading is read, although the other machine may have read it twice.
        return copied.positions.of_first_readings

    def _take_stops(self, stops: Mapping[str, Stop]) -> bool:
        """Add these stops to those of this machine. Waits for room on the disk; False when the agent stops before."""
        if not stops:
            return True
        names = ", ".join("all tables" if each == EVERY_TABLE else each for each in sorted(stops))
        _log.warning(
            "the copy of this node's positions stops the progress of %s: cdc agent resume-progress --list says why",
            names,
        )
        problem = "the stops of tables cannot be written; reading waits, trying again"
        return self._until_written(problem, lambda: self._stops.restore(stops))

    def _take_clearings(self, clearings: Any) -> bool:
        """Replace the published clearings of this machine, which are of an earlier time, unless the copy has none.

        Waits for room on the disk; False when the agent stops before.
        """
        if clearings is None:
            return True
        problem = "the published truncations cannot be written; reading waits, trying again"
        return self._until_written(problem, lambda: self._clearings.restore(clearings))

    def _until_written(self, problem: str, write: Callable[[], bool]) -> bool:
        while not write():
            self._notices.say(problem, problem)
            if self.stopping.wait(_RETRY_S):
                return False
        self._notices.clear(problem)
        return True

    def run(self) -> None:
        """Claim the copy, restore positions and stops, then copy at an interval, and once more at the end."""
        self.claim()
        restored = self.restore()
        if restored is not None:
            self._adopt(restored)
        if self._topic is None or self.stopping.is_set():
            # The agent was stopped before it had claimed the copy, or stored what it has taken from it.
            return
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
        copied, now = self._copied.positions, time.monotonic()
        is_portable = self._is_portable()
        waits = copied.finished != finished if is_portable else _lacks(copied, finished)
        # Before `is_ready` is set, nothing is read or deleted.
        if not waits or not self.is_ready.is_set():
            self._waits_since = None
            self._late_notices.clear("late")
            return finished
        self._waits_since = now if self._waits_since is None else self._waits_since
        self.wake()
        waited_s = now - max(self._waits_since, self._copied_at)
        if waited_s < self._patience_s:
            self._late_notices.clear("late")
            # The copy may have segments as finished that came back since, and are read now.
            return _InBoth(finished, copied.finished) if is_portable else _UpTo(finished, copied.last_place[0])
        self._late_notices.say(
            "late",
            f"no copy of this node's positions could be stored for {waited_s:.0f} s ({self._refusal}): finished segments are"
            " deleted without it, and a machine that replaces this one now reports them as a gap; see that the agent may"
            " publish to the topics of positionsTopicPrefix",
        )
        return finished

    def _copy(self) -> bool:
        """Store a copy if positions or stops have changed and it may be made; False when the broker did not take it."""
        if self._node_id() is None:
            return True
        try:
            state = self._state() if self._read_late() else None
            if state is None or state == self._copied:
                return True
            self._opened().store(format_copy(state))
        except PublishError as error:
            self._complain(error)
            return False
        self._copied, self._copied_at = state, time.monotonic()
        self._notices.clear("topic")
        return True

    def _state(self) -> CopiedState | None:
        """What the topic should have; None when no copy may be made."""
        positions = self._latest()
        is_portable = self._is_portable()
        # After the positions: a stop is stored before the positions that need it, and so is a clearing.
        stops, clearings = self._stops.known(), self._clearings.read()
        if not is_portable:
            positions = _with_unread(self._copied.positions, positions)
            if (positions, stops, clearings) == (self._copied.positions, self._copied.stops, self._copied.clearings):
                return None
        return CopiedState(positions=positions, stops=stops, clearings=clearings, maker=self._maker)

    def _opened(self) -> CopyTopic:
        if self._topic is None:
            node_id = self._node_id()
            assert node_id is not None
            self._topic = self._open_topic(node_id)
        return self._topic

    def _complain(self, error: PublishError) -> None:
        self._refusal = str(error)
        self._notices.say("topic", f"{error}; trying again")


def _lacks(copied: StoredPositions, finished: SegmentIds) -> bool:
    """True when these finished segments are newer than the copy, and it has to know them before they are deleted."""
    newest = max((last for _, last in finished.runs[-1:]), default=0)
    return copied != StoredPositions() and len(copied.segments) < _MOST_UNREAD and newest > max(0, copied.last_place[0])


def _with_unread(copied: StoredPositions, latest: StoredPositions) -> StoredPositions:
    """The positions of the copy, with the segments that are newer, as not read.

    Without positions in the copy, a new machine reads everything that is in `cdc_raw`.
    """
    room = _MOST_UNREAD - len(copied.segments)
    if copied == StoredPositions() or room <= 0:
        return copied
    known = max(0, copied.last_place[0])
    opened = {each for each in latest.segments if each > known}
    ended = (
        SegmentKey(each) for first, last in latest.finished.runs for each in range(max(first, known + 1), last + 1)
    )
    unread = {each: StoredSegment(position=0) for each in sorted(opened.union(ended))[:room]}
    return replace(copied, segments={**copied.segments, **unread}) if unread else copied


class _UpTo:
    """The segments of a set up to a newest one."""

    def __init__(self, finished: SegmentIds, newest: int) -> None:
        self._finished: Final = finished
        self._newest: Final = newest

    def __contains__(self, segment: object) -> bool:
        return segment in self._finished and isinstance(segment, int) and segment <= self._newest


class _InBoth:
    """The segments of two sets."""

    def __init__(self, finished: SegmentIds, copied: SegmentIds) -> None:
        self._finished: Final = finished
        self._copied: Final = copied

    def __contains__(self, segment: object) -> bool:
        return segment in self._finished and segment in self._copied
