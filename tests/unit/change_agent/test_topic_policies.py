"""TopicPolicies: the policies that Pulsar returns, and hazards, which are policies that would drop unread events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from change_agent.errors import PublishError
from change_agent.publishing.topic_policies import EVENTS, TopicPolicies
from clients.topic_policies import hazards_of

_TOPIC = "persistent://tenant/ns/cdc-events-ks.t"
# The answer of a broker with default settings.
_DEFAULT_QUOTA = {"limit": 10737418240, "limitSize": 10737418240, "limitTime": -1, "policy": "producer_request_hold"}


class _Answers:
    """The policies of a broker, which may refuse to return them."""

    def __init__(self) -> None:
        self.ttl_s = self.expiration_min = 0
        self.quotas: dict[str, dict[str, Any]] = {"destination_storage": _DEFAULT_QUOTA, "message_age": _DEFAULT_QUOTA}
        self.is_refused = False
        self.has_own_ttl = True
        self.asked = 0

    def message_ttl_s(self, topic: str) -> int:
        self.asked += 1
        if self.is_refused:
            raise PublishError(topic, "403 Forbidden")
        return self.ttl_s

    def has_own_message_ttl(self, topic: str) -> bool:
        return self.has_own_ttl

    def backlog_quotas(self, topic: str) -> Mapping[str, Mapping[str, Any]]:
        return self.quotas

    def subscription_expiration_min(self, topic: str) -> int:
        return self.expiration_min


def test_what_drops_nothing_is_no_hazard() -> None:
    """A quota that lets producers wait, and a quota with eviction but without a limit."""
    answers = _Answers()
    assert hazards_of(answers, _TOPIC, EVENTS) == []
    answers.quotas = {"message_age": _DEFAULT_QUOTA | {"policy": "consumer_backlog_eviction"}}
    assert hazards_of(answers, _TOPIC, EVENTS) == []


def test_each_hazard_has_its_command() -> None:
    """One line for each hazard, with its numbers."""
    answers = _Answers()
    answers.ttl_s, answers.expiration_min = 60, 5
    answers.quotas = {
        "destination_storage": _DEFAULT_QUOTA | {"policy": "consumer_backlog_eviction"},
        "message_age": _DEFAULT_QUOTA | {"policy": "consumer_backlog_eviction", "limitTime": 300},
    }
    found = hazards_of(answers, _TOPIC, EVENTS)
    assert [each.partition("fix it with ")[2].partition("`, or")[0].strip("`") for each in found] == [
        f"pulsar-admin topics set-message-ttl {_TOPIC} --ttl 0",
        f"pulsar-admin topics set-backlog-quota {_TOPIC} --limit 10737418240 --type destination_storage --policy producer_request_hold",
        f"pulsar-admin topics set-backlog-quota {_TOPIC} --limitTime 300 --type message_age --policy producer_request_hold",
        "pulsar-admin namespaces set-subscription-expiration-time tenant/ns --time 0",
    ]


def test_a_message_ttl_of_the_namespace_is_corrected_there() -> None:
    """The command set the policy of one topic. The next table's topic had the same hazard again."""
    answers = _Answers()
    answers.ttl_s, answers.has_own_ttl = 60, False
    [found] = hazards_of(answers, _TOPIC, EVENTS)
    assert found == (
        "the message TTL of the namespace tenant/ns drops events that were not read for 60 s; fix it with `pulsar-admin namespaces"
        " set-message-ttl tenant/ns --messageTTL 0`, or, if its other topics need the TTL, with `pulsar-admin topics"
        " set-message-ttl TOPIC --ttl 0` for each topic of the pipeline"
    )
    assert hazards_of(answers, f"{_TOPIC}2", EVENTS) == [found]


def test_a_hazard_is_told_once_and_looked_for_each_hour(caplog: pytest.LogCaptureFixture) -> None:
    """Opening the topic again causes a check at once."""
    times = iter((0.0, 60.0, 3600.0, 3700.0))
    answers = _Answers()
    policies = TopicPolicies(answers, clock=lambda: next(times))
    answers.ttl_s = 60
    for _ in range(3):
        policies.check(_TOPIC)
    assert answers.asked == 2
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert len(policies.hazards(_TOPIC)) == 1
    answers.ttl_s = 0
    policies.forget(_TOPIC)
    policies.check(_TOPIC)
    assert policies.hazards(_TOPIC) == ()


def test_a_check_that_failed_is_repeated_soon_and_then_less_often() -> None:
    """The first retry comes within half a minute; the longest pause is ten minutes. An answer counts for an hour."""
    now_s = 0.0
    answers = _Answers()
    policies = TopicPolicies(answers, clock=lambda: now_s)

    def asks() -> bool:
        before = answers.asked
        policies.check(_TOPIC)
        return answers.asked > before

    answers.is_refused = True
    assert asks()
    for longest_s in (30, 60, 120, 240, 480, 600, 600):
        now_s += 0.45 * longest_s
        assert not asks()
        now_s += 0.6 * longest_s
        assert asks()
    answers.is_refused, answers.ttl_s = False, 60
    now_s += 600
    assert asks()
    assert len(policies.hazards(_TOPIC)) == 1
    now_s += 3599
    assert not asks()
    answers.is_refused = True
    now_s += 1
    assert asks()
    now_s += 30
    assert asks(), "the pauses begin anew"


def test_missing_rights_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Missing rights have no other effect."""
    answers = _Answers()
    answers.is_refused = True
    policies = TopicPolicies(answers)
    for number in range(3):
        policies.check(f"{_TOPIC}{number}")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "its policies cannot be read" in caplog.text
    assert policies.hazards(f"{_TOPIC}0") == ()
