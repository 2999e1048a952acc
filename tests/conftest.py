"""Marks and plug-ins of the suite; fixtures live in `tests/fixtures`, one per server or part."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from change_agent.decoder import running
from change_agent.decoder_build import native_obstacle, obstacle
from spark_bridge.spark_line import LINE
from tests.spark.settings import PY4J_LEAVES_SOCKETS_OPEN

_INTEGRATION = Path(__file__).parent / "integration"
_PLUGINS = (
    "feature_report",
    "servers",
    "agent",
    "connector",
    "served_table",
    "spark",
    "spark_cluster",
    "mirror",
    "drawn",
    "spark35",
)

_BY_OPTION = {
    "multinode": "tests/multinode",
    "fault_plan": "the fault plan of a seed",
    "spark_workload": "Spark's random workload",
}
"""Marks of what runs by an option of the same name only: it takes long, and wants the machine for itself."""

_EXTENDED = "extended"
"""Mark and option of what `make test-all` runs beside the rest: more of the same, in minutes that each run of CI would wait for."""

_PARTS = {
    "compatibility": (
        "test_connector_data_topic_policies",
        "test_connector_datastax",
        "test_connector_deployment",
        "test_connector_foreign_sink",
        "test_connector_security",
        "test_decoder_oracle",
    ),
    "connector": ("test_connector_",),
    "spark_jobs": (
        "test_spark_backfill",
        "test_spark_cluster",
        "test_spark_kills",
        "test_spark_lake",
        "test_spark_large_mirror",
        "test_spark_mirror",
        "test_spark_publish",
        "test_spark_resync",
        "test_spark_submit",
        "test_spark_topic_made_again",
        "test_spark_truncations",
        "test_spark_verify",
        "test_spark_workload",
    ),
}
"""Marks by the first letters of a module's name; the first that fits."""

_FURTHER_SERVERS = frozenset({"two_nodes", "spark_cluster"})
"""Fixtures with servers that run until the session ends, and take a part of a core even when no test uses them."""

_SPARK_FIXTURES = frozenset({"spark", "spark35", "spark_cluster"})

_SPARK_LINES = "==4.1"
"""The lines of Spark that tests are for which say nothing: that of requirements.lock."""

pytest_plugins = [f"tests.fixtures.{name}" for name in _PLUGINS]


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Which line of Spark and which decoder are tested, and what keeps the compiled one, or systemd's unit, from being tested."""
    only = (
        "" if SpecifierSet(_SPARK_LINES).contains(LINE) else ": only what is marked for it; `make test` runs everything"
    )
    extended = "run" if config.getoption(_EXTENDED) else "left out; `make test-all` runs them"
    return [f"PySpark {LINE}{only}", f"extended tests: {extended}", _decoder(), _systemd()]


def _systemd() -> str:
    found = shutil.which("systemd-analyze")
    return f"systemd's unit: {'not verified; systemd-analyze is not on this machine' if found is None else 'verified'}"


def _decoder() -> str:
    found = f"decoder: {running().description}"
    if running().is_compiled:
        found += "; its tests run over the plain one too"
    elif missing := obstacle():
        found += f"; cannot be compiled here: {missing}"
    if not running().is_native and (missing := native_obstacle()):
        found += f"; no native core here: {missing}"
    return found


def pytest_addoption(parser: pytest.Parser) -> None:
    """An option for each of `_BY_OPTION`, and one for what is marked as extended."""
    for mark, what in _BY_OPTION.items():
        parser.addoption(f"--{mark.replace('_', '-')}", action="store_true", help=f"run {what}, and nothing else")
    parser.addoption(f"--{_EXTENDED}", action="store_true", help="run also what `make test-all` has beyond `make test`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Everything below tests/integration needs servers; what needs servers runs after the fast tests, further ones last."""
    for item in items:
        if _INTEGRATION in item.path.parents:
            item.add_marker(pytest.mark.integration)
    _mark_spark(items)
    _mark_by_name(items)
    further = {item.path for item in items if not _FURTHER_SERVERS.isdisjoint(getattr(item, "fixturenames", ()))}
    items.sort(key=lambda item: (item.get_closest_marker("integration") is not None, item.path in further))
    wanted = {mark for mark in _BY_OPTION if config.getoption(mark)}
    others = [
        item
        for item in items
        if {mark for mark in _BY_OPTION if item.get_closest_marker(mark)} != wanted
        or not _spark_lines(item).contains(LINE)
        or (item.get_closest_marker(_EXTENDED) is not None and not config.getoption(_EXTENDED))
    ]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


@pytest.fixture(scope="session")
def is_extended(pytestconfig: pytest.Config) -> bool:
    """Whether long runs are as long as in `make test-all`."""
    return bool(pytestconfig.getoption(_EXTENDED))


def _mark_spark(items: list[pytest.Item]) -> None:
    """Modules that use a Spark session."""
    found = {item.path for item in items if not _SPARK_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))}
    for item in items:
        if item.path in found:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.filterwarnings(PY4J_LEAVES_SOCKETS_OPEN))


def _mark_by_name(items: list[pytest.Item]) -> None:
    """The parts of the integration tests that `make test` runs side by side, besides that of all others."""
    for item in items:
        if _INTEGRATION in item.path.parents:
            found = (mark for mark, names in _PARTS.items() if item.path.name.startswith(names))
            if (mark := next(found, None)) is not None:
                item.add_marker(mark)


def _spark_lines(item: pytest.Item) -> SpecifierSet:
    mark = item.get_closest_marker("spark_line")
    return SpecifierSet(_SPARK_LINES if mark is None else mark.args[0])
