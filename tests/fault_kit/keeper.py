"""Keeps a hard link to each segment that comes to `cdc_raw`. The judge reads these links after the segments are
deleted."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.servers.background import Background

__all__ = ["KeptSchema", "SegmentKeeper"]

_LOOK_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSchema:
    """Hard links to the files of the schema's tables, below `folder/data`, and the newest segment at that time."""

    folder: Path
    newest_segment: str


class SegmentKeeper(Background):
    """Watches the folders of a run's nodes. `segments` and `schemas` return what it has kept of a node."""

    def __init__(self, nodes: dict[int, tuple[Path, Path]], folder: Path) -> None:
        """`nodes`: number -> its `cdc_raw` and its data folder."""
        super().__init__("keeper")
        self._nodes = nodes
        self._folder = folder
        self._schemas: dict[int, list[KeptSchema]] = {number: [] for number in nodes}
        for number in nodes:
            (folder / f"segments-{number}").mkdir(parents=True)

    def segments(self, node: int) -> list[Path]:
        """All segments of a node, oldest first."""
        return sorted((self._folder / f"segments-{node}").glob("*.log"))

    def schemas(self, node: int) -> list[KeptSchema]:
        """The node's schemas that were kept, oldest first."""
        return self._schemas[node]

    def keep_schema(self) -> None:
        """Keep the schema that each node has on disk now; Cassandra flushes it at each change."""
        self.check()
        for number, (_, data) in self._nodes.items():
            folder = self._folder / f"schema-{number}-{len(self._schemas[number]):04}"
            while not _link_schema(data / "system_schema", folder / "data" / "system_schema"):
                shutil.rmtree(folder)
            segments = self.segments(number)
            self._schemas[number].append(
                KeptSchema(folder=folder, newest_segment=segments[-1].name if segments else "")
            )

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            self.check()

    def check(self) -> None:
        """Link new segments."""
        for number, (cdc_raw, _) in self._nodes.items():
            for path in cdc_raw.glob("*.log"):
                kept = self._folder / f"segments-{number}" / path.name
                if not kept.exists():
                    with suppress(FileNotFoundError, FileExistsError):  # two threads may look at once
                        kept.hardlink_to(path)


def _link_schema(source: Path, target: Path) -> bool:
    """Link every file of the schema's tables. Return False if the files changed meanwhile, for example by a
    compaction."""
    files = _schema_files(source)
    for file in files:
        linked = target / file.relative_to(source)
        linked.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            linked.hardlink_to(file)
    return files == _schema_files(source)


def _schema_files(source: Path) -> list[Path]:
    return sorted(file for file in source.glob("*/*-*") if file.is_file())
