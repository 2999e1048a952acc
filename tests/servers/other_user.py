"""Runs a step as another user than root, as most users are."""

from __future__ import annotations

import encodings.idna  # noqa: F401  # for getaddrinfo: this user may not be able to read Python's library
import os
from collections.abc import Callable

from schemas.errors import CdcError

__all__ = ["as_another_user"]

_NOBODY = 65534


def as_another_user(step: Callable[[], object]) -> str:
    """The text of the step's result, or of its CdcError, in a process of another user than root."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        text = "it raised another error"
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setuid(_NOBODY)
            text = str(step())
        except CdcError as error:
            text = str(error)
        finally:
            os.write(writer, text.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    os.waitpid(child, 0)
    return text
