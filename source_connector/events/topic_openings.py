"""TopicOpenings: producers, or consumers, that one thread uses and does not wait for.

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
"""When to ask again for what is being opened."""
_BACKOFF: Final = Backoff(0.5, 30.0)
_MOST_AT_ONCE: Final = 8
# Of these, attempts for topics whose last attempt failed: they must not delay the first attempts of other topics.
_MOST_AGAIN: Final = _MOST_AT_ONCE // 2


class TopicOpenings(Generic[_T]):
    """What `attempt` returns of each topic. Everything but the attempts runs in the owner's thread.

    Each attempt has a thread of its own. `post` takes the step that follows, for the owner's thread; `on_failure` is told
    there of an attempt that failed. A topic is tried again after a pause that grows, when it is asked for.

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
        """Whose last attempt failed."""
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}

    def get(self, topic: str) -> _T | None:
        """None while it cannot be used: it is being opened, or the pause after a failure is not over."""
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
        """When to ask again for what `get` does not have, in seconds from now."""
        return max(LATER_S, self._not_before.get(topic, 0.0) - time.monotonic())

    def drop(self, topic: str) -> None:
        """It failed while it was used: it is opened again after a pause."""
        if self.opened.pop(topic, None) is not None:
            self._pause(topic)

    def _open(self, topic: str) -> None:
        """In a thread of its own."""
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
