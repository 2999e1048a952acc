"""Estimates the row size of each table from its last answers, and how many bytes may be requested at once. Pure.

A row is requested before its size is known. So a table without known rows counts as one with large rows, and each
answer lowers the estimate at most to its half: the first statements request one row each. A larger row counts at once,
smaller rows count gradually. If all rows of a table grow at once, the estimate is too low for the first answers.
"""

from __future__ import annotations

from typing import Final, final

__all__ = ["BUDGET_BYTES", "RowSize"]

BUDGET_BYTES: Final = 24 * 1024 * 1024
"""The estimated bytes of the rows that statements in flight may return. Reads of as many bytes may wait to be sent."""
# The most bytes of one statement's answer, and of a page.
_GROUP_BYTES: Final = 256 * 1024
_PAGE_BYTES: Final = 4 * 1024 * 1024
_PAGE_ROWS: Final = 500
_UNKNOWN_BYTES: Final = 1024.0 * 1024
_FASTEST: Final = 0.5
_FADE: Final = 0.98


@final
class RowSize:
    """The estimated size of one table's rows; `value` in bytes."""

    __slots__ = ("_is_met", "value")

    def __init__(self) -> None:
        self.value: float = _UNKNOWN_BYTES
        self._is_met: bool = False

    def answered(self, size: int, rows: int) -> None:
        """Note that an answer had `size` bytes in `rows` rows. An answer without rows changes the estimate little."""
        if not rows:
            self.value = max(1.0, self.value * _FADE)
            return
        now = max(1.0, size / rows)
        self._is_met = self._is_met or now > self.value * _FASTEST
        self.value = max(now, self.value * (_FADE if self._is_met else _FASTEST))

    def rows_of_group(self) -> int:
        """How many rows one statement may request by their keys; 0 means the same as 1."""
        return int(_GROUP_BYTES / self.value)

    def rows_of_page(self) -> int:
        """How many rows a page of a deletion's scope may have."""
        return max(1, min(_PAGE_ROWS, int(_PAGE_BYTES / self.value)))
