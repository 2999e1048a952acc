"""The Helm chart of deploy/helm: Kubernetes accepts the rendered YAML, and our programs accept its options."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from cdc.health.line_config import LineConfig
from change_agent.configuration.config import AgentConfig
from source_connector.configuration.config import SourceConfig

_ROOT: Final = Path(__file__).parent.parent.parent
_CHART: Final = _ROOT / "deploy" / "helm" / "cassandra-cdc"
_EVERYTHING: Final = _ROOT / "deploy" / "helm" / "everything.yaml"
_RELEASE: Final = "line"
_HELM: Final = shutil.which("helm")
_with_helm = pytest.mark.skipif(_HELM is None, reason="helm is not on this machine: the chart was not rendered")


def _helm(*arguments: object) -> str:
    assert _HELM is not None
    done = subprocess.run(
        [_HELM, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False, cwd=_ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _rendered(*options: object) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(_helm("template", _RELEASE, _CHART, *options)) if each]


def _kinds(objects: list[dict[str, Any]]) -> list[str]:
    return sorted(f"{each['kind']} {each['metadata']['name']}" for each in objects)


def test_chart_and_package_have_one_version() -> None:
    """The default image has the same version."""
    version = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    chart = yaml.safe_load((_CHART / "Chart.yaml").read_text(encoding="utf-8"))
    values = yaml.safe_load((_CHART / "values.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (version, version)
    assert values["pulsar"]["image"].endswith(f"-{version}")


def test_templates_use_values_that_there_are() -> None:
    """Each `.Values.a.b` of a template has a default in values.yaml. This needs no helm."""
    values = yaml.safe_load((_CHART / "values.yaml").read_text(encoding="utf-8"))
    used = {
        name
        for path in (_CHART / "templates").iterdir()
        for name in re.findall(r"\.Values((?:\.\w+)+)", path.read_text())
    }
    assert len(used) > 20
    for name in used:
        found = values
        for part in name.split(".")[1:]:
            assert part in found, name
            found = found[part]


def test_the_example_of_a_source_names_the_service_that_the_chart_makes() -> None:
    """The names are those of the release in docs/install.md, and of the release in these tests.

    Another host would not exist in the cluster.
    """
    install = (_ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    template = (_CHART / "templates" / "cassandra.yaml").read_text(encoding="utf-8")
    notes = (_CHART / "templates" / "NOTES.txt").read_text(encoding="utf-8")
    [release] = re.findall(r"^helm install (\S+) ", install, re.MULTILINE)
    [service] = re.findall(r"^kind: Service\nmetadata:\n  name: (.*)$", template, re.MULTILINE)
    assert f"{service}.{{{{ .Release.Namespace }}}}" in notes
    for path, name in ((_CHART / "values.yaml", release), (_EVERYTHING, _RELEASE)):
        points = re.findall(r"options: \{contactPoints: (.*?),", path.read_text(encoding="utf-8"))
        assert points == [service.replace("{{ .Release.Name }}", name)], path


@_with_helm
def test_helm_lints_the_chart_without_a_warning() -> None:
    """The chart is checked with its defaults, and with all of its objects."""
    for values in ((), ("--values", _EVERYTHING)):
        said = _helm("lint", "--strict", _CHART, *values)
        assert not [line for line in said.splitlines() if re.match(r"\[(WARNING|ERROR)\]", line)]


@_with_helm
def test_by_default_only_the_watch_is_deployed() -> None:
    """The agent's options are rendered too, for pods that are not part of the chart."""
    assert _kinds(_rendered()) == ["ConfigMap line-agent", "ConfigMap line-watch", "Deployment line-watch"]


