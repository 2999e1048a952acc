"""What the agent takes from a node's `cassandra.yaml` (which may be JSON too): where `cdc_raw` is, and that CDC is on."""

from __future__ import annotations

from pathlib import Path

import yaml

from schemas.errors import CdcError

__all__ = ["CassandraYamlError", "cdc_raw_directory_of"]


class CassandraYamlError(CdcError):
    """The file cannot be used, or says that CDC is off."""


def cdc_raw_directory_of(path: Path) -> Path | None:
    """`cdc_raw_directory`, or None where the file leaves it to Cassandra's default.

    Raises CassandraYamlError when the file cannot be read, is not YAML, or has `cdc_enabled: false`.
    """
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CassandraYamlError(f"{path} cannot be read ({error.strerror}); set it to the node's file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CassandraYamlError(f"{path} is not YAML ({' '.join(str(error).split())})") from error
    if not isinstance(settings, dict):
        raise CassandraYamlError(f"{path} holds no settings; set it to the node's cassandra.yaml")
    # Cassandra's own default is false, as Config.cdc_enabled.
    if settings.get("cdc_enabled") is not True:
        raise CassandraYamlError(f"{path} has cdc_enabled: false; set it to true and restart the node")
    directory = settings.get("cdc_raw_directory")
    return Path(directory) if isinstance(directory, str) else None
