"""The policies by which Pulsar deletes messages of topics that somebody still needs, as findings."""

from __future__ import annotations

from typing import Any, Final

from cdc.health.findings import Finding, warning
from cdc.health.pulsar_service import PulsarService
from change_agent.publishing.topic_policies import EVENTS
from clients.topic_policies import Ask, Audience, PolicyQuestions, hazards_of
from schemas.topics import RESEND_SUBSCRIPTION
from source_connector.tables.data_topic_policies import trimming_of

__all__ = ["EVENTS", "LETTERS", "as_hazard", "asked_once", "policy_warnings"]

_FIX: Final = "; fix it with "
# Dead letters wait in their topic until somebody runs `cdc connector resend`.
LETTERS: Final = Audience(
    messages="dead letters", subscription=f"the subscription {RESEND_SUBSCRIPTION}", reader="whoever sends them again"
)


def asked_once(service: PulsarService) -> Ask:
    """A function that asks the service for policies, each path only once: topics share those of their namespace."""
    answers: dict[str, Any] = {}

    def ask(topic: str, path: str) -> Any:
        if path not in answers:
            answers[path] = service.policy(topic, path)
        return answers[path]

    return ask


def policy_warnings(ask: Ask, topic: str, audience: Audience | None) -> list[Finding]:
    """A warning for each policy that deletes messages of an existing topic. Raises PulsarServiceError.

    `audience`: who reads the unread messages; None for a data topic, whose readers have no subscription.
    """
    hazards = trimming_of(ask, topic, None) if audience is None else hazards_of(PolicyQuestions(ask), topic, audience)
    parts = (hazard.partition(_FIX) for hazard in hazards)
    return [warning(topic.rpartition("/")[2], text, remedy) for text, _, remedy in parts]


def as_hazard(found: Finding) -> str:
    """A warning of `policy_warnings` as an agent has it in its status."""
    return f"{found.text}{_FIX}{found.remedy}"
