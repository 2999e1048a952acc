"""Which tables with CDC an agent leaves out by `includeTables` and `excludeTables`, and patterns that match nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from cdc.health.agent_status import AgentStatus
from cdc.health.findings import Finding, Level, ok, warning
from change_agent.configuration.table_filter import TableFilter

__all__ = ["left_out", "left_out_by"]

_SHOWN: Final = 5


def left_out_by(status: AgentStatus, tables: Mapping[str, bool]) -> Iterator[Finding]:
    """The warnings of `left_out` about an agent, by the patterns that its status has.

    An agent of an earlier version does not write them.
    """
    include, exclude = (status.content.get(name) or () for name in ("include_tables", "exclude_tables"))
    for each in left_out(include, exclude, tables):
        if each.level is not Level.OK:
            yield replace(each, subject=status.place, text=f"{each.subject}: {each.text}")


def left_out(include: Sequence[str], exclude: Sequence[str], tables: Mapping[str, bool]) -> Iterator[Finding]:
    """Findings about the patterns of an agent.

    `tables`: all tables of the cluster by `keyspace.table`, with their option `cdc`; empty if they are not known.
    """
    if not tables or not (include or exclude):
        return
    for option, patterns in (("includeTables", include), ("excludeTables", exclude)):
        for pattern in patterns:
            if not any(fnmatchcase(table, pattern) for table in tables):
                text = f"{pattern} matches no table of the cluster"
                yield warning(option, text, "correct it in agent.yaml, unless its table is still to come")
    admitted = TableFilter(include, exclude)
    captured = sorted(table for table, has_cdc in tables.items() if has_cdc)
    left = [table for table in captured if not admitted.admits(*table.split(".", 1))]
    if left:
        names = ", ".join(left[:_SHOWN]) + (f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else "")
        text = f"the agent leaves out {len(left)} of {len(captured)} tables with cdc = true: {names}"
        if len(left) == len(captured):
            yield warning(
                "tables", f"{text}; it publishes nothing", "correct includeTables or excludeTables in agent.yaml"
            )
        else:
            yield ok("tables", text)
