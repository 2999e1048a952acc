"""The dead-letter topics of a line: its own, and those that its sources name in the option `deadLetter.topic`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cdc.health.line_config import LineConfig
from cdc.health.pulsar_service import NotThereError, PulsarService
from cdc.health.sources import is_ours, names_in, options_of
from schemas.topics import DEFAULT_EVENTS_PREFIX, full_topic_name

__all__ = ["asked_dead_letter_topics", "dead_letter_topics", "reads_line"]


def dead_letter_topics(config: LineConfig, sources: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Full names of the dead-letter topics, each once.

    `sources`: the options of each source. A source that reads topics with another prefix belongs to another line.
    """
    named = [
        str(each["deadLetter.topic"]) for each in sources if each.get("deadLetter.topic") and reads_line(each, config)
    ]
    return tuple(dict.fromkeys(full_topic_name(each) for each in (config.dead_letters, *named)))


def asked_dead_letter_topics(config: LineConfig, service: PulsarService) -> tuple[str, ...]:
    """Full names of the dead-letter topics, by the sources in the line's namespace. Raises PulsarServiceError."""

    def options() -> Iterable[Mapping[str, Any]]:
        for name in service.sources():
            try:
                found = service.source(name)
            except NotThereError:  # deleted just now
                continue
            if is_ours(found):
                yield options_of(found)

    return dead_letter_topics(config, options())


def reads_line(options: Mapping[str, Any], config: LineConfig) -> bool:
    """Return True if a source with these options reads events topics of the line."""
    topics = names_in(options.get("events.topic") or DEFAULT_EVENTS_PREFIX)
    return any(full_topic_name(each).startswith(full_topic_name(config.topic_prefix)) for each in topics)
