"""Types of options that several commands share."""

from __future__ import annotations

import math
from typing import Any, Final

import click

__all__ = ["LONGEST_S", "FiniteRange"]

LONGEST_S: Final = 31_536_000
"""The longest time between two looks, in seconds: a year. Python cannot sleep for any time."""


class FiniteRange(click.FloatRange):
    """A range of finite numbers, for options. Click's own range takes `nan`, and `inf` if it has no upper limit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number. A wrong value is a usage error."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number
