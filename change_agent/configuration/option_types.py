"""Types of the agent's options: which values are allowed, and the message for other values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field

__all__ = [
    "COMMIT_LOG_SETTING",
    "AdminUrl",
    "Folder",
    "Names",
    "OptionalFolder",
    "PemFile",
    "Port",
    "RawDirectory",
    "ServiceUrl",
    "TablePatterns",
    "TopicPrefix",
    "commit_log_problem",
    "is_named_commit_log",
    "is_same_folder",
]

COMMIT_LOG_SETTING: Final = "commitlog_directory"
"""Cassandra's setting for the folder of the commit log."""


def _names(value: object) -> object:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _port(value: object) -> object:
    # YAML reads `off` as false. An environment variable is always text.
    return None if value is False or value == "off" else value


def _is_there(look: Callable[[], bool]) -> bool:
    """The result of `Path.is_dir` or `is_file`; also False for an impossible path, such as a name of 300 bytes."""
    try:
        return look()
    except (OSError, ValueError):  # ValueError: of a NUL in the path
        return False


def _not_empty(value: object) -> object:
    # An empty path would mean the working directory of the process.
    if value == "":
        raise ValueError("is empty; give a path")
    return value


def _left_out_or_not_empty(value: object) -> object:
    if value == "":
        raise ValueError("is empty; give a path, or leave the option out")
    return value


def _raw_directory(path: Path) -> Path:
    if not _is_there(path.is_dir):
        raise ValueError(f"{path} is not a directory; set it to the node's cdc_raw_directory (see cassandra.yaml)")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise ValueError(
            f"{path} cannot be read and written by this user, and the agent deletes finished segments there: give the"
            " folder to Cassandra's group with mode 0775, and run the agent in this group (docs/install.md)"
        )
    return path


def commit_log_problem(path: Path) -> str:
    """The problem of a `cdcRawDirectory` that is the node's own commit log."""
    return (
        f"{path} is the node's commit log, whose segments the agent would delete; set it to the node's cdc_raw_directory"
        " (see cassandra.yaml)"
    )


def is_named_commit_log(path: Path) -> bool:
    """Return True if a folder has the default name of Cassandra's commit log, and no index. Only cdc_raw has indexes."""
    return _is_there(path.is_dir) and path.resolve().name == "commitlog" and not any(path.glob("*_cdc.idx"))


def is_same_folder(one: Path, other: Path) -> bool:
    """Return True if both are one existing folder. False also if this user may not see it."""
    return _is_there(lambda: one.samefile(other))


def _pem_file(path: Path) -> Path:
    if not _is_there(path.is_file):
        raise ValueError(f"{path} is not a file; set it to a PEM file")
    if not os.access(path, os.R_OK):
        raise ValueError(f"{path} cannot be read by this user")
    return path


def _service_url(value: str) -> str:
    if not re.match(r"pulsar(\+ssl)?://[^/\s]+", value):
        raise ValueError(f"{value!r} is not a Pulsar service URL, such as pulsar://localhost:6650")
    return value


def _admin_url(value: str) -> str:
    if not re.match(r"https?://[^/\s]+", value):
        raise ValueError(f"{value!r} is not an HTTP URL, such as http://localhost:8080")
    return value.rstrip("/")


def _topic_prefix(value: str) -> str:
    if "://" in value and not re.match(r"persistent://[^/]+/[^/]+/[^/]*$", value):
        raise ValueError(f"{value!r} must be a name's beginning or persistent://tenant/namespace/beginning-of-a-name")
    return value


def _table_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        if not re.match(r"[^.\s]+\.[^.\s]+$", pattern):
            raise ValueError(f"{pattern!r} is not a pattern of <keyspace>.<table>, such as shop.* or shop.orders")
    return patterns


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
"""A list, or one text with commas."""

TablePatterns = Annotated[tuple[str, ...], BeforeValidator(_names), AfterValidator(_table_patterns)]
"""Patterns of `<keyspace>.<table>` with the wildcards of file names: `*`, `?`, `[abc]`."""

Port = Annotated[Annotated[int, Field(ge=0, le=65535)] | None, BeforeValidator(_port)]
"""A port, or `off`."""

Folder = Annotated[Path, BeforeValidator(_not_empty)]
"""A folder, which need not exist yet."""

OptionalFolder = Annotated[Path | None, BeforeValidator(_left_out_or_not_empty)]
"""A folder of an option that may be left out."""

RawDirectory = Annotated[Path, BeforeValidator(_not_empty), AfterValidator(_raw_directory)]
"""An existing folder that this user may read and write."""

PemFile = Annotated[Path, AfterValidator(_pem_file)]
"""An existing file that this user may read."""

ServiceUrl = Annotated[str, AfterValidator(_service_url)]
AdminUrl = Annotated[str, AfterValidator(_admin_url)]
TopicPrefix = Annotated[str, AfterValidator(_topic_prefix)]
