"""What an installation takes is pinned with its hashes, and fits what is asked for and what is tested here."""

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
    """Make the file anew (`make lock`) when dependencies change."""
    pinned = locked(LOCK)
    assert all(digests for _, digests in pinned.values())
    for requirement in _asked_for():
        version, _ = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(Version(version)), requirement


def test_the_tests_run_on_the_line_of_spark_that_is_pinned() -> None:
    """The extra `spark` takes newer ones, too; their tests are another command's (`make test-spark42`)."""
    version, _ = locked(LOCK)["pyspark"]
    assert importlib.metadata.version("pyspark").split(".")[:2] == version.split(".")[:2]


def test_what_the_dependencies_need_is_pinned_too() -> None:
    """With `--require-hashes` pip would refuse the installation otherwise. As far as the versions are installed here."""
    pinned = locked(LOCK)
    for name, (pinned_version, _) in pinned.items():
        installed = importlib.metadata.distribution(name)
        for text in (installed.requires or []) if installed.version == pinned_version else []:
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                version, _ = pinned[canonicalize_name(needed.name)]
                assert needed.specifier.contains(Version(version), prereleases=True), f"{name} needs {needed}"


def test_the_connectors_archive_takes_its_part_of_the_same_lock() -> None:
    """Neither another version nor another file."""
    pinned = locked(LOCK)
    assert locked(WHEELS_LOCK) == {name: pinned[name] for name in WHEELS}


def _wheel(folder: Path) -> Path:
    """A package of one module, as an index would give it."""
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
    """By its hash, whatever the index says; and one without a hash in the lock does not, either."""
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
