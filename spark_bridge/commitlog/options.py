"""Options of the data source `cassandra_commitlog`, checked all at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from schemas.errors import ConfigError, ConfigProblem
from spark_bridge.topics.positions import parse_time_ms

__all__ = ["CommitLogOptions"]


class CommitLogOptions(BaseModel):
    """Which archive to read, and what to read from it. In Spark, the options' names are these fields in camel case.

    `starting_time` and `ending_time` select changes by their highest write time. The end is exclusive.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    archive_url: str = Field(min_length=1)
    table: str | None = None
    nodes: str | None = None
    starting_time: str | None = None
    ending_time: str | None = None
    values: Literal["json", "cql"] = "json"
    dropped_columns: Literal["hide", "show"] = "hide"
    damaged_segments: Literal["report", "fail"] = "report"
    commitlog_options: Path | None = None
    filter_pushdown: bool = False

    @classmethod
    def from_mapping(cls, options: Mapping[str, str]) -> CommitLogOptions:
        """Options as given to Spark: names in any case, values as text. Raises ConfigError with all problems."""
        names = {alias.lower(): alias for alias in _ALIASES}
        known = {names[name.lower()]: value for name, value in options.items() if name.lower() in names}
        problems = [
            ConfigProblem(option=name, reason=f"is no option of cassandra_commitlog ({', '.join(sorted(_ALIASES))})")
            for name in options
            if name.lower() not in names
        ]
        try:
            parsed = cls.model_validate(known)
        except ValidationError as error:
            problems += [
                ConfigProblem(option=".".join(map(str, each["loc"])), reason=each["msg"].removeprefix("Value error, "))
                for each in error.errors(include_input=False, include_url=False)
            ]
        if problems:
            raise ConfigError(problems)
        return parsed

    @field_validator("table")
    @classmethod
    def _keyspace_and_table(cls, value: str | None) -> str | None:
        if value is not None and not all(value.partition(".")):
            raise ValueError(f"{value!r} is not KEYSPACE.TABLE")
        return value

    @field_validator("starting_time", "ending_time")
    @classmethod
    def _moment(cls, value: str | None) -> str | None:
        if value is not None and parse_time_ms(value) is None:
            raise ValueError(f"{value!r} is no time in ISO 8601 with a zone, such as 2026-11-23T12:00:00Z")
        return value

    @property
    def node_ids(self) -> frozenset[str] | None:
        """The nodes to read; None: all."""
        return None if self.nodes is None else frozenset(each.strip() for each in self.nodes.split(","))

    @property
    def starting_ms(self) -> int | None:
        """`starting_time` in milliseconds since the epoch."""
        return None if self.starting_time is None else parse_time_ms(self.starting_time)

    @property
    def ending_ms(self) -> int | None:
        """`ending_time` in milliseconds since the epoch."""
        return None if self.ending_time is None else parse_time_ms(self.ending_time)


_ALIASES: Final = frozenset(str(each.alias) for each in CommitLogOptions.model_fields.values())
