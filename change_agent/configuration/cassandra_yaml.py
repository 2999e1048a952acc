"""Reads a node's `cassandra.yaml` (or JSON): all settings, the folder `cdc_raw`, and that CDC is on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from schemas.errors import CdcError

__all__ = ["YAML_ERRORS", "CassandraYamlError", "cdc_raw_directory_of", "settings_of", "yaml_problem"]

# YAML's own error, and errors that its constructors let through: for an impossible date, a number without digits, a tag
# that does not fit its value, or brackets that are nested too deeply.
YAML_ERRORS: Final = (
    yaml.YAMLError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
)


class CassandraYamlError(CdcError):
    """The file cannot be used, or says that CDC is off."""


def cdc_raw_directory_of(path: Path) -> Path | None:
    """`cdc_raw_directory`; None if the file does not set it, so that the node uses its default.

    Raises CassandraYamlError if the file cannot be read, is not YAML, or does not have `cdc_enabled: true`.
    """
    settings = settings_of(path)
    # Cassandra's default is false (Config.cdc_enabled).
    if settings.get("cdc_enabled") is not True:
        raise CassandraYamlError(f"{path} has cdc_enabled: false; set it to true and restart the node")
    directory = settings.get("cdc_raw_directory")
    return Path(directory) if isinstance(directory, str) else None


def settings_of(path: Path) -> Mapping[str, object]:
    """All settings by name. Raises CassandraYamlError if the file cannot be read or is not YAML."""
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CassandraYamlError(f"{path} cannot be read ({error.strerror}); set it to the node's file") from error
    except YAML_ERRORS as error:
        raise CassandraYamlError(f"{path} is not YAML ({yaml_problem(error)})") from None
    if not isinstance(settings, dict):
        raise CassandraYamlError(f"{path} holds no settings; set it to the node's cassandra.yaml")
    return settings


def yaml_problem(error: Exception) -> str:
    """The place or kind of a YAML error.

    The error's own text is not used, nor the error as a cause: both may quote a password.
    """
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"see line {error.problem_mark.line + 1}"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    if isinstance(error, yaml.YAMLError):
        return "it has characters that YAML does not allow"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return "a value in it is not of the type that it is written as, such as a date with a month 13"
