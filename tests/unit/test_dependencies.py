"""Pinned dependencies with hashes: they satisfy the project's requirements, and are the versions that are tested."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from source_connector.nar_build import WHEELS, WHEELS_LOCK, NarBuildError, install_wheels
from tests.tools.dependency_lock import LOCK, locked

_PROJECT = tomllib.loads((LOCK.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _asked_for() -> list[Requirement]:
    extras = _PROJECT["optional-dependencies"]
    return [Requirement(each) for each in _PROJECT["dependencies"] + extras["spark"] + extras["compile"]]


def test_every_dependency_is_pinned_in_its_range_by_a_hash() -> None:
    """`make lock` writes the file again after a change of the dependencies."""
    pinned = locked(LOCK)
    assert all(digests for _, digests in pinned.values())
    for requirement in _asked_for():
        version, _ = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(Version(version)), requirement


def test_the_tests_run_on_the_line_of_spark_that_is_pinned() -> None:
    """The extra `spark` also accepts later lines, which `make test-spark42` tests."""
    version, _ = locked(LOCK)["pyspark"]
    assert importlib.metadata.version("pyspark").split(".")[:2] == version.split(".")[:2]


def test_what_the_dependencies_need_is_pinned_too() -> None:
    """Otherwise pip would refuse the installation with `--require-hashes`.

    Only versions that are installed here are checked.
    """
    pinned = locked(LOCK)
    for name, (pinned_version, _) in pinned.items():
        installed = importlib.metadata.distribution(name)
        for text in (installed.requires or []) if installed.version == pinned_version else []:
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                version, _ = pinned[canonicalize_name(needed.name)]
                assert needed.specifier.contains(Version(version), prereleases=True), f"{name} needs {needed}"


def test_the_connectors_archive_takes_its_part_of_the_same_lock() -> None:
    """The archive has the same versions and files."""
    pinned = locked(LOCK)
    assert locked(WHEELS_LOCK) == {name: pinned[name] for name in WHEELS}


def _wheel(folder: Path) -> Path:
    """Write a package of one module, as an index would return it."""
    wheel = folder / "amber-1.0-py3-none-any.whl"
    files = {
        "amber.py": b"COLOUR = 'amber'\n",
        "amber-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: amber\nVersion: 1.0\n",
        "amber-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in files.items()
    )
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr("amber-1.0.dist-info/RECORD", f"{record}amber-1.0.dist-info/RECORD,,\n")
    return wheel


def test_a_wheel_that_is_not_the_locked_one_does_not_get_into_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel with another hash is refused, and so is a wheel without a hash in the lock."""
    wheel, lock, target = _wheel(tmp_path), tmp_path / "requirements.lock", tmp_path / "target"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    for line, reason in ((f"amber==1.0 --hash=sha256:{'0' * 64}", "HASHES"), ("amber==1.0", "hash")):
        lock.write_text(line)
        with pytest.raises(NarBuildError, match=reason):
            install_wheels(lock, target)
        assert not (target / "amber.py").exists()
    lock.write_text(f"amber==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}")
    install_wheels(lock, target)
    assert (target / "amber.py").exists()
