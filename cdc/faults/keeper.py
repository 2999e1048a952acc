"""Keeps a hard link to each segment that comes to `cdc_raw`, whatever becomes of it there: what the judge reads."""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

__all__ = ["SegmentKeeper"]

_LOOK_S: Final = 0.02


class SegmentKeeper:
    """Watches the folders of a run's nodes; `segments` and `schemas` are what it kept of a node."""

    def __init__(self, nodes: dict[int, tuple[Path, Path]], folder: Path) -> None:
        """`nodes`: number -> its `cdc_raw` and its data folder."""
        self._nodes = nodes
        self._folder = folder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)
        for number in nodes:
            (folder / f"segments-{number}").mkdir(parents=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._thread.join()

    def segments(self, node: int) -> list[Path]:
        """All segments of a node, oldest first."""
        return sorted((self._folder / f"segments-{node}").glob("*.log"))

    def schemas(self, node: int) -> list[Path]:
        """Copies of the node's schema before each change of it, oldest first: folders with `system_schema` tables."""
        return sorted((self._folder / f"schemas-{node}").glob("*"))

    def keep_schema(self) -> None:
        """Copies the schema as each node has it now on disk."""
        for number, (_, data) in self._nodes.items():
            folder = self._folder / f"schemas-{number}"
            folder.mkdir(exist_ok=True)
            target = folder / f"{len(list(folder.iterdir())):04}"
            for table in sorted((data / "system_schema").iterdir()):
                (target / table.name).mkdir(parents=True)
                for file in table.glob("*-*"):
                    with suppress(FileNotFoundError, IsADirectoryError):  # compacted meanwhile; a backup's folder
                        shutil.copy2(file, target / table.name / file.name)

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            self.look()

    def look(self) -> None:
        """Link what is new."""
        for number, (cdc_raw, _) in self._nodes.items():
            for path in cdc_raw.glob("*.log"):
                kept = self._folder / f"segments-{number}" / path.name
                if not kept.exists():
                    with suppress(FileNotFoundError):
                        kept.hardlink_to(path)
