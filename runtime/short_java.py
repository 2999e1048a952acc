"""Java for programs that run for seconds, such as Maven."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["SHORT_RUN", "short_java"]

SHORT_RUN: Final = "-XX:TieredStopAtLevel=1"
"""Java's first compiler alone. In a short run the second one takes half of the CPU, and saves nothing."""


def short_java(variable: str) -> dict[str, str]:
    """The environment of a program that takes options of Java from this variable. Options of the user come last."""
    return {**os.environ, variable: f"{SHORT_RUN} {os.environ.get(variable, '')}".strip()}
