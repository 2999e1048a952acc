"""The schema history that is stored with archived commit log segments, and is needed to read them.

    <archive>/<node id>/CommitLog-7-1795219249195.log.zst    a finished segment, perhaps without .zst
    <archive>/<node id>/schema-history.json                  an object:
      format         1
      node_id        the node's host id
      began_ms       since the epoch: from this time on every finished segment of the node's cdc_raw went to the archive
      first_segment  id of the first of them; null if an earlier version wrote the history
      definitions    list of objects: table_id, since_us, types_since_us, confirmed_ms, present,
                     rows (of system_schema, as schemas.system_schema takes them)
      places         list of [segment id, position, table_id, since_us]: the table has the definition from this position
                     of the log on

The agent writes it before the segments that need it, and never removes definitions that it had before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from schemas.errors import CdcError
from schemas.system_schema import SystemSchema

__all__ = [
    "ARCHIVED_SCHEMA_NAME",
    "ArchivedDefinition",
    "ArchivedPlace",
    "ArchivedSchema",
    "ArchivedSchemaError",
    "NewerSchemaError",
    "merged",
]

ARCHIVED_SCHEMA_NAME: Final = "schema-history.json"
_FORMAT: Final = 1


class ArchivedSchemaError(CdcError):
    """A text that is not a schema history."""


class NewerSchemaError(ArchivedSchemaError):
    """The schema history of a newer version."""

    def __init__(self, found: object) -> None:
        super().__init__(
            f"it is of format {found}, and this version knows {_FORMAT}: a newer version wrote it; use that one"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedDefinition:
    """One definition of a table. `since_us`: write time of the statement that made it (microseconds); 0 if not known.

    `confirmed_ms`: the last time when the node confirmed it as the present definition. `present`: it still is.
    """

    table_id: UUID
    since_us: int
    types_since_us: int
    confirmed_ms: int
    present: bool
    rows: SystemSchema

    @property
    def key(self) -> tuple[UUID, int, int]:
        """The values that distinguish definitions."""
        return self.table_id, self.since_us, self.types_since_us


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedPlace:
    """The position in the log where a definition begins: later entries are written with it."""

    segment_id: int
    position: int
    table_id: UUID
    since_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedSchema:
    """The schema history of one node."""

    node_id: UUID
    began_ms: int
    definitions: tuple[ArchivedDefinition, ...]
    places: tuple[ArchivedPlace, ...]
    first_segment: int | None = None

    def text(self) -> str:
        """The text in the archive. Equal histories have equal texts."""
        definitions = [
            {
                "table_id": str(each.table_id),
                "since_us": each.since_us,
                "types_since_us": each.types_since_us,
                "confirmed_ms": each.confirmed_ms,
                "present": each.present,
                "rows": each.rows,
            }
            for each in sorted(self.definitions, key=lambda each: each.key)
        ]
        places = sorted([each.segment_id, each.position, str(each.table_id), each.since_us] for each in self.places)
        return json.dumps(
            {
                "format": _FORMAT,
                "node_id": str(self.node_id),
                "began_ms": self.began_ms,
                "first_segment": self.first_segment,
                "definitions": definitions,
                "places": places,
            },
            separators=(",", ":"),
        )

    @classmethod
    def of_text(cls, text: str | bytes) -> ArchivedSchema:
        """The history of a text. Raises ArchivedSchemaError; NewerSchemaError for another format."""
        try:
            found = json.loads(text)
            if found["format"] != _FORMAT:
                raise NewerSchemaError(found["format"])
            return cls(
                node_id=UUID(found["node_id"]),
                began_ms=int(found["began_ms"]),
                definitions=tuple(_definition(each) for each in found["definitions"]),
                places=tuple(_place(*each) for each in found["places"]),
                first_segment=None if found.get("first_segment") is None else _integer(found["first_segment"]),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ArchivedSchemaError(f"it is no whole schema history ({type(error).__name__}: {error})") from error


def merged(stored: ArchivedSchema | None, known: ArchivedSchema, *, has_hole: bool = False) -> ArchivedSchema:
    """The known definitions, and those of the archive that are no longer known because a working directory was lost.

    `has_hole`: segments between the two histories are missing. The archive then begins again with the known history.
    """
    if stored is None:
        return known
    firsts = [each.first_segment for each in (stored, known) if each.first_segment is not None]
    definitions = {each.key: replace(each, present=False) for each in stored.definitions}
    definitions |= {each.key: each for each in known.definitions}
    return ArchivedSchema(
        node_id=known.node_id,
        began_ms=known.began_ms if has_hole else min(stored.began_ms, known.began_ms),
        first_segment=known.first_segment if has_hole else min(firsts, default=None),
        definitions=tuple(definitions.values()),
        places=_without_copies([*stored.places, *known.places]),
    )


def _without_copies(places: Iterable[ArchivedPlace]) -> tuple[ArchivedPlace, ...]:
    return tuple({(each.segment_id, each.position, each.table_id): each for each in places}.values())


def _definition(found: Mapping[str, object]) -> ArchivedDefinition:
    rows = found["rows"]
    if not isinstance(rows, dict):
        raise TypeError("rows of a definition must be an object")
    return ArchivedDefinition(
        table_id=UUID(str(found["table_id"])),
        since_us=_integer(found["since_us"]),
        types_since_us=_integer(found["types_since_us"]),
        confirmed_ms=_integer(found["confirmed_ms"]),
        present=bool(found["present"]),
        rows=rows,
    )


def _place(segment_id: object, position: object, table_id: object, since_us: object) -> ArchivedPlace:
    return ArchivedPlace(
        segment_id=_integer(segment_id),
        position=_integer(position),
        table_id=UUID(str(table_id)),
        since_us=_integer(since_us),
    )


def _integer(found: object) -> int:
    if not isinstance(found, int):
        raise TypeError(f"{found!r:.50} is no integer")
    return found
