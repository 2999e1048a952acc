"""The JVM options that the documentation gives for a source's host: a real JVM starts with them."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Final

from cdc.sandbox.prerequisites import java_home

_PAGE: Final = Path(__file__).parents[3] / "docs" / "connector.md"


def test_a_jvm_starts_with_the_documented_options() -> None:
    """Pulsar puts the options of --runtime-flags before -Xmx, to which it sets --ram. With them, the heap starts
    smaller than --ram."""
    found = re.search(r"^--ram (\d+) --runtime-flags=(\".+\")$", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    [flags] = shlex.split(found[2])
    java = str(java_home() / "bin" / "java")
    command = [java, *flags.split(), f"-Xmx{found[1]}", "-XX:+PrintFlagsFinal", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    sizes = dict(re.findall(r"size_t (InitialHeapSize|MaxHeapSize) += (\d+)", done.stdout))
    assert int(sizes["InitialHeapSize"]) < int(sizes["MaxHeapSize"]) == int(found[1])
    assert "warning" not in done.stderr.lower()
