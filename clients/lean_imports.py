"""Client libraries without parts that they load where they find them, and which nobody here uses.

httpx takes rich and pygments for its command line: a tenth of a second of each process that starts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

__all__ = ["left_out"]


@contextmanager
def left_out(*names: str) -> Iterator[None]:
    """Modules that cannot be imported meanwhile; those that are there already stay."""
    missing = [name for name in names if name not in sys.modules]
    # The import system takes None for a module that does not exist.
    sys.modules.update(dict.fromkeys(missing))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


with left_out("httpx._main"):
    import_module("httpx")
