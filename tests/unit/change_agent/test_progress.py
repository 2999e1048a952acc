"""Progress: lag, rates, and the time without progress, computed from numbers at points in time."""

from __future__ import annotations

from change_agent.reporting.progress import Progress


def _look(
    progress: Progress, time_s: float, position: int, limit: int, *, written_s: float = 0.0, events: int = 0
) -> None:
    progress.update(
        time_s=time_s,
        positions={1: position},
        limits={1: limit},
        acknowledged_writetime_us=int(written_s * 1e6),
        events=events,
        size=events * 100,
    )


def test_who_has_everything_has_no_lag() -> None:
    """This holds however long nothing happens."""
    progress = Progress()
    for time_s in (1_000.0, 2_000.0):
        _look(progress, time_s, 500, 500, written_s=900)
        assert (progress.now.lag_bytes, progress.now.lag_s, progress.now.stuck_s) == (0, 0.0, 0.0)


def test_a_backlog_is_as_old_as_what_was_acknowledged_last() -> None:
    """An agent that starts an hour late shows the lag, and that it makes progress."""
    progress = Progress()
    _look(progress, 10_000, 100, 900)
    _look(progress, 10_001, 200, 900, written_s=6_401, events=50)
    assert (progress.now.lag_bytes, progress.now.lag_s, progress.now.stuck_s) == (700, 3_600.0, 0.0)
    assert (progress.now.events_per_s, progress.now.bytes_per_s) == (50.0, 5_000.0)


def test_after_a_quiet_hour_the_lag_begins_at_the_first_write() -> None:
    """The last acknowledged event is old, but the new write is not."""
    progress = Progress()
    _look(progress, 10_000, 500, 500, written_s=6_400)
    _look(progress, 10_001, 500, 900, written_s=6_400)
    assert progress.now.lag_s == 1.0


def test_a_position_that_does_not_move_is_told() -> None:
    """Time without progress counts only while a backlog exists."""
    progress = Progress()
    _look(progress, 100, 500, 500)
    _look(progress, 200, 500, 600)
    assert progress.now.stuck_s == 100.0
    _look(progress, 201, 600, 600)
    assert progress.now.stuck_s == 0.0


def test_segments_that_wait_for_the_one_before_them_count() -> None:
    """Segments that are not open yet count in full."""
    progress = Progress()
    progress.update(
        time_s=1.0, positions={5: 10}, limits={5: 30, 6: 100}, acknowledged_writetime_us=0, events=0, size=0
    )
    assert progress.now.lag_bytes == 120


def test_a_write_time_in_the_future_says_nothing_about_the_lag() -> None:
    """A client may set any write time."""
    progress = Progress()
    _look(progress, 100, 0, 10, written_s=5_000)
    _look(progress, 107, 5, 10, written_s=5_000)
    assert progress.now.lag_s == 7.0
