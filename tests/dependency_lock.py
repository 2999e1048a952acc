"""Writes `requirements.lock`: every package that an installation takes, with the versions and hashes of its files.

    pip install --dry-run --ignore-installed --report report.json '.[spark]'
    python -m tests.dependency_lock report.json > requirements.lock

The hashes are those of the files that pip chose: for Linux on x86-64 and the Python that ran it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

__all__ = ["LOCK", "locked"]

LOCK = Path(__file__).parents[1] / "requirements.lock"
_OWN = "cassandra-cdc"


def locked() -> dict[str, tuple[str, str]]:
    """Version and SHA-256 of each package by its normalised name."""
    found = {}
    for line in LOCK.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            requirement, digest = line.split(" --hash=sha256:")
            name, version = requirement.split("==")
            found[name] = version, digest
    return found


def main() -> None:
    """From pip's report on standard output."""
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    lines = [
        "# Made by tests/dependency_lock.py for Linux on x86-64, Python 3.11. Install with:",
        "#   pip install --require-hashes -r requirements.lock && pip install --no-deps .",
    ]
    for each in report["install"]:
        name = each["metadata"]["name"].lower().replace("_", "-").replace(".", "-")
        if name != _OWN:
            digest = each["download_info"]["archive_info"]["hashes"]["sha256"]
            lines.append(f"{name}=={each['metadata']['version']} --hash=sha256:{digest}")
    print("\n".join(lines[:2] + sorted(lines[2:])))


if __name__ == "__main__":
    main()
