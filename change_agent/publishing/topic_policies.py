"""TopicPolicies: which of Pulsar's policies would drop events that nobody has read, and the commands that mend them.

What holds for a topic may be set for it, for its namespace or for the broker. It is asked when a topic opens and each hour.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from change_agent.errors import PublishError

__all__ = ["PolicyAnswers", "TopicPolicies", "hazards_of"]

_log: Final = logging.getLogger(__name__)
_INTERVAL_S: Final = 3600.0
# After a try that failed.
_RETRY_S: Final = 600.0
_EVICTION: Final = "consumer_backlog_eviction"
_LIMITS: Final = {"destination_storage": "limitSize", "message_age": "limitTime"}


class PolicyAnswers(Protocol):
    """What Pulsar says of the policies that are in force; each raises PublishError when it cannot be asked."""

    def message_ttl_s(self, topic: str) -> int:
        """Seconds until a message is dropped unread; 0: never."""

    def backlog_quotas(self, topic: str) -> Mapping[str, Mapping[str, Any]]:
        """Quotas by their type."""

    def subscription_expiration_min(self, topic: str) -> int:
        """Minutes until a subscription without a consumer is removed; 0: never."""


def hazards_of(answers: PolicyAnswers, topic: str) -> list[str]:
    """What would drop unread events, and the command against it. Raises PublishError."""
    found = []
    if ttl_s := answers.message_ttl_s(topic):
        found.append(
            f"the message TTL drops events that were not read for {ttl_s} s; mend it by `pulsar-admin topics"
            f" set-message-ttl {topic} --ttl 0`"
        )
    for kind, quota in sorted(answers.backlog_quotas(topic).items()):
        limit = quota.get(_LIMITS.get(kind, ""), -1)
        if quota.get("policy") == _EVICTION and limit > 0:
            option = f"--limitTime {limit}" if kind == "message_age" else f"--limit {limit}"
            found.append(
                f"the backlog quota ({kind} {limit}, {_EVICTION}) drops unread events; mend it by `pulsar-admin topics"
                f" set-backlog-quota {topic} {option} --type {kind} --policy producer_request_hold`"
            )
    if minutes := answers.subscription_expiration_min(topic):
        namespace = "/".join(topic.removeprefix("persistent://").split("/")[:2])
        found.append(
            f"the subscription is removed when the connector is away for {minutes} minutes; mend it by `pulsar-admin"
            f" namespaces set-subscription-expiration-time {namespace} --time 0`, or subscriptionExpirationTimeMinutes=0 in"
            " broker.conf"
        )
    return found


class TopicPolicies:
    """What was found last, by topic. `look` is for threads that may wait for Pulsar, the rest for all."""

    def __init__(self, answers: PolicyAnswers, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._answers: Final = answers
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._looked_at: Final[dict[str, float]] = {}
        self._hazards: Final[dict[str, tuple[str, ...]]] = {}
        self._is_unreadable = False

    def hazards(self, topic: str) -> tuple[str, ...]:
        """What would drop unread events of the topic, as far as it is known."""
        return self._hazards.get(topic, ())

    def look(self, topic: str) -> None:
        """Ask, where that was not done within the hour; an error for each new hazard. That it cannot be asked is said once."""
        now = self._clock()
        with self._lock:
            if now - self._looked_at.get(topic, -_INTERVAL_S) < _INTERVAL_S:
                return
            self._looked_at[topic] = now
        try:
            found = tuple(hazards_of(self._answers, topic))
        except (PublishError, ValueError, TypeError, AttributeError) as error:
            self._looked_at[topic] = now - _INTERVAL_S + _RETRY_S
            if not self._is_unreadable:
                self._is_unreadable = True
                _log.warning(
                    "whether Pulsar drops unread events cannot be told, for its policies cannot be read (%s); grant the right"
                    " to read them, or see docs/agent.md for what to check", error,
                )  # fmt: skip
            return
        for each in found:
            if each not in self.hazards(topic):
                _log.error("%s: %s", topic, each)
        self._hazards[topic] = found

    def forget(self, topic: str) -> None:
        """Ask again at the next `look`: the topic is opened."""
        with self._lock:
            self._looked_at.pop(topic, None)
