"""Requests of the job `publish` to Pulsar's admin service: topics, de-duplication, the last writer.

REST of Pulsar 4: /admin/v2/persistent/{topic}/partitions, createMissedPartitions, deduplicationEnabled, stats,
ledger/{ledger}/entry/{entry}.
"""

from __future__ import annotations

import time
from typing import Final

from clients.admin_client import topic_path
from spark_bridge.topics.admin import PulsarAdmin

__all__ = ["PublishAdmin"]

_POLICY_S: Final = 60.0
"""How long a broker may take to apply a new policy of a topic."""


class PublishAdmin(PulsarAdmin):
    """Requests about topics of the job `publish`. Raises PulsarUnreachableError and TopicError."""

    def make(self, topic: str, partitions: int) -> list[str]:
        """Create a topic with `partitions` partitions if it does not exist. Return the names of its partitions."""
        self._call("PUT", topic, f"{topic_path(topic)}/partitions", partitions)
        found = self.partitions_of(topic)
        if found != [topic]:
            # The broker deletes partitions that are empty and idle.
            self._call("POST", topic, f"{topic_path(topic)}/createMissedPartitions")
        return found

    def deduplicate(self, topic: str, partitions: list[str]) -> str | None:
        """Switch on a topic's de-duplication, and wait for it. Return why it is not on; None if it is on."""
        if all(self._is_deduplicated(each) for each in partitions):
            return None
        answer = self._request("POST", topic, "deduplicationEnabled", True)
        if not answer.is_success:
            return f"the admin service answers {answer.status_code}"
        ends_at = time.monotonic() + _POLICY_S
        while not all(self._is_deduplicated(each) for each in partitions):
            if time.monotonic() >= ends_at:
                return "the broker does not follow the topic's policy"
            time.sleep(0.2)
        return None

    def last_writer(self, partition: str) -> str | None:
        """Producer name of the last entry of a topic partition; None if there is no entry, or if it was trimmed."""
        last = self.last_position(partition)
        if last.entry < 0:
            return None
        answer = self._request("GET", partition, f"ledger/{last.ledger}/entry/{last.entry}")
        return answer.headers.get("X-Pulsar-producer-name") if answer.is_success else None

    def creations(self, partitions: list[str]) -> dict[str, str | None]:
        """The creation of each partition; None for one without records, which the broker deletes when it is idle."""
        return {each: self.creation(each) if self.last_position(each).entry >= 0 else None for each in partitions}

    def _is_deduplicated(self, partition: str) -> bool:
        return bool(self._of(partition, "stats").get("deduplicationStatus") == "Enabled")
