"""Shows Spark's progress to a user at a terminal: the job, its tasks, the time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from rich.console import Console

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["spark_progress", "tasks_text"]

_EVERY_S: Final = 0.5


@contextmanager
def spark_progress(session: SparkSession, what: str) -> Iterator[None]:
    """Show the progress in one line of a terminal's stderr during the context. Without a terminal, show nothing."""
    if not sys.stderr.isatty():
        yield
        return
    from py4j.protocol import Py4JError

    console, ended = Console(stderr=True), threading.Event()
    with console.status(what) as status:

        def show() -> None:
            started = time.monotonic()
            # Java has ended, or the session is being stopped: the command reports this.
            with suppress(Py4JError, OSError, AttributeError):
                while not ended.wait(_EVERY_S):
                    status.update(f"{what}: {time.monotonic() - started:.0f} s{_tasks(session.sparkContext)}")

        thread = threading.Thread(target=show, name="spark-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _tasks(context: SparkContext) -> str:
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    return tasks_text([(each.numCompletedTasks, each.numTasks) for each in stages if each is not None])


def tasks_text(stages: list[tuple[int, int]]) -> str:
    """`, 12 of 200 tasks` for the stages that run, each given as tasks done and all tasks.

    `, planning` without a stage: then only the driver works.
    """
    if not stages:
        return ", planning"
    done, every = (sum(each) for each in zip(*stages, strict=True))
    return f", {done:,} of {every:,} tasks"
