"""The output of `cdc spark verify`, and its exit code."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spark_bridge.jobs.verify import VerifyReport

__all__ = ["exit_code", "report_lines"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DIFFER: Final = 1
_NOT_SURE: Final = 3
"""The exit code 2 is for wrong usage, as for all commands."""


def report_lines(table: str, report: VerifyReport, compared: str = "topic") -> Iterator[str]:
    """A line for each row that differs, was still changing or cannot be sent again, and a summary as the last line.

    `compared`: what was compared with Cassandra, `topic` or `mirror`.
    """
    for each in report.differences:
        columns = f" in {', '.join(each.columns)}" if each.columns else ""
        places = (("Cassandra", each.cassandra_writetime_us), (f"the {compared}", each.topic_writetime_us))
        times = ", ".join(
            f"no write time in {place}" if us is None else f"written {_moment(us)} in {place}" for place, us in places
        )
        yield f"{each.kind}{columns}: {each.key} ({times})"
    for key in report.unsettled:
        yield f"still changing: {key}"
    for key in report.unrepairable:
        yield f"not sent again, because the topic does not have its CQL key: {key}"
    if report.left_out:
        yield (
            f"left out: {report.left_out:,} more rows that differ, beyond --max-differences; "
            "a run after the repair of these takes them up"
        )
    sent = f", {report.repaired:,} sent again" if report.repaired else ""
    yield (
        f"{table}: {report.rows:,} rows in {report.ranges} token ranges, {len(report.differences):,} differ{sent}, "
        f"{len(report.unsettled):,} still changing, {report.left_out:,} left out, {report.seconds:.1f} s"
    )


def _moment(time_us: int) -> str:
    """Microseconds since the epoch as a time in UTC, to the microsecond; a number if it is a time of no calendar."""
    try:
        moment = _EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        return f"at {time_us} us"  # a client may set any write time
    return f"{moment:%Y-%m-%d %H:%M:%S.%f} UTC"


def exit_code(report: VerifyReport) -> int:
    """0: all rows are equal. 1: rows differ. 3: no row is known to differ, but some still changed or were left out."""
    if report.differences:
        return _DIFFER
    return _NOT_SURE if report.unsettled or report.left_out else 0
