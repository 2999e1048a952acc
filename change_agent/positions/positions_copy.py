"""PositionsCopy: keeps a copy of the stored positions in Pulsar, so that a replaced machine or pod can continue.

Only one agent can have a node's copy, on any machine. A second one waits before it reads anything.

The copy is a few seconds old, so a new machine repeats those seconds. While events that count as acknowledged exist
on this machine's disk only (held events, parked mutations), no copy is made, because it would skip them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, Protocol

from change_agent.errors import PublishError, StateFormatError
from change_agent.positions.offsets import StoredPositions, format_positions, parse_positions

__all__ = ["PositionsCopy"]

_log: Final = logging.getLogger(__name__)
_INTERVAL_S: Final = 2.0
_RETRY_S: Final = 2.0


class Topic(Protocol):
    """Holds the newest copy."""

    def read(self) -> bytes | None:
        """The newest copy; None when there is none. Raises PublishError."""

    def store(self, payload: bytes) -> None:
        """When this returns, the broker has this copy. Raises PublishError."""


class PositionsCopy:
    """`claim`, `restore` where it is wanted, and then `start` by one thread, once; `stop` by the owner.

    The copy's own thread is the topic's only user then.
    """

    def __init__(
        self,
        open_topic: Callable[[str], Topic],
        node_id: Callable[[], str | None],
        latest: Callable[[], StoredPositions],
        is_portable: Callable[[], bool],
        stopping: threading.Event,
    ) -> None:
        self._open_topic: Final = open_topic
        self._node_id: Final = node_id
        self._latest: Final = latest
        self._is_portable: Final = is_portable
        self._agent_stops: Final = stopping
        self._topic: Topic | None = None
        self._copied = StoredPositions()
        self._complained = False
        self._stopping: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, name="positions-copy", daemon=True)
        self.failure: BaseException | None = None

    def claim(self) -> None:
        """Be the one agent that has this node's copy. Waits for both servers and for other agents, or for the stop."""
        while not self._agent_stops.is_set():
            try:
                if self._node_id() is not None:
                    self._opened()
                    if self._complained:
                        _log.info("the node's positions are this agent's now")
                    self._complained = False
                    return
            except PublishError as error:
                self._complain(error)
            self._agent_stops.wait(_RETRY_S)

    def restore(self) -> StoredPositions | None:
        """The copy, for a machine that knows nothing; None when there is none. Waits for both servers, or for the stop."""
        while not self._agent_stops.is_set():
            try:
                payload = self._opened().read() if self._node_id() is not None else b""
            except PublishError as error:
                self._complain(error)
                payload = b""
            if payload is None:
                _log.info("there is no copy of this node's positions yet; everything in cdc_raw is read")
                return None
            if payload:
                return self._parsed(payload)
            self._agent_stops.wait(_RETRY_S)
        return None

    def _parsed(self, payload: bytes) -> StoredPositions | None:
        try:
            parsed = parse_positions(payload, "the copy of this node's positions")
        except StateFormatError as error:
            _log.error("%s; everything in cdc_raw is read", error)
            return None
        if parsed is None:
            _log.error("the copy of this node's positions is damaged; everything in cdc_raw is read")
            return None
        _log.info("positions are taken from their copy: %d segments are open", len(parsed[1].segments))
        return parsed[1]

    def start(self) -> None:
        """Begin to copy."""
        self._thread.start()

    def stop(self) -> None:
        """Copy what is stored by now, if the broker answers soon, and end."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            stopping = False
            while not stopping:
                stopping = self._stopping.wait(_INTERVAL_S)
                self._copy()
        except Exception as error:  # noqa: BLE001  # the top of a thread
            _log.exception("copying positions failed")
            self.failure = error

    def _copy(self) -> None:
        latest = self._latest()
        if latest == self._copied or self._node_id() is None or not self._is_portable():
            return
        try:
            self._opened().store(format_positions(0, latest))
        except PublishError as error:
            self._complain(error)
        else:
            self._copied = latest
            self._complained = False

    def _opened(self) -> Topic:
        if self._topic is None:
            node_id = self._node_id()
            assert node_id is not None
            self._topic = self._open_topic(node_id)
        return self._topic

    def _complain(self, error: PublishError) -> None:
        if not self._complained:
            self._complained = True
            _log.warning("%s; trying again", error)
