"""Requests about topics that failed. Each error is reported once, and hides no other topic."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from cdc.health.findings import Finding, failure
from cdc.health.pulsar_service import PulsarServiceError

__all__ = ["TOGETHER", "Unanswered", "ask_each", "remedy_of_topic"]

TOGETHER: Final = 8
"""Topics that are asked for at a time."""

# Each of these takes up to 10 s, and `TOGETHER` are asked for at a time.
_MOST_SILENT: Final = 16
_SHOWN: Final = 3


class Unanswered:
    """The errors of requests about topics. Any thread may call its methods.

    `unknown`: what is not known of a subject without an answer.
    """

    def __init__(self, unknown: str = "its state") -> None:
        self._unknown: Final = unknown
        self._errors: Final[list[tuple[str, str, PulsarServiceError]]] = []
        self._not_asked: Final[list[str]] = []

    def add(self, subject: str, topic: str, error: PulsarServiceError) -> None:
        """Note that there is no answer about a topic. `subject`: the table, or what else the user knows it by."""
        self._errors.append((subject, topic, error))

    def skips(self, subject: str) -> bool:
        """True if so many requests had no answer that this one is not sent, which would take too long."""
        if sum(error.status is None for _, _, error in list(self._errors)) < _MOST_SILENT:
            return False
        self._not_asked.append(subject)
        return True

    def findings(self) -> list[Finding]:
        """A failure for each error, with the topics that have it; and one for those that were not asked for."""
        by_text: dict[str, list[tuple[str, str, PulsarServiceError]]] = {}
        for subject, topic, error in sorted(self._errors, key=lambda each: each[:2]):
            name = topic.rpartition("/")[2]
            by_text.setdefault(str(error).replace(name, "*"), []).append((subject, topic, error))
        return [*(self._finding(group) for group in by_text.values()), *self.not_asked()]

    def not_asked(self) -> Iterator[Finding]:
        """A failure for those that were not asked for; none if all were."""
        if self._not_asked:
            text = f"{_names(sorted(self._not_asked))}: not asked for, because {_MOST_SILENT} requests for other topics had no answer"
            yield failure("", text, "follow the remedies of those topics", not_asked=sorted(self._not_asked))

    def _finding(self, group: list[tuple[str, str, PulsarServiceError]]) -> Finding:
        (subject, topic, error), *others = group
        more = f" (also for {_names([each for each, _, _ in others])})" if others else ""
        text = f"{self._unknown} is not known, because the request for its topic failed{more}: {error}"
        remedy = remedy_of_topic(topic, error)
        return failure(subject, text, remedy, subjects=[each for each, _, _ in group])


def ask_each(
    asked: Iterable[tuple[str, str]], look: Callable[[str, str], Iterable[Finding]], unknown: str = "its state"
) -> list[Finding]:
    """What `look` finds about each of these topics, which are given with their subjects.

    An error of one topic hides no other one. `unknown`: what is not known without an answer.
    """
    unanswered = Unanswered(unknown)

    def ask(each: tuple[str, str]) -> list[Finding]:
        topic, subject = each
        if unanswered.skips(subject):
            return []
        try:
            return [*look(topic, subject)]
        except PulsarServiceError as error:
            unanswered.add(subject, topic, error)
            return []

    with ThreadPoolExecutor(TOGETHER) as pool:
        found = [finding for each in pool.map(ask, asked) for finding in each]
    return [*found, *unanswered.findings()]


def remedy_of_topic(topic: str, error: PulsarServiceError, right: str | None = None) -> str:
    """What to do if a request about a topic fails. `right`: how to get the right to it; by default, that to consume."""
    if error.is_refusal:
        return right or f"pulsar-admin topics grant-permission --role ROLE --actions consume {topic}"
    return (
        f"`pulsar-admin topics lookup {topic}` names its broker: see that broker's log, and restart it if it hangs; another"
        " one takes its topics then"
    )


def _names(subjects: Collection[str]) -> str:
    """The first names, and the number of the others."""
    shown = [*subjects][:_SHOWN]
    return ", ".join(shown) + (f" and {len(subjects) - _SHOWN:,} others" if len(subjects) > _SHOWN else "")
