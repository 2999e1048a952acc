"""Options that `cdc agent` and its subcommands share."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["config_option"]

config_option = click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    envvar="CDC_CONFIG",
    help="The agent's YAML file; without it, all options come from the environment (CDC_*).",
)
