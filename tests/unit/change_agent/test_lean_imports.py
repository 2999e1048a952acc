"""Libraries without the parts that the agent does not use."""

from __future__ import annotations

import subprocess
import sys

import pytest

from clients.lean_imports import left_out

_PROCESS = """
import importlib, sys
importlib.import_module(sys.argv[1])
print(sorted({"numpy", "pygments", "cassandra.cluster", "httpx"} & sys.modules.keys()))
import numpy, httpx
assert numpy.array([1]).sum() == 1 and httpx.Client
"""


@pytest.mark.parametrize("module", ["change_agent.__main__", "cdc.commands.agent"])
def test_the_agents_process_has_no_numpy_and_no_pygments(module: str) -> None:
    """And whoever wants one of them later gets it."""
    command = [sys.executable, "-c", _PROCESS, module]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "['cassandra.cluster', 'httpx']\n"


def test_what_is_loaded_already_stays() -> None:
    """Only what nobody has loaded is left out, and only for a while."""
    assert "tabnanny" not in sys.modules
    with left_out("json", "tabnanny"):
        import json

        assert json.dumps(1) == "1"
        with pytest.raises(ImportError):
            import tabnanny
    import tabnanny

    assert callable(tabnanny.check)
