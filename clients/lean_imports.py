"""Imports client libraries without optional parts that this project does not use.

httpx imports rich and pygments, if they are installed, for its command line. That takes a tenth of a second at the
start of each process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

__all__ = ["left_out"]


@contextmanager
def left_out(*names: str) -> Iterator[None]:
    """Make these modules impossible to import during the context. Modules that are imported already stay."""
    missing = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(missing))  # type: ignore[arg-type]  # None: the module does not exist
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


with left_out("httpx._main"):
    import_module("httpx")
