"""The hidden columns of a source, from its options: for commands that compare its records with the table."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import click

from schemas.errors import ConfigError
from schemas.hidden_columns import HiddenColumns

__all__ = ["SOURCE_CONFIG_OPTION", "hidden_columns"]

SOURCE_CONFIG_OPTION: Final = click.option(
    "--source-config",
    "source_config",
    type=click.Path(path_type=Path),
    help="Options of the source, as JSON: needed where its columns.* hide columns. The key of hashes comes from the file that it "
    "names or from CDC_COLUMNS_HASH_KEY.",
)


def hidden_columns(path: Path | None) -> HiddenColumns | None:
    """The hidden columns; None without a file, or if no column is hidden.

    The file has the options themselves, or, as `sources get` prints them, in `configs`. Raises ConfigError.
    """
    if path is None:
        return None
    from source_connector.configuration.config import hidden_columns_of

    try:
        options = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error.strerror) if isinstance(error, OSError) else f"it is no JSON ({type(error).__name__})"
        raise ConfigError.of("--source-config", f"{path} cannot be read: {reason}") from None
    if isinstance(options, dict) and isinstance(options.get("configs"), dict):
        options = options["configs"]
    if not isinstance(options, dict):
        raise ConfigError.of("--source-config", f"{path} is not a JSON object")
    return hidden_columns_of(options, os.environ)
