"""Checks of the folders that Spark's commands write, before Spark starts: local paths only."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from schemas.errors import ConfigError
from spark_bridge.jobs.arguments import refuse_home

__all__ = ["check_output", "check_writable", "local_folder"]

_OF_FILES: Final = ("parquet", "json", "avro", "csv", "orc", "text", "xml")
_FORMATS: Final = (*_OF_FILES, "delta", "noop")


def check_writable(option: str, path: str) -> None:
    """Raise ConfigError if a local folder cannot be made or written. Other file systems are left to Spark.

    The check makes a folder and removes it again, because rights alone do not tell: root may write everywhere, but not
    below /proc or on a file system that is mounted to be read. A folder `~/...` is refused, too.
    """
    if not path:
        raise ConfigError.of(option, "is empty; give a folder")
    refuse_home(path, option)
    folder = local_folder(path)
    if folder is None:
        return
    existing = folder
    try:
        existing = next(each for each in (folder, *folder.parents) if each.exists())
        Path(tempfile.mkdtemp(prefix=".cdc-", dir=existing)).rmdir()
    except OSError as error:
        reason = (
            f"{path} cannot be written ({existing}: {error.strerror}); give a folder in which this user can make files"
        )
        raise ConfigError.of(option, reason) from error


def check_output(path: str | None, name: str, *, has_own_jars: bool) -> None:
    """Check --output and --output-format of `cdc spark latest`; `path` None: nothing is written. Raises ConfigError.

    `has_own_jars`: the user has given jars, which may have further formats.
    """
    from spark_bridge.spark_home import configured_elsewhere

    is_open = has_own_jars or "." in name or _is_submitted() or configured_elsewhere() is not None
    if name.lower() == "iceberg" and not is_open:
        reason = (
            "'iceberg' is a format of tables in a catalog, and --output is a folder; use delta or parquet, or keep an Iceberg "
            "table by `cdc spark mirror --format iceberg`"
        )
        raise ConfigError.of("--output-format", reason)
    if name.lower() not in _FORMATS and not is_open:
        reason = f"{name!r} is no format that Spark can write here; choose one of {', '.join(_FORMATS)}, or give the --jars of another one"
        raise ConfigError.of("--output-format", reason)
    if path is None:
        return
    check_writable("--output", path)
    folder = local_folder(path)
    if folder is not None and folder.exists() and name.lower() in _OF_FILES:
        raise ConfigError.of("--output", f"{path} exists already; give a new folder, or remove this one first")


def local_folder(path: str) -> Path | None:
    """The absolute path of a local folder; None for another file system, or where Spark may take it for another one."""
    from spark_bridge.spark_home import configured_elsewhere

    if _is_submitted() or configured_elsewhere() is not None:  # a path without a scheme may be one of HDFS
        return None
    scheme, colon, rest = path.partition(":")
    if not colon or "/" in scheme:
        return Path(path).absolute()
    is_local = scheme == "file" and rest.startswith("/") and (not rest.startswith("//") or rest.startswith("///"))
    return Path(f"/{rest.lstrip('/')}") if is_local else None


def _is_submitted() -> bool:
    return "SPARK_ENV_LOADED" in os.environ
