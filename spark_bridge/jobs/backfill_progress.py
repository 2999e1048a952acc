"""The progress file of a backfill: the token ranges that were sent. A run that was killed continues after them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

import fsspec

from spark_bridge.errors import ProgressFileError

__all__ = ["Progress"]


@dataclass(slots=True, kw_only=True)
class Progress:
    """The finished ranges of one backfill of one table, on any file system that fsspec knows.

    `path` None: nothing is kept. `work` identifies the backfill: table id, number of ranges, tokens, predicate, and the
    data topic of a rebuild.
    """

    path: str | None
    work: Mapping[str, object]
    done: set[int] = field(default_factory=set)
    is_begun: bool = False
    """True if there is a file of this work."""

    @classmethod
    def load(cls, path: str | None, work: Mapping[str, object]) -> Self:
        """The content of the file; without a file, no range is finished.

        Raises ProgressFileError for a file of other work.
        """
        if path is None:
            return cls(path=path, work=work)
        try:
            with fsspec.open(path, "r") as file:
                stored = json.load(file)
            done = set(stored.pop("done"))
        except FileNotFoundError:
            return cls(path=path, work=work)
        except (OSError, ValueError, ImportError, AttributeError, LookupError, TypeError) as error:
            raise ProgressFileError(path, f"cannot be read ({error})") from None
        if stored != work:
            raise ProgressFileError(path, f"is of another backfill: {json.dumps(stored)}, not {json.dumps(work)}")
        return cls(path=path, work=work, done=done, is_begun=True)

    def restart(self) -> None:
        """Begin again without finished ranges, and replace the file. Raises ProgressFileError."""
        self.done, self.is_begun = set(), True
        self.add([])

    def add(self, finished: Iterable[int]) -> None:
        """Add finished ranges, and replace the file by a rename. Raises ProgressFileError."""
        self.done |= set(finished)
        if self.path is None:
            return
        try:
            system, path = fsspec.core.url_to_fs(self.path)
            with system.transaction, system.open(path, "w") as file:
                json.dump({**self.work, "done": sorted(self.done)}, file)
        except (OSError, ValueError, ImportError) as error:
            raise ProgressFileError(self.path, f"cannot be written ({error})") from None
