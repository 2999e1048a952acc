"""The columns of a mirror's change log that belong to the columns of the topic's newest schema.

The log keeps the columns of every schema that the mirror has followed. When a name comes back in another case, Spark
writes the new column into the existing one. A key column may have the name of a value column that was dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from spark_bridge.jobs.mirror_state import Applied
from spark_bridge.rows.avro_types import field_types
from spark_bridge.topics.topic_schemas import TopicSchemas

__all__ = ["LogColumns"]


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
        """The fields of an image whose column was dropped, with the last epoch that has values of that column."""
        return {each: self.gone_until[self.name_key(each)] for each in image if self.name_key(each) in self.gone_until}

    def newest_names(self, image: Iterable[str]) -> dict[str, str]:
        """The fields of an image, each with its name in the newest schema, which may differ in case."""
        version = self.schemas.newest
        newest = {
            self.name_key(name): name for record in (version.value, version.key) for name, _ in field_types(record)
        }
        return {each: newest.get(self.name_key(each), each) for each in image}

    def of_key(self, image: Iterable[str]) -> dict[str, list[tuple[str, int | None]]]:
        """The fields of an image for each key column, by its newest name. The first field that is not null counts.

        If a field has the name of a dropped column, it comes with the last epoch for which it does not count; else
        None.
        """
        there = {self.name_key(each): each for each in image}
        versions = [each for each in self.schemas.versions if self.followed is None or each.version <= self.followed]
        every = [
            [self.name_key(name) for name, _ in field_types(each.key)] for each in versions or self.schemas.versions
        ]
        found = {}
        for at, (newest, _) in enumerate(field_types(self.schemas.newest.key)):
            now = every[-1][at]
            names = dict.fromkeys([now, *[each[at] for each in every]])
            found[newest] = [
                (there[each], self.gone_until.get(each) if each == now else None) for each in names if each in there
            ]
        return found
