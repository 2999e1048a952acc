"""The time until which each table is complete, from the progress topic and the connector's cursors.

It is for `cdc status` and `cdc resolved`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

from cdc.health.dead_letter_topics import asked_dead_letter_topics
from cdc.health.findings import Finding, Level, as_duration, failure, warning
from cdc.health.line_config import LineConfig
from cdc.health.pulsar_service import PulsarService, PulsarServiceError
from cdc.health.reader_options import WRITTEN, reader_options
from schemas.errors import CdcError
from schemas.resolved import DEAD_LETTERS, NOT_READ, TableResolved

__all__ = ["ResolvedLine", "completeness_of", "with_completeness"]

_LATE_S: Final = 60.0
_VERY_LATE_S: Final = 600.0


class ResolvedLine:
    """The resolved timestamps of a line's tables. It owns connections to Pulsar, and is for one thread.

    The constructor and all methods raise the errors of `ResolvedTimestamps`.
    """

    def __init__(self, config: LineConfig) -> None:
        # Imported here: these modules import Pulsar's client, which takes longer than most commands run.
        from spark_bridge.topics.options import BridgeOptions
        from spark_bridge.topics.resolved import ResolvedTimestamps

        self._config: Final = config
        self._knows_sources = False
        self._timestamps: Final = ResolvedTimestamps(BridgeOptions.without_topic(reader_options(config), WRITTEN))

    def close(self) -> None:
        """Close all connections."""
        self._timestamps.close()

    def read(
        self, tables: Sequence[str] | None = None, dead_letters: Sequence[str] | None = None
    ) -> dict[str, TableResolved]:
        """The current state of these tables; by default, of all tables that agents publish.

        `dead_letters`: the line's dead-letter topics. If it is None, they are taken from the sources that Pulsar lists.
        If Pulsar does not list them, the topics of an earlier call are used; without such a call, each table gets a
        problem.
        """
        problem = None
        if dead_letters is None:
            try:
                with PulsarService(self._config) as service:
                    dead_letters = asked_dead_letter_topics(self._config, service)
            except PulsarServiceError as error:
                if not self._knows_sources:
                    problem = (
                        f"dead letters of sources with deadLetter.topic are not known, for the sources are not: {error}"
                    )
        if dead_letters is not None:
            self._timestamps.dead_letters, self._knows_sources = dead_letters, True
        found = self._timestamps.read_all(self._timestamps.tables() if tables is None else tables)
        if problem is None:
            return found
        return {table: replace(each, problems=[*each.problems, problem]) for table, each in found.items()}

    def published_tables(self) -> list[str]:
        """Names of all tables that agents publish. Raises the errors of `ResolvedTimestamps`."""
        return self._timestamps.tables()

    @property
    def foreign_messages(self) -> int:
        """Messages of the progress topic that no agent has sent."""
        return self._timestamps.foreign_messages


def completeness_of(
    config: LineConfig, tables: Sequence[str], dead_letters: Sequence[str]
) -> dict[str, Finding] | Finding:
    """A finding for each table, by table: the time until which it is complete, or why that is not known.

    If Pulsar does not give the times of any table, one finding for all.
    """
    if not tables:
        return {}
    try:
        with closing(ResolvedLine(config)) as line:
            return {table: _finding(table, each) for table, each in line.read(tables, dead_letters).items()}
    except (CdcError, ImportError) as error:
        subject, they_are = (tables[0], "it is") if len(tables) == 1 else (f"{len(tables):,} tables", "they are")
        text = f"until when {they_are} complete is not known: {error}"
        return warning(subject, text, "cdc doctor checks Pulsar's rights and state")


def _finding(table: str, found: TableResolved) -> Finding:
    from spark_bridge.topics.resolved import utc_text

    facts: Mapping[str, object] = {"resolved_ms": found.resolved_ms, "standing_still": list(found.problems)}
    why = "; ".join(found.problems)
    if found.resolved_ms is None:
        return warning(
            table, f"until when it is complete is not known: {why}", _remedy_of_unknown(found.problems), **facts
        )
    age_s = max(0.0, time.time() - found.resolved_ms / 1000)
    text = f"complete until {utc_text(found.resolved_ms)} ({as_duration(age_s)} ago)"
    facts = {**facts, "resolved_age_s": age_s}
    if age_s < _LATE_S:
        return Finding(level=Level.OK, subject=table, text=text, facts=facts)
    make = failure if age_s > _VERY_LATE_S else warning
    remedy = (
        "do what the reason says" if why else "wait, or see the lag of agents and sources: one of them is behind"
    ) + " (CdcTableIncomplete in docs/runbook.md)"
    return make(table, f"{text}{f': {why}' if why else ''}", remedy, **facts)


def _remedy_of_unknown(problems: Sequence[str]) -> str:
    """What to do about a table without a resolved timestamp."""
    if problems and all(each.endswith((DEAD_LETTERS, NOT_READ)) for each in problems):
        if any(each.endswith(DEAD_LETTERS) for each in problems):
            return "see dead letters below (CdcDeadLetters in docs/runbook.md)"
        return "wait until the connector has read them; else see the sources (CdcBacklogNotRead in docs/runbook.md)"
    return (
        "start cdc agent on each node that is named; if it was just started, wait (CdcTableNotKnown in docs/runbook.md)"
    )


def with_completeness(findings: Sequence[Finding], completeness: Mapping[str, Finding]) -> list[Finding]:
    """Add to the finding of each table the one about its completeness. The worse of the two levels counts."""
    order = list(Level)
    merged = []
    for each in findings:
        more = completeness.get(each.subject)
        if more is None:
            merged.append(each)
            continue
        level = max(each.level, more.level, key=order.index)
        merged.append(
            replace(
                each,
                level=level,
                text=f"{each.text}; {more.text}",
                remedy=each.remedy or more.remedy,
                facts={**each.facts, **more.facts},
            )
        )
    return merged
