"""Errors that every part of the system shares.

    CdcError
    └─ ConfigError      the user's configuration is wrong: stop, exit code 2

Each product adds its own branches below :class:`CdcError` in its ``errors`` module.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

__all__ = ["CdcError", "ConfigError", "ConfigProblem"]


class CdcError(Exception):
    """Root of all errors of this project; its text is one line meant for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigProblem:
    """One wrong option: its name, the reason with the remedy, and the file that has the option or lacks it, if known."""

    option: str
    reason: str
    file: str = ""

    def __str__(self) -> str:
        return f"{f'{self.file}: ' if self.file else ''}{self.option}: {self.reason}"


class ConfigError(CdcError):
    """The configuration cannot be used. The error has every problem that was found, not only the first one."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        if not problems:
            raise AssertionError("a ConfigError names at least one problem")
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    @classmethod
    def of(cls, option: str, reason: str) -> ConfigError:
        """A ConfigError about one option."""
        return cls([ConfigProblem(option=option, reason=reason)])

    def in_file(self, file: str, given_elsewhere: Collection[str] = ()) -> ConfigError:
        """The same error about the options of a file. `given_elsewhere`: options that the file does not have."""
        return ConfigError(
            [each if each.option in given_elsewhere else replace(each, file=file) for each in self.problems]
        )
