"""`--help` of every command: each has an example, and the command accepts it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

import click
import pytest
from click.testing import CliRunner

from cdc.commands.option_types import FiniteRange
from cdc.main import cli


def _commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Paths of all commands that can be called, including groups that do something by themselves."""
    if not isinstance(command, click.Group):
        yield path
        return
    if command.invoke_without_command:
        yield path
    for name in command.list_commands(click.Context(command)):
        below = command.get_command(click.Context(command), name)
        assert below is not None
        yield from _commands(below, (*path, name))


def _command(path: tuple[str, ...]) -> click.Command:
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return command


_PATHS: Final = list(_commands(cli, ()))


def _examples(path: tuple[str, ...]) -> list[str]:
    shown = CliRunner().invoke(cli, [*path, "--help"], prog_name="cdc", terminal_width=80)
    lines = shown.output.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip().startswith(f"cdc {' '.join(path)}")]


@pytest.mark.parametrize("path", _PATHS, ids=" ".join)
def test_every_command_shows_an_example_that_it_takes(path: tuple[str, ...]) -> None:
    """All options of the example exist, and all required options are given."""
    examples = _examples(path)
    assert examples
    for example in examples:
        command = _command(path)
        words = shlex.split(example)[1 + len(path) :]
        context = click.Context(command)
        given, rest, _ = command.make_parser(context).parse_args(list(words))
        assert not rest, f"{example}: {rest}"
        missing = [each.name for each in command.params if each.required and not given.get(str(each.name))]
        assert not missing, f"{example}: {missing}"
        for each in command.params:
            value = given.get(str(each.name))
            if isinstance(value, str | tuple | list) and not isinstance(each.type, click.Path):
                each.type_cast_value(context, value)


def test_help_fits_a_terminal_of_80_columns() -> None:
    """Examples are not wrapped."""
    for path in _PATHS:
        shown = CliRunner().invoke(cli, [*path, "--help"], prog_name="cdc", terminal_width=80).output
        assert not [line for line in shown.splitlines() if len(line) > 80], path


@pytest.mark.parametrize("group", sorted({path[:-1] for path in _PATHS if len(path) > 1}), ids=" ".join)
def test_help_of_a_group_has_a_whole_sentence_for_each_command(group: tuple[str, ...]) -> None:
    """No sentence is cut at the end of its line."""
    shown = CliRunner().invoke(cli, [*group, "--help"], prog_name="cdc", terminal_width=80).output
    assert not [line for line in shown.partition("Commands:")[2].splitlines() if line.endswith("...")]


def test_every_number_of_a_command_is_a_finite_one() -> None:
    """A plain float and click's own range accept `nan`. The command then ends in a traceback, or never ends."""
    numbers = {
        (*path, option.name): option.type
        for path in _PATHS
        for option in _command(path).params
        if isinstance(option.type, click.types.FloatParamType)
    }
    assert numbers.keys() >= {("spark", "verify", "settle"), ("status", "interval"), ("connector", "watch", "patience")}
    assert [each for each, kind in numbers.items() if not isinstance(kind, FiniteRange)] == []
