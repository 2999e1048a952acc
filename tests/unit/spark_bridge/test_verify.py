"""Which differences `verify` reports after its comparisons, and how the command shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from pyspark.sql import Row

from cdc.commands.verify_report import exit_code, report_lines
from spark_bridge.jobs import verify as verify_job
from spark_bridge.jobs.table_comparison import ID, Differences
from spark_bridge.jobs.verify import Difference, Settled, VerifyReport, settle

SAME = 7


def differing(name: str, state: int = SAME) -> Row:
    return Row(**{ID: name, "cassandra": Row(key=name, writetime=1), "topic": None, "columns": None, "state": state})


class Clock:
    """A clock of the test, which sleeping advances."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Comparisons:
    """Given comparisons, each of which takes some time; the last one is repeated."""

    def __init__(self, clock: Clock, *found: Sequence[Row], takes_s: float = 0) -> None:
        self._clock = clock
        self._found = found
        self._takes_s = takes_s
        self.at_s: list[float] = []

    def compare(self, among: Sequence[str] | None = None, *, at_most: int) -> Differences:
        self.at_s.append(self._clock.now_s)
        found = [
            row for row in self._found[min(len(self.at_s), len(self._found)) - 1] if among is None or row[ID] in among
        ]
        self._clock.now_s += self._takes_s
        return Differences(rows=100, differing=len(found), shown=found[:at_most])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The job's clock, replaced."""
    made = Clock()
    monkeypatch.setattr(verify_job, "time", made)
    return made


def names(found: Settled) -> tuple[list[str], list[str]]:
    """Ids of rows that differ, and of rows that keep changing."""
    return [row[ID] for row in found.differing], [row[ID] for row in found.moving]


def test_rows_are_looked_at_again_after_a_first_look_that_took_longer_than_the_time_to_give_up(clock: Clock) -> None:
    """A row that changed between the comparisons is unsettled, one that stayed the same differs, and one that is equal
    now is not reported."""
    first = [differing("moves", 1), differing("stays"), differing("on its way")]
    looks = Comparisons(clock, first, [differing("moves", 2), differing("stays")], takes_s=900)
    found = settle(looks, settle_s=30, give_up_s=0, at_most=10)
    assert names(found) == (["stays"], ["moves"])
    assert len(looks.at_s) == 2


def test_a_difference_that_moves_and_then_stays_is_told(clock: Clock) -> None:
    """Its time counts from the first comparison that saw its present state."""
    looks = Comparisons(clock, [differing("a", 1)], [differing("a", 2)], [differing("a", 3)])
    assert names(settle(looks, settle_s=30, give_up_s=600, at_most=10)) == (["a"], [])
    assert [round(each - looks.at_s[0]) for each in looks.at_s] == [0, 10, 20, 30, 40, 50]


def test_what_never_stays_is_given_up(clock: Clock) -> None:
    """The time limit counts from the end of the first comparison."""
    looks = Comparisons(clock, *([differing("a", state)] for state in range(1_000)), takes_s=5)
    assert names(settle(looks, settle_s=30, give_up_s=60, at_most=10)) == ([], ["a"])
    assert 65 <= looks.at_s[-1] - looks.at_s[0] < 85


def test_no_more_rows_than_the_limit_are_looked_at_again_and_the_others_are_counted(clock: Clock) -> None:
    """The others are reported as left out, and do not count as equal."""
    looks = Comparisons(clock, [differing(str(number)) for number in range(7)])
    found = settle(looks, settle_s=1, give_up_s=0, at_most=3)
    assert (names(found), found.left_out, found.rows) == ((["0", "1", "2"], []), 4, 100)


def test_equal_tables_are_looked_at_once(clock: Clock) -> None:
    """There is nothing to wait for."""
    looks = Comparisons(clock, [])
    assert names(settle(looks, settle_s=30, give_up_s=600, at_most=3)) == ([], [])
    assert len(looks.at_s) == 1


MISSING = Difference(
    kind="missing", key="k1", columns=(), cassandra_writetime_us=1_795_943_173_000_001, topic_writetime_us=None
)


def report(
    *, differences: tuple[Difference, ...] = (), unsettled: tuple[str, ...] = (), left_out: int = 0
) -> VerifyReport:
    return VerifyReport(
        rows=9,
        ranges=2,
        differences=differences,
        unsettled=unsettled,
        left_out=left_out,
        repaired=0,
        unrepairable=(),
        seconds=1.5,
    )


@pytest.mark.parametrize(
    ("told", "code", "line"),
    [
        (report(), 0, "shop.t: 9 rows in 2 token ranges, 0 differ, 0 still changing, 0 left out, 1.5 s"),
        (
            report(differences=(MISSING,)),
            1,
            "missing: k1 (written 2026-11-29 09:06:13.000001 UTC in Cassandra, no write time in the topic)",
        ),
        (
            report(differences=(replace(MISSING, cassandra_writetime_us=-1, topic_writetime_us=(1 << 63) - 1),)),
            1,
            "missing: k1 (written 1969-12-31 23:59:59.999999 UTC in Cassandra, written at 9223372036854775807 us in the topic)",
        ),
        (report(unsettled=("k2",)), 3, "still changing: k2"),
        (report(left_out=4), 3, "left out: 4 more rows that differ, beyond --max-differences; a run after the repair"),
        (report(differences=(MISSING,), unsettled=("k2",)), 1, "still changing: k2"),
    ],
)
def test_only_a_table_without_any_doubt_ends_with_0(told: VerifyReport, code: int, line: str) -> None:
    """The exit code is 1 for differences. It is 3, with a message, if rows kept changing or were left out."""
    assert exit_code(told) == code
    assert any(each.startswith(line) for each in report_lines("shop.t", told))
