"""Pulsar policies that would drop unread messages, and the commands that correct them.

A policy of a topic may be set for the topic, for its namespace or for the broker. The caller provides the HTTP client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from schemas.topics import rest_path

__all__ = ["Ask", "Audience", "PolicyQuestions", "Retention", "hazards_of"]

_EVICTION: Final = "consumer_backlog_eviction"
_LIMITS: Final = {"destination_storage": "limitSize", "message_age": "limitTime"}

Ask = Callable[[str, str], Any]
"""Takes a topic and a path; returns the decoded JSON answer of Pulsar's admin interface, None for an empty answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audience:
    """Words for a topic's messages, its subscription and its reader in texts about the topic."""

    messages: str
    subscription: str
    reader: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Time and amount for which a topic keeps messages that no subscription holds. -1: without limit. 0: not at all."""

    minutes: int
    megabytes: int


class PolicyQuestions:
    """The effective policies of topics, of all levels, from the REST interface of Pulsar 4.

    Raises the errors of `ask`.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask: Final = ask

    def message_ttl_s(self, topic: str) -> int:
        """Seconds until a message is dropped unread; 0: never."""
        return int(self._ask(topic, f"/persistent/{rest_path(topic)}/messageTTL?applied=true") or 0)

    def has_own_message_ttl(self, topic: str) -> bool:
        """True if the message TTL is set for this topic, not for its namespace or the broker."""
        return self._ask(topic, f"/persistent/{rest_path(topic)}/messageTTL?applied=false") is not None

    def backlog_quotas(self, topic: str) -> Mapping[str, Mapping[str, Any]]:
        """Quotas by their type."""
        return self._ask(topic, f"/persistent/{rest_path(topic)}/backlogQuotaMap?applied=true") or {}

    def subscription_expiration_min(self, topic: str) -> int:
        """Minutes until a subscription without a consumer is removed; 0: never."""
        namespace = "/".join(rest_path(topic).split("/")[:2])
        minutes = self._ask(topic, f"/namespaces/{namespace}/subscriptionExpirationTime")
        if minutes is None:
            minutes = self._ask(topic, "/brokers/configuration/runtime").get("subscriptionExpirationTimeMinutes", 0)
        return int(minutes)

    def retention(self, topic: str) -> Retention:
        """The retention of messages that no subscription holds."""
        found = self._ask(topic, f"/persistent/{rest_path(topic)}/retention?applied=true") or {}
        return Retention(
            minutes=int(found.get("retentionTimeInMinutes", 0)), megabytes=int(found.get("retentionSizeInMB", 0))
        )


def hazards_of(policies: PolicyQuestions, topic: str, audience: Audience) -> list[str]:
    """The policies that would delete unread messages, each with the command that corrects it.

    Raises the errors of `policies`.
    """
    found = []
    if ttl_s := policies.message_ttl_s(topic):
        found.append(_ttl_hazard(ttl_s, topic, audience, is_own=policies.has_own_message_ttl(topic)))
    for kind, quota in sorted(policies.backlog_quotas(topic).items()):
        limit = quota.get(_LIMITS.get(kind, ""), -1)
        if quota.get("policy") == _EVICTION and limit > 0:
            option = f"--limitTime {limit}" if kind == "message_age" else f"--limit {limit}"
            found.append(
                f"the backlog quota ({kind} {limit}, {_EVICTION}) drops unread {audience.messages}; fix it with `pulsar-admin"
                f" topics set-backlog-quota {topic} {option} --type {kind} --policy producer_request_hold`"
            )
    if minutes := policies.subscription_expiration_min(topic):
        namespace = _namespace_of(topic)
        found.append(
            f"{audience.subscription} is removed when {audience.reader} is away for {minutes} minutes; fix it with"
            f" `pulsar-admin namespaces set-subscription-expiration-time {namespace} --time 0`, or"
            " subscriptionExpirationTimeMinutes=0 in broker.conf"
        )
    return found


def _ttl_hazard(ttl_s: int, topic: str, audience: Audience, *, is_own: bool) -> str:
    """A TTL of the namespace is the same hazard for all of its topics, also for those that are created later."""
    dropped = f"{audience.messages} that were not read for {ttl_s} s"
    if is_own:
        return f"the message TTL drops {dropped}; fix it with `pulsar-admin topics set-message-ttl {topic} --ttl 0`"
    namespace = _namespace_of(topic)
    return (
        f"the message TTL of the namespace {namespace} drops {dropped}; fix it with `pulsar-admin namespaces set-message-ttl"
        f" {namespace} --messageTTL 0`, or, if its other topics need the TTL, with `pulsar-admin topics set-message-ttl TOPIC"
        " --ttl 0` for each topic of the pipeline"
    )


def _namespace_of(topic: str) -> str:
    return "/".join(topic.removeprefix("persistent://").split("/")[:2])
