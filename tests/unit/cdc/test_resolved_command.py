"""`cdc resolved`: the metrics after an error, and tables that no agent publishes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from cdc.commands import resolved
from cdc.health.line_config import LineConfig
from schemas.errors import CdcError
from schemas.resolved import TableResolved


@pytest.mark.parametrize("problem", [CdcError("Pulsar is away"), ValueError("no number"), ImportError("no module")])
def test_whatever_fails_is_a_metric_and_one_line(
    problem: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same reason is not logged again at each scrape."""

    def fails(config: LineConfig) -> None:
        raise problem

    monkeypatch.setattr(resolved, "ResolvedLine", fails)
    ages = resolved._Ages(LineConfig.from_mapping({}), ())
    for _ in range(3):
        assert b"\ncdc_resolved_up 0.0\n" in resolved._page(ages)
    kind = "" if isinstance(problem, CdcError) else f"{type(problem).__name__}: "
    assert capsys.readouterr().err == f"cdc resolved: {kind}{problem}\n"


@pytest.mark.parametrize(
    ("published", "said"),
    [
        (
            ["shop.orders"],
            "shop.ordres does not exist among the tables that agents publish; did you mean shop.orders?\n",
        ),
        ([], ""),
        (["shop.ordres"], ""),
    ],
)
def test_a_table_that_no_agent_publishes_is_told_with_similar_names(
    published: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was shown as not known, as if its agent were behind. Without any agent, another text says so."""
    found = TableResolved(table="shop.ordres", resolved_ms=None, nodes=(), problems=("why",))
    line = SimpleNamespace(
        read=lambda tables: {"shop.ordres": found},
        published_tables=lambda: published,
        foreign_messages=0,
        close=lambda: None,
    )
    monkeypatch.setattr(resolved, "ResolvedLine", lambda config: line)
    done = CliRunner().invoke(resolved.resolved, ["shop.ordres"], catch_exceptions=False)
    assert (done.stdout, done.stderr) == ("shop.ordres: not known\n  why\n", said)
