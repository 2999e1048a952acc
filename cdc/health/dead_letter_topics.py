"""The dead-letter topics of a line: its own, and those that sources have as the option `deadLetter.topic`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cdc.health.line_config import LineConfig
from cdc.health.pulsar_service import NotThereError, PulsarService
from schemas.topics import full_topic_name

__all__ = ["asked_dead_letter_topics", "dead_letter_topics"]


def dead_letter_topics(config: LineConfig, sources: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Their full names, each once. `sources`: the options of the sources."""
    named = [str(each["deadLetter.topic"]) for each in sources if each.get("deadLetter.topic")]
    return tuple(dict.fromkeys(full_topic_name(each) for each in (config.dead_letters, *named)))


def asked_dead_letter_topics(config: LineConfig, service: PulsarService) -> tuple[str, ...]:
    """The same, by the sources of the line's namespace. Raises PulsarServiceError."""

    def options() -> Iterable[Mapping[str, Any]]:
        for name in service.sources():
            try:
                yield service.source(name).get("configs") or {}
            except NotThereError:  # deleted just now
                continue

    return dead_letter_topics(config, options())
