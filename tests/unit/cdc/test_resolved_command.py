"""`cdc resolved --listen`: the metrics after an error."""

from __future__ import annotations

import pytest

from cdc.commands import resolved
from cdc.health.line_config import LineConfig
from schemas.errors import CdcError


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
