"""The text about a pattern that no topic matches: it names the topics with similar names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Final

from schemas.hints import names_hint
from spark_bridge.topics.admin import PulsarAdmin
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.positions import topic_of

__all__ = ["unmatched_reason"]

_SIMILAR: Final = 0.6
# The marks of a regular expression: what is left are the letters of a name.
_MARKS: Final = re.compile(r"\.[*+?]|[\\\[\](){}^$|*+?]")
_OF_PULSAR: Final = "__"
"""Begins the names of topics that Pulsar keeps for itself, such as `__change_events`."""


def unmatched_reason(options: BridgeOptions) -> str | None:
    """Why the pattern of the options names no topic; None without a pattern, or if a topic matches.

    Raises PulsarUnreachableError and TopicError.
    """
    if options.topics_pattern is None:
        return None
    namespace, pattern = options.topics_pattern.rsplit("/", 1)
    with PulsarAdmin(options) as admin:
        if admin.topics():
            return None
        listed = admin.listed_topics(namespace)
    names = {topic_of(each)[0].rpartition("/")[2] for each in listed}
    return f"no topic of {namespace.removeprefix('persistent://')} matches {pattern!r}{_hint(pattern, names)}"


def _hint(pattern: str, names: Iterable[str]) -> str:
    letters = _MARKS.sub("", pattern)
    shown = sorted(each for each in names if not each.startswith(_OF_PULSAR))
    near = [
        each
        for each in sorted(shown, key=lambda name: -_likeness(letters, name))
        if _likeness(letters, each) >= _SIMILAR
    ]
    return names_hint(near, shown, kind="topics", without=", and it has no topic")


def _likeness(letters: str, name: str) -> float:
    """From 0 to 1. A pattern is often the beginning of the names that it means."""
    return max(SequenceMatcher(None, letters, each).ratio() for each in (name, name[: len(letters)]))
