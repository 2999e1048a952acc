"""Shows the steps of a long start: a table with spinners in a terminal, one line for each step elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress as RichProgress
from rich.progress import SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from cdc.sandbox.sandbox import Progress, Step

__all__ = ["progress_display"]


@contextmanager
def progress_display(*, quiet: bool) -> Iterator[Progress]:
    """Yield the function to call for each step. Everything is printed on stderr; nothing is printed if `quiet`."""
    console = Console(stderr=True)
    if quiet:
        yield lambda name, step: None
    elif console.is_terminal:
        columns = (SpinnerColumn(finished_text="*"), TextColumn("{task.description}"), TimeElapsedColumn())
        with RichProgress(*columns, console=console) as display:
            tasks: dict[str, TaskID] = {}

            def show(name: str, step: Step) -> None:
                if name not in tasks:
                    tasks[name] = display.add_task("", total=1, start=False)
                if step != "waiting":
                    display.start_task(tasks[name])
                display.update(tasks[name], description=f"{name} {step}", completed=int(step == "ready"))

            yield show
    else:
        yield _lines()


def _lines() -> Progress:
    started: dict[str, float] = {}
    lock = threading.Lock()

    def say(name: str, step: Step) -> None:
        with lock:
            if step == "ready":
                since = started.get(name)
                # A step that is reported only once has no start.
                text = name if since is None else f"{name}: ready after {time.monotonic() - since:.1f} s"
                print(text, file=sys.stderr)
            else:
                started.setdefault(name, time.monotonic())

    return say
