"""TopicOpenings: opens producers or consumers without blocking the thread that uses them.

If no broker serves a topic, opening it takes half a minute and fails. The other topics are used meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final, Generic, TypeVar

from runtime.backoff import Backoff

__all__ = ["LATER_S", "TopicOpenings"]

_T = TypeVar("_T")

LATER_S: Final = 0.2
"""After how many seconds to ask again for a topic that is being opened."""
_BACKOFF: Final = Backoff(0.5, 30.0)
_MOST_AT_ONCE: Final = 8
# How many of these attempts may be for topics whose last attempt failed: they must not delay the other topics.
_MOST_AGAIN: Final = _MOST_AT_ONCE // 2


class TopicOpenings(Generic[_T]):
    """The results of `attempt` by topic. Everything except the attempts runs in the owner's thread.

    Each attempt has a thread of its own. `post` hands the next step over to the owner's thread, where `on_failure` is
    called for an attempt that failed. A topic is tried again when it is asked for after a pause, which grows with each
    failure.

    Up to 8 attempts run at once. Topics take turns in the order in which they were asked for.
    """

    def __init__(
        self,
        attempt: Callable[[str], _T],
        post: Callable[[Callable[[], None]], None],
        on_failure: Callable[[str, Exception], None],
    ) -> None:
        self._attempt = attempt
        self._post = post
        self._on_failure = on_failure
        self.opened: Final[dict[str, _T]] = {}
        self._under_way: set[str] = set()
        # Dicts as ordered sets.
        self._wanted: dict[str, None] = {}
        self._wanted_again: dict[str, None] = {}
        self._refused: set[str] = set()
        """Topics whose last attempt failed."""
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}

    def get(self, topic: str) -> _T | None:
        """What was opened for the topic; None while it is being opened, or while the pause after a failure lasts."""
        found = self.opened.get(topic)
        if found is None and topic not in self._under_way and self._not_before.get(topic, 0.0) <= time.monotonic():
            wanted = self._wanted_again if topic in self._refused else self._wanted
            wanted[topic] = None
            self._begin_wanted()
        return found

    def _begin_wanted(self) -> None:
        while len(self._under_way) < _MOST_AT_ONCE:
            may_try_again = len(self._under_way & self._refused) < _MOST_AGAIN
            wanted = self._wanted or (self._wanted_again if may_try_again else None)
            if not wanted:
                return
            topic = next(iter(wanted))
            del wanted[topic]
            self._under_way.add(topic)
            threading.Thread(target=self._open, args=(topic,), name=f"opener of {topic}", daemon=True).start()

    def wait_s(self, topic: str) -> float:
        """In how many seconds to ask again if `get` returned None."""
        return max(LATER_S, self._not_before.get(topic, 0.0) - time.monotonic())

    def drop(self, topic: str) -> None:
        """Drop what was opened, because it failed when it was used. It is opened again after a pause."""
        if self.opened.pop(topic, None) is not None:
            self._pause(topic)

    def _open(self, topic: str) -> None:
        """Runs in a thread of its own."""
        try:
            found = self._attempt(topic)
        except Exception as error:  # noqa: BLE001  # it is the owner's to judge
            self._post(partial(self._failed, topic, error))
        else:
            self._post(partial(self._opened, topic, found))

    def _opened(self, topic: str, found: _T) -> None:
        self._under_way.discard(topic)
        self._refused.discard(topic)
        self._failures.pop(topic, None)
        self.opened[topic] = found

    def _failed(self, topic: str, error: Exception) -> None:
        self._under_way.discard(topic)
        self._refused.add(topic)
        self._pause(topic)
        self._on_failure(topic, error)

    def _pause(self, topic: str) -> None:
        failures = self._failures[topic] = self._failures.get(topic, 0) + 1
        self._not_before[topic] = time.monotonic() + _BACKOFF.pause_s(failures)
