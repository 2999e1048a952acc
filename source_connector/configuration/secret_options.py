"""Secrets that are not among the options: in separate files, or in the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from schemas.errors import ConfigProblem

__all__ = ["FILE_OPTIONS", "SECRET_OPTIONS", "take_secrets", "variable_of"]

SECRET_OPTIONS: Final = (
    "auth.password",
    "pulsarAuthParams",
    "ssl.keystore.password",
    "ssl.truststore.password",
    "columns.hashKey",
)
# Replaces a secret whose file cannot be read, which is reported already. Long enough for all checks of secrets.
_UNREADABLE: Final = 40 * "-"
FILE_OPTIONS: Final = tuple(f"{option}File" for option in SECRET_OPTIONS)


def variable_of(option: str) -> str:
    """The environment variable of an option, by the agent's rule: `auth.password` is `CDC_AUTH_PASSWORD`."""
    return "CDC_" + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", option).replace(".", "_").upper()


def take_secrets(given: dict[str, object], environment: Mapping[str, str]) -> list[ConfigProblem]:
    """Add the secrets of named files and of the environment to the options. Return the problems.

    An option takes precedence over the environment, which the whole functions worker shares. It is an error if both an
    option and its file are given.
    """
    problems = []
    for option, file_option in zip(SECRET_OPTIONS, FILE_OPTIONS, strict=True):
        path = given.pop(file_option, None)
        if path and given.get(option):
            reason = f"has no meaning beside {option}; set one of the two"
            problems.append(ConfigProblem(option=file_option, reason=reason))
        elif path:
            try:
                given[option] = Path(str(path)).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                reason = str(error.strerror) if isinstance(error, OSError) else "it is not UTF-8 text"
                problems.append(ConfigProblem(option=file_option, reason=_unreadable(str(path), reason)))
                given[option] = _UNREADABLE
        elif not given.get(option) and environment.get(variable_of(option)):
            given[option] = environment[variable_of(option)]
    return problems


def _unreadable(path: str, reason: str) -> str:
    """The problem of a file. The value is left out if it may be the secret itself or the file's content."""
    if path.startswith("/"):
        return f"{path} cannot be read ({reason})"
    return f"is no file that can be read ({reason}); give the file's full path, which begins with /"
