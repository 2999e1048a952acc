"""Which columns a mirror's change log has for those of the topic's newest schema.

The log keeps the columns of every schema that the mirror has followed. Spark writes a column whose name comes back in other
letters into the one that is there. A key column may have got the name of a value column that was dropped.
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
    """`told`: what of a name counts (`told_apart`). `gone_until`: as `Applied` has it, by what counts of the names.

    `followed`: the version of the schema that the mirror has come to; None: not known.
    """

    schemas: TopicSchemas
    told: Callable[[str], str]
    gone_until: Mapping[str, int]
    followed: int | None

    @classmethod
    def of(cls, schemas: TopicSchemas, applied: Applied, told: Callable[[str], str]) -> Self:
        """Of the change log of a mirror that has come so far."""
        gone: dict[str, int] = {}
        for name, epoch in applied.gone_until.items():
            gone[told(name)] = max(epoch, gone.get(told(name), epoch))
        return cls(schemas=schemas, told=told, gone_until=gone, followed=applied.schema_version)

    def gone(self, image: Iterable[str]) -> dict[str, int]:
        """Those of an image's fields whose column was dropped, with the last epoch that has its values."""
        return {each: self.gone_until[self.told(each)] for each in image if self.told(each) in self.gone_until}

    def newest_names(self, image: Iterable[str]) -> dict[str, str]:
        """An image's fields, with the newest schema's letters."""
        version = self.schemas.newest
        newest = {self.told(name): name for record in (version.value, version.key) for name, _ in field_types(record)}
        return {each: newest.get(self.told(each), each) for each in image}

    def of_key(self, image: Iterable[str]) -> dict[str, list[tuple[str, int | None]]]:
        """For each key column by its newest name: the fields that it is in, of which the first one that is not null counts.

        With each the last epoch for which it does not count, where its name was that of a column that was dropped.
        """
        there = {self.told(each): each for each in image}
        versions = [each for each in self.schemas.versions if self.followed is None or each.version <= self.followed]
        every = [[self.told(name) for name, _ in field_types(each.key)] for each in versions or self.schemas.versions]
        found = {}
        for at, (newest, _) in enumerate(field_types(self.schemas.newest.key)):
            now = every[-1][at]
            names = dict.fromkeys([now, *[each[at] for each in every]])
            found[newest] = [
                (there[each], self.gone_until.get(each) if each == now else None) for each in names if each in there
            ]
        return found
