"""`cdc doctor`, `cdc status` and `cdc agent --check --connect` tell which tables an agent's patterns leave out."""

from __future__ import annotations

import pytest

from cdc.health.agent_status import AgentStatus
from cdc.health.findings import Level
from cdc.health.left_out import left_out, left_out_by

_TABLES = {"shop.orders": True, "shop.parts": True, "crm.person": True, "crm.log": False}


def test_a_mistyped_pattern_is_told() -> None:
    """Nothing is published then, and no part of the pipeline reports anything."""
    [pattern, tables] = left_out(["shpo.*"], [], _TABLES)
    assert (pattern.level, pattern.subject) == (Level.WARNING, "includeTables")
    assert pattern.text == "shpo.* matches no table of the cluster"
    assert tables.level is Level.WARNING
    assert tables.text == (
        "the agent leaves out 3 of 3 tables with cdc = true: crm.person, shop.orders, shop.parts; it publishes nothing"
    )


def test_tables_that_are_left_out_on_purpose_are_named() -> None:
    """Tables without CDC do not count."""
    [tables] = left_out(["shop.*", "crm.*"], ["shop.parts"], _TABLES)
    assert (tables.level, tables.text) == (
        Level.OK,
        "the agent leaves out 1 of 3 tables with cdc = true: shop.parts",
    )


@pytest.mark.parametrize(
    ("include", "exclude", "tables"),
    [([], [], _TABLES), (["*.*"], ["crm.log"], _TABLES), (["shpo.*"], [], {})],
    ids=["no patterns", "nothing is left out", "the node does not answer"],
)
def test_otherwise_there_is_nothing_to_tell(include: list[str], exclude: list[str], tables: dict[str, bool]) -> None:
    """Patterns are compared only with tables that are known."""
    assert not list(left_out(include, exclude, tables))


def test_the_status_names_a_mistyped_pattern_of_each_agent() -> None:
    """The status said that all is well. It does not repeat what is left out on purpose."""
    url = "http://10.0.0.1:9465"
    content = {"include_tables": ["shpo.*"], "exclude_tables": []}
    [pattern, tables] = left_out_by(AgentStatus(url, content), _TABLES)
    assert (pattern.level, pattern.subject) == (Level.WARNING, url)
    assert pattern.text == "includeTables: shpo.* matches no table of the cluster"
    assert tables.text.endswith("; it publishes nothing")
    assert not list(left_out_by(AgentStatus(url, {"include_tables": ["shop.*"], "exclude_tables": []}), _TABLES))
    assert not list(left_out_by(AgentStatus(url, {}), _TABLES)), "the agent is of an earlier version"
