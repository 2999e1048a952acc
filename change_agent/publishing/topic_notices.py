"""TopicNotices: the log's lines about topics that cannot be used: one for all topics that have the same reason.

While Pulsar is away, each of some hundred topics is refused every few seconds.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

__all__ = ["TopicNotices"]

_log: Final = logging.getLogger(__name__)
_MOST_NAMES: Final = 3
# Reasons that no topic has any more are forgotten when there are as many in all.
_MOST_REASONS: Final = 100
# From this number of attempts on, which take about a minute, a further topic is named.
_LATE: Final = 16
_PARTITION: Final = re.compile(r"-partition-\d+")


@dataclass(slots=True)
class _Reason:
    """A reason, and the topics that have it now. A dict keeps their order."""

    topics: dict[str, None] = field(default_factory=dict)
    told_attempt: int = 0
    recovered: dict[str, None] = field(default_factory=dict)
    """Topics that had this reason last, and take events again."""
    attempts: int = 0
    """The largest number of attempts of these topics."""


class TopicNotices:
    """Used by the publisher's thread."""

    def __init__(self) -> None:
        self._reasons: Final[dict[str, _Reason]] = {}
        self._reason_of: Final[dict[str, str]] = {}

    def refused(self, topic: str, reason: str, attempt: int, *, is_own: bool = False) -> None:
        """Note that a topic was refused. `attempt`: how often in a row.

        `is_own`: the topic itself is the reason, for it does not exist. It has a line of its own, as somebody may have
        to create it.

        A new reason is logged, and each doubling of the number of attempts. A topic that is refused long after others
        with the same reason is named: the next doubling may be hours away.
        """
        # Texts of errors have the topic's name. Otherwise the topics have one reason while Pulsar is away.
        shared = f"{topic}: {reason}" if is_own else _PARTITION.sub("", reason).replace(_local_name(topic), "*")
        if self._reason_of.get(topic) != shared:
            self._leave(topic)
            self._reason_of[topic] = shared
        if len(self._reasons) >= _MOST_REASONS:
            self._forget_old()
        known = self._reasons.setdefault(shared, _Reason())
        known.topics[topic] = None
        is_due = attempt & (attempt - 1) == 0 and attempt > known.told_attempt
        is_new = attempt == 1 and known.told_attempt >= _LATE
        if is_due or is_new or not known.told_attempt:
            known.told_attempt = attempt
            topics = [topic] if is_new else known.topics
            _log.warning(
                "waiting for %s: %s (attempt %d)", _some(topics), reason if len(topics) == 1 else shared, attempt
            )

    def _forget_old(self) -> None:
        """Forget the reasons that no topic has now: a text may have a number that is another one each time."""
        for reason in [each for each, known in self._reasons.items() if not known.topics]:
            del self._reasons[reason]

    def recovered(self, topic: str, attempts: int) -> None:
        """Note that a topic takes events again. This is logged when the last topic with the same reason does."""
        known = self._reasons.get(self._reason_of.get(topic, ""))
        if known is not None:
            known.recovered[topic] = None
            known.attempts = max(known.attempts, attempts)
            self._leave(topic)
        if not self._reason_of:
            self._reasons.clear()

    def forget(self, topic: str) -> None:
        """Note that a topic is not used any more."""
        self._leave(topic)
        if not self._reason_of:
            self._reasons.clear()

    def held(self, topics: Collection[str], seconds: float, folder: Path) -> None:
        """Log that events of these topics are held. `seconds`: the longest time for which one could not be used."""
        if topics:
            _log.warning(
                "%s cannot be used for %s%.0f s: %s events are held in %s, so that other tables can continue",
                _some(topics),
                "" if len(topics) == 1 else "up to ",
                seconds,
                "its" if len(topics) == 1 else "their",
                folder,
            )

    def _leave(self, topic: str) -> None:
        reason = self._reason_of.pop(topic, None)
        if reason is None:
            return
        known = self._reasons[reason]
        del known.topics[topic]
        if known.topics or not known.recovered:
            # While topics have one reason, then another, and the first one again, this one counts as told.
            return
        del self._reasons[reason]
        if len(known.recovered) == 1:
            _log.info("%s takes events again, after %d attempts", *known.recovered, known.attempts)
        else:
            _log.info("%d topics take events again, after up to %d attempts", len(known.recovered), known.attempts)


def _local_name(topic: str) -> str:
    return topic.rpartition("/")[2]


def _some(topics: Collection[str]) -> str:
    """One topic by its name, several by their number and the first names."""
    if len(topics) == 1:
        return next(iter(topics))
    names = ", ".join(map(_local_name, islice(topics, _MOST_NAMES)))
    return f"{len(topics)} topics ({names}{', ...' if len(topics) > _MOST_NAMES else ''})"
