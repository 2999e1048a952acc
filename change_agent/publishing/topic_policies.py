"""TopicPolicies: which of Pulsar's policies would delete unread events, checked when a topic opens and every hour."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from change_agent.errors import PublishError
from clients.topic_policies import Audience, PolicyAnswers, hazards_of

__all__ = ["EVENTS", "TopicPolicies"]

_log: Final = logging.getLogger(__name__)
_INTERVAL_S: Final = 3600.0
# The pause after a check that failed.
_RETRY_S: Final = 600.0
EVENTS: Final = Audience(messages="events", subscription="the subscription", reader="the connector")


class TopicPolicies:
    """Keeps the results of the last check of each topic. `check` waits for Pulsar; the other methods never wait."""

    def __init__(self, answers: PolicyAnswers, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._answers: Final = answers
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._checked_at: Final[dict[str, float]] = {}
        self._hazards: Final[dict[str, tuple[str, ...]]] = {}
        self._is_unreadable = False

    def hazards(self, topic: str) -> tuple[str, ...]:
        """The policies that would delete unread events of the topic, as far as known."""
        return self._hazards.get(topic, ())

    def check(self, topic: str) -> None:
        """Check the topic's policies, at most once an hour, and log an error for each new hazard.

        A failed check is logged only once for all topics, and is repeated after `_RETRY_S`.
        """
        now = self._clock()
        with self._lock:
            if now - self._checked_at.get(topic, -_INTERVAL_S) < _INTERVAL_S:
                return
            self._checked_at[topic] = now
        try:
            found = tuple(hazards_of(self._answers, topic, EVENTS))
        except (PublishError, ValueError, TypeError, AttributeError) as error:
            self._checked_at[topic] = now - _INTERVAL_S + _RETRY_S
            if not self._is_unreadable:
                self._is_unreadable = True
                _log.warning(
                    "it is not known whether Pulsar deletes unread events, because its policies cannot be read (%s); grant the right"
                    " to read them, or see docs/agent.md for what to check",
                    error,
                )
            return
        for each in found:
            if each not in self.hazards(topic):
                _log.error("%s: %s", topic, each)
        self._hazards[topic] = found

    def forget(self, topic: str) -> None:
        """Let the next `check` read the policies again, because the topic is being opened."""
        with self._lock:
            self._checked_at.pop(topic, None)
