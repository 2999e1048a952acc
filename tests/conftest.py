"""Marks and plug-ins of the suite; fixtures live in the `fix_*` modules, one per server or part."""

from __future__ import annotations

from pathlib import Path

import pytest

from change_agent.decoder import running
from change_agent.decoder_build import obstacle

_INTEGRATION = Path(__file__).parent / "integration"
_PLUGINS = ("fix_feature_report", "fix_servers", "fix_agent", "fix_connector", "fix_spark", "fix_spark35")

pytest_plugins = [f"tests.{name}" for name in _PLUGINS if (Path(__file__).parent / f"{name}.py").exists()]


def pytest_report_header() -> str:
    """Which decoder is tested, and what keeps the compiled one from being tested."""
    if running().is_compiled:
        return "decoder: compiled; its tests run over the plain one too"
    missing = obstacle()
    return f"decoder: {running().description}{'' if missing is None else f'; cannot be compiled here: {missing}'}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--multinode` runs what takes too long for every day."""
    parser.addoption("--multinode", action="store_true", help="run tests/multinode, and nothing else")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Everything below tests/integration needs servers; what needs servers runs after the fast tests."""
    for item in items:
        if _INTEGRATION in item.path.parents:
            item.add_marker(pytest.mark.integration)
    items.sort(key=lambda item: item.get_closest_marker("integration") is not None)
    wanted = config.getoption("--multinode")
    others = [item for item in items if (item.get_closest_marker("multinode") is not None) != wanted]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
