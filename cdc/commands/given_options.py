"""Refuses options that have no effect, so that nobody waits for an effect of them."""

from __future__ import annotations

import click
from click.core import ParameterSource

from schemas.errors import ConfigError

__all__ = ["refuse_given", "refuse_without"]


def refuse_without(needed: str, *names: str) -> None:
    """Raise ConfigError if one of these options was given, because it has no effect without `needed`.

    `needed` is an option as a user writes it; `names` are those of parameters of the command.
    """
    refuse_given(f"has no effect without {needed}: give both, or leave it out", *names)


def refuse_given(reason: str, *names: str) -> None:
    """Raise ConfigError if one of these options was given on the command line, also with the value of its default."""
    context = click.get_current_context()
    given = [
        each.opts[0]
        for each in context.command.params
        if each.name in names and context.get_parameter_source(each.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise ConfigError.of(given[0], reason)
