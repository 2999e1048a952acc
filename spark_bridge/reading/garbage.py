"""Python's garbage collection while a task collects rows."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["few_collections"]

# Ten objects for each row of the largest batch.
_OBJECTS_BEFORE_COLLECTION: Final = 100_000


@contextmanager
def few_collections() -> Iterator[None]:
    """Raise the threshold of Python's garbage collection for the time of the block.

    Python searches for cycles of garbage after 700 new objects. The rows of a batch have no cycles, and the search
    would take a fifth to a third of a read's time.
    """
    first, *others = gc.get_threshold()
    if first:  # 0: the collection is switched off
        gc.set_threshold(max(first, _OBJECTS_BEFORE_COLLECTION), *others)
    try:
        yield
    finally:
        gc.set_threshold(first, *others)
