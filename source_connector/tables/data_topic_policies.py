"""Policies by which Pulsar deletes records of data topics: checked at registration and every hour, and reported.

By default Pulsar deletes messages that no subscription holds, so a later reader does not find these records. With an
option, the connector sets the retention itself.
"""

from __future__ import annotations

import logging
import queue
import time
from typing import Final

from clients.topic_policies import Ask, Audience, PolicyQuestions, Retention, hazards_of
from runtime.notices import Notices
from runtime.stage import Stage
from schemas.topics import full_topic_name, rest_path
from source_connector.errors import AdminError
from source_connector.events.pulsar_admin import PulsarAdmin

__all__ = ["DataTopicPolicies", "trimming_of"]

_log: Final = logging.getLogger(__name__)
_INTERVAL_S: Final = 3600.0
# The pause after a failed check.
_RETRY_S: Final = 600.0
_FOR_EVER: Final = -1
RECORDS: Final = Audience(
    messages="records", subscription="a subscription, with the records that it held,", reader="its reader"
)


def trimming_of(ask: Ask, topic: str, wanted_minutes: int | None) -> list[str]:
    """The policies that delete records of a data topic, each with a command against it. Raises AdminError.

    A retention that is set counts as intended, even if it is limited by size or time.
    """
    questions = PolicyQuestions(ask)
    found = hazards_of(questions, topic, RECORDS)
    kept = questions.retention(topic)
    if (
        wanted_minutes is None
        and _FOR_EVER not in (kept.minutes, kept.megabytes)
        and not (kept.minutes and kept.megabytes)
    ):
        found.insert(
            0,
            "records that no subscription holds are deleted, because there is no retention; fix it with `pulsar-admin"
            f" topicPolicies set-retention {topic} --time -1 --size -1`, or the option dataTopic.retentionMinutes of the source",
        )
    return found


class DataTopicPolicies(Stage):
    """Owns a thread, which starts with the first topic. Any thread may read `hazards` and `unknown`.

    With `retention_minutes` each topic gets that retention without a limit of size; -1 is for ever. Without `admin`
    nothing is checked.
    """

    def __init__(self, admin: PulsarAdmin | None, retention_minutes: int | None) -> None:
        super().__init__("reader of the data topics' policies")
        self._admin: Final = admin
        self._wanted: Final = retention_minutes
        self._topics: Final[queue.SimpleQueue[str]] = queue.SimpleQueue()
        self._due_at: Final[dict[str, float]] = {}
        self._found: Final[dict[str, tuple[str, ...]]] = {}
        self._notices: Final = Notices(_log)

    @property
    def hazards(self) -> int:
        """How many policies delete records, over all topics."""
        return sum(map(len, list(self._found.values())))

    @property
    def unknown(self) -> int:
        """How many topics have unknown policies."""
        return len(self._due_at) - len(self._found)

    def follow(self, topic: str) -> None:
        """Check a data topic, which exists now. Does nothing if it is known already."""
        topic = full_topic_name(topic)
        if topic in self._due_at:
            return
        self._due_at[topic] = 0.0
        if self._admin is None:
            if len(self._due_at) == 1:
                _log.warning(
                    "it is not known which records of the data topics Pulsar deletes: set the option pulsarAdminUrl, and the"
                    " policies that delete records are reported here (by default Pulsar keeps only records that a subscription holds)"
                )
            return
        self._topics.put(topic)
        if not self.is_started:
            self.start()

    def run(self) -> None:
        """Check each topic when it is followed, and then regularly."""
        admin = self._admin
        assert admin is not None
        waiting: dict[str, float] = {}
        while not self.stopping.is_set():
            timeout_s = max(0.0, min(waiting.values(), default=_INTERVAL_S) - time.monotonic()) if waiting else None
            try:
                waiting[self._topics.get(timeout=timeout_s)] = 0.0
            except queue.Empty:
                topic = min(waiting, key=lambda each: waiting[each])
                waiting[topic] = time.monotonic() + self.check(admin, topic)

    def check(self, admin: PulsarAdmin, topic: str) -> float:
        """Check a topic, and report each policy that deletes records. Return the seconds until the next check."""
        try:
            if self._wanted is not None:
                _keep(admin, topic, self._wanted)
            found = tuple(trimming_of(admin.policy, topic, self._wanted))
        except (AdminError, ValueError, TypeError, AttributeError) as error:
            self._found.pop(topic, None)
            text = f"what Pulsar deletes of the data topics is not known, for their policies cannot be read or set: {error}"
            self._notices.say(
                "policies", f"{text}; grant the right to it (docs/connector.md), next attempt in 10 minutes"
            )
            return _RETRY_S
        for each in found:
            _log.error("%s: %s", topic, each)
        self._found[topic] = found
        return _INTERVAL_S


def _keep(admin: PulsarAdmin, topic: str, minutes: int) -> None:
    if PolicyQuestions(admin.policy).retention(topic) == Retention(minutes=minutes, megabytes=_FOR_EVER):
        return
    wanted = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": _FOR_EVER}
    admin.set(topic, f"/persistent/{rest_path(topic)}/retention", wanted)
    kept = "for ever" if minutes == _FOR_EVER else f"for {minutes} minutes"
    _log.info("%s: keeps its records %s (dataTopic.retentionMinutes)", topic, kept)
