"""TopicFiles: the events of one topic that are on disk: held events, and events that are too large for the broker."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from change_agent.metrics import TableMetrics
from change_agent.publishing.held_events import TOO_LARGE, HeldEvents
from schemas.mutation_event import MutationEvents, encode_events

__all__ = ["TopicFiles"]

_log: Final = logging.getLogger(__name__)
# The pause after the disk has refused a write.
_PAUSE_S: Final = 0.5


class TopicFiles:
    """Owned by the publisher's thread. `held` is read through :meth:`read_next`, which reports damage.

    Too large events of an earlier process are appended to the held events: the broker may accept larger events now.
    """

    def __init__(
        self, topic: str, directory: Path, name: str, metrics: TableMetrics, on_damage: Callable[[str], None]
    ) -> None:
        """`on_damage` is called with a reason when events are found damaged. A restart may not find them again."""
        self._topic: Final = topic
        self._on_damage: Final = on_damage
        self._metrics: Final = metrics
        self.held: Final = HeldEvents(directory / name)
        self.too_large: Final = HeldEvents(directory / TOO_LARGE / name)
        self._refused_at: float | None = None
        for each in (self.held, self.too_large):
            _remove_if_empty(each)
        self._retry_too_large()
        self._report_damage(self.held)

    @property
    def may_write(self) -> bool:
        """False for a moment after the disk refused a write."""
        return self._refused_at is None or time.monotonic() - self._refused_at > _PAUSE_S

    def hold(self, payloads: Sequence[bytes]) -> bool:
        """Store messages behind those that are held. They are durable when this is True; False when the disk refuses."""
        return self._append(self.held, payloads)

    def keep_too_large(self, payload: bytes) -> bool:
        """Store the message of an event that is too large; returns the same as `hold`."""
        return self._append(self.too_large, [payload])

    def read_next(self) -> MutationEvents | None:
        """Return the next held message that can be read; None at the end."""
        message = self.held.read_next()
        self._report_damage(self.held)
        return message

    def _append(self, file: HeldEvents, payloads: Sequence[bytes]) -> bool:
        try:
            file.append(payloads)
        except OSError as error:
            _remove_if_empty(file)
            self._metrics.write_failures += 1
            if self._refused_at is None:
                _log.error("%s cannot be written (%s); its events wait, trying again", file.path, error.strerror)
            self._refused_at = time.monotonic()
            return False
        self._refused_at = None
        return True

    def _retry_too_large(self) -> None:
        if self.too_large.size == 0:
            return
        payloads = []
        while (message := self.too_large.read_next()) is not None:
            payloads.append(encode_events(message))
        self._report_damage(self.too_large)
        if not payloads or self.hold(payloads):
            self.too_large.remove()
        else:
            self.too_large.rewind()

    def _report_damage(self, file: HeldEvents) -> None:
        if damaged := file.take_damage():
            self._metrics.damaged_bytes += damaged
            self._on_damage(
                f"events in {file.path} were damaged and cannot be published: run cdc spark verify --repair on the table, then"
                " cdc agent resume-progress, and restart the agent"
            )
            _log.error(
                "%s: %d bytes of events in %s are damaged and cannot be published: verify the table; the others are sent, then"
                " the file is kept as %s.damaged",
                self._topic,
                damaged,
                file.path,
                file.path.name,
            )


def _remove_if_empty(file: HeldEvents) -> None:
    """Remove what an incomplete first write has left. Otherwise the agent would seem to hold events (`holds_events`)."""
    if file.size == 0:
        with suppress(OSError):
            file.path.unlink(missing_ok=True)
