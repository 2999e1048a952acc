"""EventsTopicAdmin: an operator's mistakes with an events topic, made by Pulsar's admin interface."""

from __future__ import annotations

from typing import Final

import httpx
import pulsar

from cdc.rest import rest
from tests.fault_kit.line import FaultLine, wait_for
from tests.fault_kit.oracle.topics import Event, TopicReader
from tests.fault_kit.tables import KEYSPACE

__all__ = ["EventsTopicAdmin"]

_TIMEOUT_S: Final = 60
# Pulsar and the agent may be killed and started again during this time.
_RECOVERY_S: Final = 300.0
_SUBSCRIPTION: Final = "sub"
_MARK: Final = "cdc-subscription"
_DONE: Final = frozenset({204, 404})


class EventsTopicAdmin:
    """The events topic of one table. Methods wait while Pulsar does not answer. Raises FaultRunError."""

    def __init__(self, line: FaultLine, table: str) -> None:
        self.table: Final = table
        self._pulsar: Final = line.sandbox.pulsar
        self._name: Final = f"cdc-events-{KEYSPACE}.{table}"
        self._url: Final = f"{self._pulsar.admin_url}/admin/v2/persistent/public/default/{self._name}"

    def events(self) -> list[Event]:
        """All events that the topic has now."""
        found: list[Event] = []

        def read() -> bool:
            try:
                with TopicReader(self._pulsar.service_url, self._pulsar.admin_url) as reader:
                    found[:] = reader.events(self._name)
            except (httpx.HTTPError, pulsar.PulsarException):
                return False
            return True

        wait_for(read, f"{self._name} is read", _RECOVERY_S)
        return found

    def remove_subscription(self) -> None:
        """Do the same as `pulsar-admin topics unsubscribe --force`."""
        self._delete(f"subscription/{_SUBSCRIPTION}?force=true")

    def delete(self) -> None:
        """Do the same as `pulsar-admin topics delete-partitioned-topic --force`."""
        self._delete("partitions?force=true")

    def _delete(self, what: str) -> None:
        def is_done() -> bool:
            try:
                return rest().delete(f"{self._url}/{what}", timeout=_TIMEOUT_S).status_code in _DONE
            except httpx.HTTPError:
                return False

        wait_for(is_done, f"{self._name}: {what} is deleted", _RECOVERY_S)

    def wait_until_whole(self) -> None:
        """Wait until agents have made the topic, and the marked subscription in each partition."""
        wait_for(self._is_whole, f"{self._name} has its subscription in all partitions", _RECOVERY_S)

    def _is_whole(self) -> bool:
        try:
            answer = rest().get(f"{self._url}/partitioned-stats?perPartition=true", timeout=_TIMEOUT_S)
            stats = answer.raise_for_status().json()
        except httpx.HTTPError:
            return False
        subscriptions = [each["subscriptions"].get(_SUBSCRIPTION) for each in stats["partitions"].values()]
        return len(subscriptions) == stats["metadata"]["partitions"] and all(
            each is not None and _MARK in (each.get("subscriptionProperties") or {}) for each in subscriptions
        )
