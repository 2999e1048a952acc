"""The environment of short programs in Java."""

from __future__ import annotations

import os

import pytest

from runtime.short_java import SHORT_RUN, short_java


@pytest.mark.parametrize(
    ("users", "expected"),
    [(None, SHORT_RUN), ("-Xmx1g -XX:TieredStopAtLevel=4", f"{SHORT_RUN} -Xmx1g -XX:TieredStopAtLevel=4")],
)
def test_options_of_the_user_come_last(users: str | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java takes the last one of two that contradict each other. The other variables stay."""
    monkeypatch.delenv("MAVEN_OPTS", raising=False)
    if users is not None:
        monkeypatch.setenv("MAVEN_OPTS", users)
    assert short_java("MAVEN_OPTS") == {**os.environ, "MAVEN_OPTS": expected}
