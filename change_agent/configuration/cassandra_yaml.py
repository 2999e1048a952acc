"""The settings of a node's `cassandra.yaml` (or JSON) for the agent: the folder `cdc_raw`, and that CDC is on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from schemas.errors import CdcError

__all__ = ["YAML_ERRORS", "CassandraYamlError", "cdc_raw_directory_of", "settings_of", "yaml_problem"]

# YAML's own error, and what its constructors let through: of a date that is none, a number without digits, a tag that
# does not fit, or brackets in brackets without end.
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
    """`cdc_raw_directory`, or None where the file leaves it to Cassandra's default.

    Raises CassandraYamlError when the file cannot be read, is not YAML, or has `cdc_enabled: false`.
    """
    settings = settings_of(path)
    # Cassandra's own default is false, as Config.cdc_enabled.
    if settings.get("cdc_enabled") is not True:
        raise CassandraYamlError(f"{path} has cdc_enabled: false; set it to true and restart the node")
    directory = settings.get("cdc_raw_directory")
    return Path(directory) if isinstance(directory, str) else None


def settings_of(path: Path) -> Mapping[str, object]:
    """All settings by name. Raises CassandraYamlError when the file cannot be read or is not YAML."""
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
    """Where a text is no YAML. The error's own text, and the error as a cause, would quote what may be a password."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"see line {error.problem_mark.line + 1}"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    if isinstance(error, yaml.YAMLError):
        return "it has characters that YAML does not allow"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return "a value in it is not of the type that it is written as, such as a date with a month 13"
