"""The process from which Spark forks its Python workers: PySpark's own, without a traceback for a read that ends early.

Spark closes the connection of a worker when it needs no more rows, as after `limit` and `show`. The worker then ends, and
PySpark's daemon prints the traceback of its BrokenPipeError, as if the query had failed.
"""

from __future__ import annotations

import os
from typing import Final

from pyspark import daemon

__all__: list[str] = []

_worker: Final = daemon.worker


def _quiet_worker(*arguments: object) -> int:
    """Serve one connection as PySpark does. A closed connection ends this forked process, as PySpark would end it."""
    try:
        return int(_worker(*arguments))  # type: ignore[no-untyped-call]  # PySpark's daemon has no types
    except BrokenPipeError:
        os._exit(1)


if __name__ == "__main__":
    daemon.worker = _quiet_worker
    daemon.manager()  # type: ignore[no-untyped-call]  # as above
