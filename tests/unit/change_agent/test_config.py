"""agent.yaml: what is accepted, and that everything wrong is told at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from change_agent.config import AgentConfig
from schemas.errors import ConfigError


def _problems(options: dict[str, object], environment: dict[str, str] | None = None) -> dict[str, str]:
    with pytest.raises(ConfigError) as raised:
        AgentConfig.from_mapping(options, environment or {})
    return {problem.option: problem.reason for problem in raised.value.problems}


@pytest.fixture
def needed(tmp_path: Path) -> dict[str, object]:
    """The options that have no default."""
    return {"cdcRawDirectory": str(tmp_path), "cdcWorkingDir": str(tmp_path / "work")}


def test_two_options_are_enough(needed: dict[str, object]) -> None:
    """Everything else has a default that fits an agent beside its node and a local Pulsar."""
    config = AgentConfig.from_mapping(needed, {})
    assert (config.contact_points, config.port) == (("127.0.0.1",), 9042)
    assert config.topic_prefix == "persistent://public/default/cdc-events-"
    assert (config.events_topic_partitions, config.max_events_per_message, config.max_message_bytes) == (
        4,
        1000,
        262144,
    )


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    """Unknown names, wrong types and missing things stand in one error, each under its option."""
    problems = _problems(
        {
            "cdcRawDirectory": str(tmp_path / "nowhere"),
            "pulsarServicUrl": "pulsar://localhost",
            "port": "abc",
            "maxInflightEvents": 1.5,
            "createTopics": "perhaps",
            "pulsarAdminUrl": "localhost:8080",
            "password": "geheim",
        }
    )
    assert problems == {
        "cdcRawDirectory": f"{tmp_path / 'nowhere'} is not a directory; set it to the node's cdc_raw_directory"
        " (see cassandra.yaml)",
        "cdcWorkingDir": "is missing; set it",
        "pulsarServicUrl": "is no option of the agent; did you mean pulsarServiceUrl?",
        "port": "must be a whole number",
        "maxInflightEvents": "must be a whole number",
        "createTopics": "must be true or false",
        "pulsarAdminUrl": "'localhost:8080' is not an HTTP URL, such as http://localhost:8080",
        "password": "has no meaning without username; set that too",
    }


def test_a_missing_cdc_raw_directory_is_named(tmp_path: Path) -> None:
    """Neither the folder nor cassandra.yaml: the line says what to set."""
    assert _problems({"cdcWorkingDir": str(tmp_path)}) == {
        "cdcRawDirectory": "is missing; set it to the node's cdc_raw_directory, or set cassandraYaml"
    }


def test_the_folder_comes_from_cassandra_yaml(tmp_path: Path) -> None:
    """cassandraYaml stands for cdcRawDirectory."""
    settings = tmp_path / "cassandra.yaml"
    settings.write_text(f"cdc_enabled: true\ncdc_raw_directory: {tmp_path}\n")
    config = AgentConfig.from_mapping({"cassandraYaml": str(settings), "cdcWorkingDir": str(tmp_path)}, {})
    assert config.cdc_raw_directory == tmp_path


@pytest.mark.parametrize(
    ("settings", "option", "reason"),
    [
        ("cdc_enabled: false\n", "cassandraYaml", "{path} has cdc_enabled: false; set it to true and restart the node"),
        ("num_tokens: 1\n", "cassandraYaml", "{path} has cdc_enabled: false; set it to true and restart the node"),
        ("[1, 2]\n", "cassandraYaml", "{path} holds no settings; set it to the node's cassandra.yaml"),
        (
            "cdc_enabled: true\n",
            "cdcRawDirectory",
            "is missing, and {path} does not name cdc_raw_directory; set it",
        ),
    ],
)
def test_a_cassandra_yaml_without_cdc_is_refused(tmp_path: Path, settings: str, option: str, reason: str) -> None:
    """The line names the option and says what to do."""
    path = tmp_path / "cassandra.yaml"
    path.write_text(settings)
    problems = _problems({"cassandraYaml": str(path), "cdcWorkingDir": str(tmp_path)})
    assert problems == {option: reason.format(path=path)}


def test_options_of_datastax_agent_are_taken_over_where_they_have_a_meaning(needed: dict[str, object]) -> None:
    """Its names work, and what has no effect here is told instead of refused."""
    config = AgentConfig.from_mapping(
        needed | {"topicPrefix": "events-", "cdcPollIntervalMs": 60000, "cdcConcurrentProcessors": 2}, {}
    )
    assert (config.topic_prefix, config.cdc_poll_interval_ms) == ("events-", 60000)
    assert config.notes == ("cdcConcurrentProcessors has no effect: segments are read in order by one thread",)


def test_java_key_stores_are_refused(needed: dict[str, object]) -> None:
    """Ignoring one would open a connection that the user wanted protected."""
    assert _problems(needed | {"sslTruststorePath": "/x.jks"}) == {
        "sslTruststorePath": "Java key stores cannot be used; give tlsTrustCertsFilePath (PEM)"
    }


def test_the_environment_fills_what_the_file_leaves_out(needed: dict[str, object]) -> None:
    """Variables are named as DataStax's; the file wins."""
    environment = {"CDC_TOPIC_PREFIX": "env-", "CDC_PORT": "9999", "CDC_CONTACT_POINTS": "10.0.0.1, 10.0.0.2"}
    config = AgentConfig.from_mapping(needed | {"port": 1234}, environment)
    assert (config.topic_prefix, config.port, config.contact_points) == ("env-", 1234, ("10.0.0.1", "10.0.0.2"))


def test_secrets_do_not_print(needed: dict[str, object]) -> None:
    """Neither the configuration nor an error about it shows a password."""
    config = AgentConfig.from_mapping(
        needed
        | {
            "username": "u",
            "password": "geheim1",
            "pulsarAuthPluginClassName": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
            "pulsarAuthParams": "token:geheim2",
        },
        {},
    )
    assert "geheim" not in f"{config!r} {config}"
    with pytest.raises(ConfigError) as raised:
        AgentConfig.from_mapping(needed | {"username": 5, "password": ["geheim3"]}, {})
    assert "geheim" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [("a: [", "is not YAML"), ("- a\n", "must hold options by name"), (None, "cannot be read")],
)
def test_a_file_that_is_no_configuration_is_one_line(tmp_path: Path, content: str | None, reason: str) -> None:
    """A broken, foreign or missing file is told by its path."""
    path = tmp_path / "agent.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=reason) as raised:
        AgentConfig.load(path, {})
    assert str(raised.value).startswith(str(path)) and "\n" not in str(raised.value)
