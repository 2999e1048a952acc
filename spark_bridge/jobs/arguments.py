"""Checks of what users give to jobs: an unusable number or folder is refused before the job has done anything."""

from __future__ import annotations

from typing import Final

from schemas.errors import ConfigError

__all__ = ["MOST_DAYS", "MOST_SECONDS", "refuse_home", "refuse_interval", "refuse_rate", "refuse_retention"]

MOST_DAYS: Final = 36_500
"""The limit of a retention: with many more days, times are before the earliest one of Spark."""
MOST_SECONDS: Final = 31_536_000
"""The limit of an interval, a year: Python's timers refuse very large numbers."""


def refuse_rate(name: str, rate: float | None) -> None:
    """Raises ConfigError unless the rate is above 0 and finite; None: there is no limit."""
    if rate is not None and not 0 < rate < float("inf"):
        raise ConfigError.of(name, f"{rate} is no rate: give a number above 0, or none for no limit")


def refuse_interval(name: str, seconds: float | None) -> None:
    """Raises ConfigError unless the interval is from 0 to a year; None: the job ends by itself."""
    if seconds is not None and not 0 <= seconds <= MOST_SECONDS:
        raise ConfigError.of(name, f"{seconds} is no interval: give seconds from 0 to {MOST_SECONDS:,}")


def refuse_retention(name: str, days: float) -> None:
    """Raises ConfigError for more than a hundred years, also below 0, and for NaN. Below 0 nothing is retained."""
    if not -MOST_DAYS <= days <= MOST_DAYS:
        raise ConfigError.of(name, f"{days} is no retention: give days up to {MOST_DAYS:,}")


def refuse_home(folder: str, option: str = "target") -> None:
    """Raise ConfigError for a folder `~/...`: only a shell expands it, and Spark would make a folder of the name `~`."""
    if folder == "~" or folder.startswith("~/"):
        reason = f"{folder} begins with ~, which only a shell replaces, outside of quotes; give the folder's full path"
        raise ConfigError.of(option, reason)
