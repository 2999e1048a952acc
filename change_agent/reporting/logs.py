"""The agent's log on standard error: lines of text, or one JSON object on each line.

Values of rows are never logged at INFO.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

__all__ = ["set_up_log"]

_TEXT: Final = "%(asctime)s %(levelname)-7s %(threadName)s: %(message)s"


def set_up_log(level: str, style: Literal["text", "json"], stream: TextIO | None = None) -> None:
    """Log with this level and style from now on. May be called again to change them."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(_JsonFormatter() if style == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # The agent logs one line about an unavailable node, instead of the driver's messages.
    logging.getLogger("cassandra").setLevel(logging.CRITICAL)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("httpcore").setLevel(logging.WARNING)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """One JSON object: time, level, thread, module, message, and the traceback if there is one."""
        time = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "thread": record.threadName,
            "module": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
