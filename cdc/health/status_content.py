"""Checks the content of an agent's status when it is read, because another program may answer at its address."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

__all__ = ["checked_status", "seconds_of"]


def seconds_of(time: object) -> float:
    """A time of the status, in seconds since the epoch. Raises ValueError."""
    try:
        return datetime.fromisoformat(str(time)).timestamp()
    except OverflowError as error:
        raise ValueError(str(error)) from error


def _is_time(text: str) -> str:
    seconds_of(text)
    return text


_Time = Annotated[str, AfterValidator(_is_time)]


class _Topic(BaseModel):
    model_config = ConfigDict(strict=True)

    is_usable: bool
    problem: str | None
    waiting_events: int
    held_bytes: int
    hazards: list[str] = Field(default_factory=list)


class _PublishedUntil(BaseModel):
    model_config = ConfigDict(strict=True)

    stopped: str | None


class _Status(BaseModel):
    """The fields that this program reads. All versions of the agent write those without a default.

    Other fields are ignored.
    """

    model_config = ConfigDict(strict=True)

    pid: int = Field(ge=1, lt=1 << 31)
    time: _Time
    started: _Time
    node_id: str | None
    cassandra_problem: str | None
    http: str | None
    segments: dict[str, int]
    progress: dict[str, float]
    topics: dict[str, _Topic]
    metrics: dict[str, float]
    published_until: dict[str, _PublishedUntil] = Field(default_factory=dict)
    contact_points: list[str] = Field(default_factory=list)
    include_tables: list[str] = Field(default_factory=list)
    exclude_tables: list[str] = Field(default_factory=list)


def checked_status(content: Any) -> Mapping[str, Any]:
    """Return the content if it has all fields that are read. Raises ValueError with the first problem."""
    try:
        _Status.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise ValueError(": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))) from None
    found: Mapping[str, Any] = content
    return found
