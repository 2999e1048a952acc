"""What an installation takes is pinned with its hashes, and fits what is asked for and what is tested here."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.dependency_lock import LOCK, locked

_PROJECT = tomllib.loads((LOCK.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _asked_for() -> list[Requirement]:
    return [Requirement(each) for each in _PROJECT["dependencies"] + _PROJECT["optional-dependencies"]["spark"]]


def test_every_dependency_is_pinned_in_its_range_by_a_hash() -> None:
    """Make the file anew (tests/dependency_lock.py) when dependencies change."""
    pinned = locked()
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for _, digest in pinned.values())
    for requirement in _asked_for():
        version, _ = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(Version(version)), requirement


def test_what_the_dependencies_need_is_pinned_too() -> None:
    """With `--require-hashes` pip would refuse the installation otherwise. As far as the versions are installed here."""
    pinned = locked()
    for name, (pinned_version, _) in pinned.items():
        installed = importlib.metadata.distribution(name)
        for text in (installed.requires or []) if installed.version == pinned_version else []:
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                version, _ = pinned[canonicalize_name(needed.name)]
                assert needed.specifier.contains(Version(version), prereleases=True), f"{name} needs {needed}"
