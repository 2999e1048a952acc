"""When runs of kept records are merged into one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from spark_bridge.jobs.kept_records import Run, first_to_merge


@pytest.mark.parametrize(
    ("case", "sizes", "first"),
    [
        ("few runs stay", [100, 1, 1, 1, 1, 1, 1, 1], None),
        ("a large one before many small ones stays", [100, 1, 1, 1, 1, 1, 1, 1, 1], 1),
        ("until what came after it is half of it", [15, 1, 1, 1, 1, 1, 1, 1, 1], 0),
        ("equal ones become one", [1, 1, 1, 1, 1, 1, 1, 1, 1], 0),
        ("in steps", [1000, 100, 10, 1, 1, 1, 1, 1, 1], 2),
        ("two at least", [390_625, 78_125, 15_625, 3_125, 625, 125, 25, 5, 1], 7),
    ],
)
def test_the_last_runs_become_one_as_far_back_as_they_are_as_large(
    case: str, sizes: Sequence[int], first: int | None
) -> None:
    """So a record is rewritten once each time that the amount of later records has doubled."""
    runs = [Run(number, str(number), size) for number, size in enumerate(sizes)]
    assert first_to_merge(runs) == first, case
