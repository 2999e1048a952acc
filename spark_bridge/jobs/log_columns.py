"""The columns of a mirror's change log that belong to the columns of the topic's newest schema.

The log keeps the columns of every schema that the mirror has followed. When a name comes back in another case, Spark
writes the new column into the existing one. A key column may have the name of a value column that was dropped, or one
that another key column had before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from spark_bridge.jobs.mirror_state import Applied
from spark_bridge.rows.avro_types import field_types
from spark_bridge.topics.topic_schemas import TopicSchemas

__all__ = ["KeyField", "LogColumns"]


class KeyField(NamedTuple):
    """A field of an image that has a key column's value, in the changes after epoch `since` and up to `until` (None: no
    limit)."""

    name: str
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogColumns:
    """`name_key`: see `name_key_of`. `gone_until`: `Applied.gone_until`, by the keys of the names.

    `followed`: the version of the schema that the mirror follows; None: not known.
    """

    schemas: TopicSchemas
    name_key: Callable[[str], str]
    gone_until: Mapping[str, int]
    followed: int | None

    @classmethod
    def of(cls, schemas: TopicSchemas, applied: Applied, name_key: Callable[[str], str]) -> Self:
        """The columns for the change log of a mirror with this progress."""
        gone: dict[str, int] = {}
        for name, epoch in applied.gone_until.items():
            gone[name_key(name)] = max(epoch, gone.get(name_key(name), epoch))
        return cls(schemas=schemas, name_key=name_key, gone_until=gone, followed=applied.schema_version)

    def gone(self, image: Iterable[str]) -> dict[str, int]:
        """The fields of an image whose column was dropped, with the last epoch that has values of that column.

        Without those that have a name of the key now: see `of_key`.
        """
        there = {each: self.name_key(each) for each in image}
        now = self._key_names()[-1]
        return {each: self.gone_until[key] for each, key in there.items() if key in self.gone_until and key not in now}

    def newest_names(self, image: Iterable[str]) -> dict[str, str]:
        """The fields of an image, each with its name in the newest schema, which may differ in case."""
        version = self.schemas.newest
        newest = {
            self.name_key(name): name for record in (version.value, version.key) for name, _ in field_types(record)
        }
        return {each: newest.get(self.name_key(each), each) for each in image}

    def of_key(self, image: Iterable[str]) -> dict[str, list[KeyField]]:
        """The fields of an image for each key column, by its newest name. The first field that is not null counts.

        A field with the key column's own name may have had values of another column before. A field with an earlier
        name of the key column may have those of another key column since.
        """
        there = {self.name_key(each): each for each in image}
        every = self._key_names()
        found = {}
        for at, (newest, _) in enumerate(field_types(self.schemas.newest.key)):
            now = every[-1][at]
            names = dict.fromkeys([now, *[each[at] for each in every]])
            found[newest] = [self._field(there[each], each, now, every[-1]) for each in names if each in there]
        return found

    def _field(self, field: str, name: str, now: str, names: Sequence[str]) -> KeyField:
        """The field of a name that a key column has or had. `now`: its present name. `names`: those of all key columns."""
        epoch = self.gone_until.get(name) if name in names else None
        return KeyField(field, since=epoch) if name == now else KeyField(field, until=epoch)

    def _key_names(self) -> list[list[str]]:
        """The names of the key's columns in each schema that the mirror has followed, by their keys."""
        versions = [each for each in self.schemas.versions if self.followed is None or each.version <= self.followed]
        return [
            [self.name_key(name) for name, _ in field_types(each.key)] for each in versions or self.schemas.versions
        ]