@_with_helm
def test_what_the_chart_configures_is_what_our_programs_take(tmp_path: Path) -> None:
    """agent.yaml, line.yaml and the options of each source are valid. The agent is in Cassandra's pod."""
    objects = {f"{each['kind']} {each['metadata']['name']}": each for each in _rendered("--values", _EVERYTHING)}
    agent = yaml.safe_load(objects["ConfigMap line-agent"]["data"]["agent.yaml"])
    assert (agent["readUnsynced"], agent["contactPoints"]) == (True, "127.0.0.1")
    (tmp_path / "raw").mkdir()
    AgentConfig.from_mapping(
        agent | {"cdcRawDirectory": str(tmp_path / "raw"), "cdcWorkingDir": str(tmp_path / "w")}, {}
    )
    line = yaml.safe_load(objects["ConfigMap line-watch"]["data"]["line.yaml"])
    (tmp_path / "token").write_text("token:x")
    LineConfig.from_mapping(line | {"pulsarAuthParamsFile": str(tmp_path / "token")})
    assert line["topicPrefix"] == agent["topicPrefix"]
    source = yaml.safe_load(objects["ConfigMap line-sources"]["data"]["orders.yaml"])
    SourceConfig.from_mapping(source["configs"], {"getServiceUrl": "pulsar://broker:6650"})
    assert f"Service {source['configs']['contactPoints']}" in objects
    assert (source["tenant"], source["namespace"], source["parallelism"]) == ("shop", "cdc", 2)
    pod = objects["StatefulSet line-cassandra"]["spec"]["template"]["spec"]
    assert [each["name"] for each in pod["containers"]] == ["cassandra", "cassandra-cdc-agent"]
    places = [
        mount["mountPath"] for each in pod["containers"] for mount in each["volumeMounts"] if mount["name"] == "data"
    ]
    assert places == ["/var/lib/cassandra", "/var/lib/cassandra"]
    assert agent["cdcRawDirectory"] in pod["containers"][0]["env"][-1]["value"]


@_with_helm
def test_every_container_but_cassandras_keeps_to_the_restricted_standard() -> None:
    """The standard is that of Kubernetes. Cassandra's own image starts as root, and then drops these rights."""
    pods = [
        each["spec"]["template"]["spec"]
        for each in _rendered("--values", _EVERYTHING)
        if "template" in each.get("spec", {})
    ]
    containers = {each["name"]: each for pod in pods for each in pod["containers"]}
    assert sorted(containers) == ["cassandra", "cassandra-cdc-agent", "pulsar-admin", "resolved", "watch"]
    assert all(pod["automountServiceAccountToken"] is False for pod in pods)
    for name, each in containers.items():
        assert each["resources"]["limits"]["memory"], name
        if name != "cassandra":
            context = each["securityContext"]
            assert (context["runAsNonRoot"], context["allowPrivilegeEscalation"]) == (True, False), name
            assert (context["capabilities"], context["seccompProfile"]) == (
                {"drop": ["ALL"]},
                {"type": "RuntimeDefault"},
            ), name


@_with_helm
def test_an_option_that_the_chart_sets_is_refused_with_its_name() -> None:
    """Otherwise the user's value would be ignored."""
    assert _HELM is not None
    command = [_HELM, "template", "line", str(_CHART), "--set", "agent.options.pulsarServiceUrl=pulsar://other:6650"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=_ROOT)
    assert done.returncode != 0
    assert "agent.options.pulsarServiceUrl: the chart sets this option" in done.stderr


@_with_helm
def test_the_script_of_the_sources_job_is_one_that_bash_takes() -> None:
    """Only the syntax is checked."""
    [script] = [
        each["data"]["deploy.sh"] for each in _rendered("--values", _EVERYTHING) if "deploy.sh" in each.get("data", {})
    ]
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, timeout=10, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@_with_helm
@pytest.mark.skipif(
    importlib.util.find_spec("kubernetes_validate") is None,
    reason="kubernetes-validate is not installed (`make chart-check` installs it): no schema was checked",
)
@pytest.mark.parametrize("values", [(), ("--values", _EVERYTHING)], ids=["defaults", "everything"])
def test_kubernetes_takes_each_object(values: tuple[object, ...]) -> None:
    """The objects are checked with the schemas of Kubernetes 1.29. Unknown properties are errors."""
    import kubernetes_validate

    for each in _rendered(*values):
        kubernetes_validate.validate(each, "1.29", strict=True)
