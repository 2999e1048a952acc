"""What `cdc status` and `cdc doctor` report of servers that refuse, answer in part, or answer something else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from cdc.health.doctor import _functions_worker
from cdc.health.findings import Finding, Level
from cdc.health.line_config import LineConfig
from cdc.health.pulsar_service import PulsarService
from tests.servers.pages import Page, page, serving

_GOLDEN: Final = Path(__file__).parents[2] / "golden" / "health"


def _recorded(name: str) -> Any:
    return json.loads((_GOLDEN / f"{name}.json").read_text())


def _line(url: str, **options: object) -> LineConfig:
    return LineConfig.from_mapping({"pulsarAdminUrl": url, **options})


_WORKER: Final = {
    "/admin/v2/worker/cluster": page([{"workerId": "w"}]),
    "/admin/v2/worker/cluster/leader/ready": page(True),
    "/admin/v3/sources/public/default": page(["shop"]),
    "/admin/v3/sources/public/default/shop": page(_recorded("source")),
    "/admin/v3/sources/public/default/shop/status": page(_recorded("source-given-up")),
    "/admin/v3/packages/source/public/default": page(["shop", "gone"]),
}
_WORKER_PAGE: Final = "/admin/v2/worker/cluster"
_PACKAGES_PAGE: Final = "/admin/v3/packages/source/public/default"


def _checked(pages: Mapping[str, Page]) -> list[Finding]:
    with serving(pages) as url, PulsarService(config := _line(url)) as service:
        return list(_functions_worker(service, config))


def test_the_doctor_reports_workers_sources_and_packages_of_deleted_sources() -> None:
    """A source that is down is a failure, a package that is left over a warning."""
    worker, source, left = _checked(_WORKER)
    assert (worker.level, worker.text) == (Level.OK, "1 worker, ready")
    assert (source.level, source.subject) == (Level.FAILURE, "shop")
    assert (left.level, left.subject) == (Level.WARNING, "gone")
    assert left.remedy.endswith("pulsar-admin packages delete source://public/default/gone@0")


@pytest.mark.parametrize(
    ("status", "level", "remedy"),
    [
        (404, Level.OK, ""),
        (500, Level.OK, ""),
        (503, Level.OK, ""),
        (401, Level.WARNING, "grant-permission --role ROLE --actions packages public/default"),
        (403, Level.WARNING, "grant-permission --role ROLE --actions packages public/default"),
    ],
)
def test_a_broker_that_lists_no_packages_is_no_failure_and_hides_no_source(
    status: int, level: Level, remedy: str
) -> None:
    """Pulsar's default is enablePackagesManagement=false."""
    worker, source, packages = _checked(
        {**_WORKER, _PACKAGES_PAGE: page({"reason": "Package Management Service is not enabled"}, status)}
    )
    assert (worker.level, source.level) == (Level.OK, Level.FAILURE)
    assert (packages.level, packages.subject) == (level, "packages")
    assert "Package Management Service is not enabled" in packages.text
    assert packages.remedy.endswith(remedy)


@pytest.mark.parametrize("status", [401, 403])
def test_a_role_that_may_not_list_workers_sees_its_sources(status: int) -> None:
    """The remedy is about rights. The worker is enabled, for it answers about sources."""
    worker, source, left = _checked({**_WORKER, _WORKER_PAGE: page({"reason": "client is not authorized"}, status)})
    assert (worker.level, source.level, left.subject) == (Level.WARNING, Level.FAILURE, "gone")
    assert "superusers" in worker.remedy
    assert "functionsWorkerEnabled" not in worker.remedy


def test_a_worker_that_is_not_enabled_or_refuses_has_its_own_remedy() -> None:
    """By the status code of its answer."""
    [disabled] = _checked({**_WORKER, _WORKER_PAGE: page({"reason": "Function worker service is not done"}, 503)})
    assert (disabled.level, "functionsWorkerEnabled=true" in disabled.remedy) == (Level.FAILURE, True)
    [_, refused] = _checked(
        {**_WORKER, _WORKER_PAGE: page({}, 401), "/admin/v3/sources/public/default": page({"reason": "no"}, 403)}
    )
    assert refused.level is Level.FAILURE
    assert refused.remedy == "pulsar-admin namespaces grant-permission --role ROLE --actions sources public/default"
