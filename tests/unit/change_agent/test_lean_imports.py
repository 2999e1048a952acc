"""lean_imports: libraries are loaded without the parts that the agent does not use."""

from __future__ import annotations

import subprocess
import sys

import pytest

from clients.lean_imports import left_out

_PROCESS = """
import importlib, sys
importlib.import_module(sys.argv[1])
print(sorted({"asyncio", "numpy", "pygments", "cassandra.cluster", "httpx"} & sys.modules.keys()))
import numpy, httpx
assert numpy.array([1]).sum() == 1 and httpx.Client
"""


@pytest.mark.parametrize("module", ["change_agent.__main__", "cdc.commands.agent"])
def test_the_agents_process_has_no_numpy_pygments_and_asyncio(module: str) -> None:
    """A later import of a package that was left out works."""
    command = [sys.executable, "-c", _PROCESS, module]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "['cassandra.cluster', 'httpx']\n"


def test_what_is_loaded_already_stays() -> None:
    """A module is left out only if it is not loaded yet, and only within the `with` block."""
    assert "tabnanny" not in sys.modules
    with left_out("json", "tabnanny"):
        import json

        assert json.dumps(1) == "1"
        with pytest.raises(ImportError):
            import tabnanny
    import tabnanny

    assert callable(tabnanny.check)
