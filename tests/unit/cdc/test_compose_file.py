"""docker-compose.yml, checked with the compose specification and compared with the sandbox, which has the same servers.

The schema is the specification's own, from the package check-jsonschema.
"""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import yaml

from cdc.sandbox import SandboxOptions
from cdc.sandbox.cassandra_config import CDC_SETTINGS
from cdc.sandbox.versions import CASSANDRA_VERSIONS, PULSAR_VERSION
from change_agent.configuration.config import AgentConfig
from tests.servers.interface import ComposeCassandra, ComposePulsar

_FILE = Path(__file__).parents[3] / "docker-compose.yml"


@pytest.fixture(scope="module")
def compose() -> dict[str, dict[str, dict[str, object]]]:
    """The parsed file."""
    loaded: dict[str, dict[str, dict[str, object]]] = yaml.safe_load(_FILE.read_text())
    return loaded


def _cassandra_settings(compose: dict[str, dict[str, dict[str, object]]]) -> dict[str, str]:
    environment = compose["services"]["cassandra"]["environment"]
    assert isinstance(environment, dict)
    return dict(re.findall(r"-Dcassandra\.settings\.(\w+)=(\S+)", environment["JVM_EXTRA_OPTS"]))


def test_the_file_is_valid_by_the_compose_specification(compose: dict[str, dict[str, dict[str, object]]]) -> None:
    """The check needs no Docker."""
    schema = json.loads(
        resources.files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text()
    )
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    assert [error.message for error in validator(schema).iter_errors(compose)] == []


def test_the_specification_refuses_a_misspelt_key(compose: dict[str, dict[str, dict[str, object]]]) -> None:
    """This proves that the check above can fail."""
    schema = json.loads(
        resources.files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text()
    )
    wrong = {**compose, "services": {"cassandra": {"image": "cassandra:5.0.9", "healthchek": {}}}}
    errors = [error.message for error in jsonschema.validators.validator_for(schema)(schema).iter_errors(wrong)]
    assert len(errors) == 1
    assert "'healthchek' was unexpected" in errors[0]


def test_the_images_are_the_sandboxs_versions(compose: dict[str, dict[str, dict[str, object]]]) -> None:
    """Both ways start the same versions."""
    assert compose["services"]["cassandra"]["image"] == f"cassandra:{CASSANDRA_VERSIONS['5.0']}"
    assert compose["services"]["pulsar"]["image"] == f"apachepulsar/pulsar:{PULSAR_VERSION}"
    assert (ComposeCassandra.version, ComposePulsar.version) == ("5.0.9", "4.0.8")


def test_the_cdc_settings_are_the_sandboxs(compose: dict[str, dict[str, dict[str, object]]]) -> None:
    """The settings have the names that Cassandra uses since 4.1."""
    settings = _cassandra_settings(compose)
    defaults = SandboxOptions()
    assert CDC_SETTINGS == {"cdc_enabled": True, "cdc_total_space_in_mb": 1024, "commitlog_sync": "periodic"}
    assert settings.pop("cdc_enabled") == "true"
    assert settings.pop("cdc_total_space") == "1024MiB"
    assert settings.pop("commitlog_sync") == "periodic"
    assert settings.pop("commitlog_sync_period") == f"{defaults.commitlog_sync_ms}ms"
    assert settings.pop("commitlog_segment_size") == f"{defaults.commitlog_segment_mb}MiB"
    assert settings == {
        "cdc_raw_directory": "/var/lib/cassandra/cdc_raw",
        "commitlog_directory": "/var/lib/cassandra/commitlog",
    }


def test_commit_log_and_cdc_raw_are_on_one_mount(compose: dict[str, dict[str, dict[str, object]]]) -> None:
    """Cassandra hard-links segments between them, which is not possible across mounts."""
    assert compose["services"]["cassandra"]["volumes"] == ["./build/compose/cassandra:/var/lib/cassandra"]


def test_every_published_port_is_on_loopback(compose: dict[str, dict[str, dict[str, object]]]) -> None:
    """The ports are those that the tests connect to."""
    published = {name: service.get("ports", []) for name, service in compose["services"].items()}
    assert published == {
        "cassandra": ["127.0.0.1:9042:9042"],
        "pulsar": ["127.0.0.1:6650:6651", "127.0.0.1:8080:8080"],
        "agent": [],
    }
    assert (ComposeCassandra.address, ComposeCassandra.native_port) == ("127.0.0.1", 9042)
    assert (ComposePulsar.service_url, ComposePulsar.admin_url) == ("pulsar://127.0.0.1:6650", "http://127.0.0.1:8080")


def test_every_service_has_a_health_check(compose: dict[str, dict[str, dict[str, object]]]) -> None:
    """`docker compose up --wait` returns when the servers serve."""
    assert [name for name, service in compose["services"].items() if "healthcheck" not in service] == []


def test_the_agent_reads_the_nodes_cdc_raw_with_a_valid_configuration(
    compose: dict[str, dict[str, dict[str, object]]], tmp_path: Path
) -> None:
    """Its folders are those of the mounts, and its options are those of the agent."""
    volumes = compose["services"]["agent"]["volumes"]
    assert volumes == [
        "./build/compose/cassandra/cdc_raw:/var/lib/cassandra/cdc_raw",
        "./build/compose/agent:/var/lib/cdc",
    ]
    content = compose["configs"]["agent"]["content"]
    assert isinstance(content, str)
    options = yaml.safe_load(content)
    assert options["cdcRawDirectory"] == _cassandra_settings(compose)["cdc_raw_directory"]
    config = AgentConfig.from_mapping({**options, "cdcRawDirectory": str(tmp_path)}, {})
    assert config.contact_points == ("cassandra",)
    assert config.pulsar_service_url == "pulsar://pulsar:6650"
    assert config.pulsar_admin_url == "http://pulsar:8080"


def test_the_agents_image_has_every_package_of_the_project(compose: dict[str, dict[str, dict[str, object]]]) -> None:
    """`pip install .` needs all of them. No other folder is copied."""
    build = compose["services"]["agent"]["build"]
    assert isinstance(build, dict)
    copied = re.findall(r"^COPY (\w+) \1$", build["dockerfile_inline"], flags=re.MULTILINE)
    packages = [path.parent.name for path in sorted(_FILE.parent.glob("*/__init__.py"))]
    assert sorted(copied) == packages
