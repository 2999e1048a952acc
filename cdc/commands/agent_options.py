"""Options that `cdc agent` and its subcommands share."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

__all__ = ["config_option", "working_dir_option"]


def _path(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """The path of `--config`. A subcommand without its own `--config` gets that of `cdc agent --config FILE`."""
    if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE:
        context.obj = path
    elif isinstance(context.obj, Path):
        return context.obj
    return path


config_option = click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    envvar="CDC_CONFIG",
    callback=_path,
    help="The agent's YAML file; without it, all options come from the environment (CDC_*).",
)
working_dir_option = click.option(
    "--working-dir", type=click.Path(path_type=Path), help="The agent's cdcWorkingDir, instead of --config."
)
