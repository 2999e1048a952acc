"""Remedies for errors of Pulsar's client."""

from __future__ import annotations

import pulsar

__all__ = ["remedy_of"]


def remedy_of(error: pulsar.PulsarException, right: str) -> str:
    """The remedy as text. `right`: the right that the role needs, `produce` or `consume`."""
    match error:
        case pulsar.AuthorizationError():
            return f"grant the right to {right}"
        case pulsar.AuthenticationError() | pulsar.ErrorGettingAuthenticationData():
            return "correct pulsarAuthPluginClassName and pulsarAuthParams of line.yaml"
        case pulsar.TopicNotFound():
            return "the topic was deleted meanwhile; see `cdc status`"
        case pulsar.ProducerBlockedQuotaExceededError() | pulsar.ProducerBlockedQuotaExceededException():
            return "the topic's backlog quota is used up: see that its readers run, or raise the quota"
        case pulsar.MessageTooBig():
            return "raise the broker's maxMessageSize"
        case pulsar.TopicTerminated():
            return "the topic was terminated, and takes no more messages; see `cdc doctor`"
        case _:
            return "check the broker with `cdc doctor`, and try again"
