"""Options that name a file or hold its content: `base64:...` becomes a temporary file that only this user can read."""

from __future__ import annotations

import base64
import binascii
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["as_file", "is_content", "is_readable_content"]

_PREFIX: Final = "base64:"


def is_content(value: str) -> bool:
    """True for content in the option itself, False for a path."""
    return value.startswith(_PREFIX)


def is_readable_content(value: str) -> bool:
    """False if the text after `base64:` is not valid base64."""
    try:
        base64.b64decode(value.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        return False
    return True


@contextlib.contextmanager
def as_file(value: str, suffix: str = "") -> Iterator[str]:
    """The path of the file. A file that is created for content is deleted afterwards."""
    if not is_content(value):
        yield value
        return
    # mkstemp gives only the owner the right to read.
    with tempfile.NamedTemporaryFile(suffix=suffix) as file:
        file.write(base64.b64decode(value.removeprefix(_PREFIX)))
        file.flush()
        yield str(Path(file.name))
