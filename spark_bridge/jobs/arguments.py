"""Numbers that users give to jobs: one that a job cannot work with is refused before the job has done anything."""

from __future__ import annotations

from typing import Final

from schemas.errors import ConfigError

__all__ = ["MOST_DAYS", "MOST_SECONDS", "refuse_interval", "refuse_rate", "refuse_retention"]

MOST_DAYS: Final = 36_500
"""Of a retention: with many more, times are before those that Spark knows."""
MOST_SECONDS: Final = 31_536_000
"""Of an interval: a year. Python's timers do not take any number."""


def refuse_rate(name: str, rate: float | None) -> None:
    """Raises ConfigError unless it is above 0 and finite; None: there is no limit."""
    if rate is not None and not 0 < rate < float("inf"):
        raise ConfigError.of(name, f"{rate} is no rate: give a number above 0, or none for no limit")


def refuse_interval(name: str, seconds: float | None) -> None:
    """Raises ConfigError unless it is from 0 to a year; None: the job ends."""
    if seconds is not None and not 0 <= seconds <= MOST_SECONDS:
        raise ConfigError.of(name, f"{seconds} is no interval: give seconds from 0 to {MOST_SECONDS:,}")


def refuse_retention(name: str, days: float) -> None:
    """Raises ConfigError for more than a hundred years, and for what is not a number. Below 0 nothing is retained."""
    if not -MOST_DAYS <= days <= MOST_DAYS:
        raise ConfigError.of(name, f"{days} is no retention: give days up to {MOST_DAYS:,}")
