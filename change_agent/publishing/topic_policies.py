"""TopicPolicies: which of Pulsar's policies would delete unread events, checked when a topic opens and every hour."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from change_agent.errors import PublishError
from clients.topic_policies import Audience, PolicyQuestions, hazards_of
from runtime.backoff import Backoff

__all__ = ["EVENTS", "TopicPolicies"]

_log: Final = logging.getLogger(__name__)
_INTERVAL_S: Final = 3600.0
# The pauses after checks that failed.
_RETRY: Final = Backoff(30, 600)
EVENTS: Final = Audience(messages="events", subscription="the subscription", reader="the connector")


class TopicPolicies:
    """Keeps the results of the last check of each topic. `check` waits for Pulsar; the other methods never wait."""

    def __init__(self, answers: PolicyQuestions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._answers: Final = answers
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._due_at: Final[dict[str, float]] = {}
        # How many checks of a topic in a row have failed.
        self._failures: Final[dict[str, int]] = {}
        self._hazards: Final[dict[str, tuple[str, ...]]] = {}
        self._is_unreadable = False

    def hazards(self, topic: str) -> tuple[str, ...]:
        """The policies that would delete unread events of the topic, as far as known."""
        return self._hazards.get(topic, ())

    def check(self, topic: str) -> None:
        """Check the topic's policies, at most once an hour, and log an error for each new hazard.

        A failed check is logged only once for all topics. It is repeated after a pause that grows with each failure.
        """
        now = self._clock()
        with self._lock:
            if now < self._due_at.get(topic, now):
                return
            self._due_at[topic] = now + _INTERVAL_S
        try:
            found = tuple(hazards_of(self._answers, topic, EVENTS))
        except (PublishError, ValueError, TypeError, AttributeError) as error:
            self._put_off(topic)
            if not self._is_unreadable:
                self._is_unreadable = True
                _log.warning(
                    "it is not known whether Pulsar deletes unread events, because its policies cannot be read (%s); grant the right"
                    " to read them, or see docs/agent.md for what to check",
                    error,
                )
            return
        self._failures.pop(topic, None)
        for each in found:
            if each not in self.hazards(topic):
                _log.error("%s: %s", topic, each)
        self._hazards[topic] = found

    def _put_off(self, topic: str) -> None:
        with self._lock:
            failures = self._failures[topic] = self._failures.get(topic, 0) + 1
            self._due_at[topic] = self._clock() + _RETRY.pause_s(failures)

    def forget(self, topic: str) -> None:
        """Let the next `check` read the policies again, because the topic is being opened."""
        with self._lock:
            self._due_at.pop(topic, None)
