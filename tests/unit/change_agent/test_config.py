"""agent.yaml: accepted options, and errors that report all problems at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from change_agent.configuration.config import AgentConfig, option_names
from schemas.errors import ConfigError


def _problems(options: dict[str, object], environment: dict[str, str] | None = None) -> dict[str, str]:
    with pytest.raises(ConfigError) as raised:
        AgentConfig.from_mapping(options, environment or {})
    return {problem.option: problem.reason for problem in raised.value.problems}


@pytest.fixture
def needed(tmp_path: Path) -> dict[str, object]:
    """The options that have no default."""
    (tmp_path / "cdc_raw").mkdir()
    return {"cdcRawDirectory": str(tmp_path / "cdc_raw"), "cdcWorkingDir": str(tmp_path / "work")}


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
    """One error lists unknown names, wrong types and missing options, each under its option."""
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
    """Neither cdcRawDirectory nor cassandraYaml is set. The message says which options to set."""
    assert _problems({"cdcWorkingDir": str(tmp_path)}) == {
        "cdcRawDirectory": "is missing; set it to the node's cdc_raw_directory, or set cassandraYaml"
    }


def test_a_path_that_can_be_none_is_told_as_one_that_is_not_there(tmp_path: Path) -> None:
    """A path with a name of 300 bytes: the operating system refuses it."""
    path, pem = f"/{'b' * 300}", f"/{'c' * 300}.pem"
    problems = _problems({"cdcRawDirectory": path, "cdcWorkingDir": str(tmp_path), "cassandraTrustCertsFilePath": pem})
    assert problems == {
        "cdcRawDirectory": f"{path} is not a directory; set it to the node's cdc_raw_directory (see cassandra.yaml)",
        "cassandraTrustCertsFilePath": f"{pem} is not a file; set it to a PEM file",
    }


def test_the_folder_comes_from_cassandra_yaml(tmp_path: Path) -> None:
    """cassandraYaml replaces cdcRawDirectory."""
    settings = tmp_path / "cassandra.yaml"
    settings.write_text(f"cdc_enabled: true\ncdc_raw_directory: {tmp_path}\n")
    config = AgentConfig.from_mapping({"cassandraYaml": str(settings), "cdcWorkingDir": "/work"}, {})
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
    """The message names the option and says what to do."""
    path = tmp_path / "cassandra.yaml"
    path.write_text(settings)
    problems = _problems({"cassandraYaml": str(path), "cdcWorkingDir": str(tmp_path)})
    assert problems == {option: reason.format(path=path)}


def test_options_of_datastax_agent_are_taken_over_where_they_have_a_meaning(needed: dict[str, object]) -> None:
    """The names of DataStax's agent are accepted. Options without an effect here are reported, not refused."""
    config = AgentConfig.from_mapping(
        needed | {"topicPrefix": "events-", "cdcPollIntervalMs": 60000, "cdcConcurrentProcessors": 2}, {}
    )
    assert (config.topic_prefix, config.cdc_poll_interval_ms) == ("events-", 60000)
    assert config.notes == ("cdcConcurrentProcessors has no effect: segments are read in order by one thread",)


def test_java_key_stores_are_refused_on_a_tls_connection(needed: dict[str, object]) -> None:
    """An agent that ignored the key store would open a connection without the protection that the user wanted."""
    options = needed | {
        "sslTruststorePath": "/x.jks",
        "useKeyStoreTls": False,
        "pulsarServiceUrl": "pulsar+ssl://b:6651",
    }
    assert _problems(options) == {
        "sslTruststorePath": "Java key stores cannot be used; give PEM files: tlsTrustCertsFilePath, and"
        " AuthenticationTls in pulsarAuthPluginClassName (docs/agent.md says how to convert one)"
    }


def test_java_key_stores_mean_nothing_without_tls(needed: dict[str, object]) -> None:
    """DataStax's agent ignores them on a plain connection too."""
    config = AgentConfig.from_mapping(needed | {"sslKeystorePath": "/x.jks"}, {})
    assert config.notes == ("sslKeystorePath has no effect: pulsarServiceUrl is not pulsar+ssl://",)


_DATASTAX_VARIABLES = {
    "CDC_TOPIC_PREFIX": "events-",
    "CDC_WORKING_DIR": "/var/lib/cdc",
    "CDC_DIR_POLL_INTERVAL_MS": "60000",
    "CDC_ERROR_COMMITLOG_REPROCESS_ENABLED": "true",
    "CDC_CONCURRENT_PROCESSORS": "-1",
    "CDC_MAX_INFLIGHT_MESSAGES_PER_TASK": "16384",
    "CDC_PULSAR_SERVICE_URL": "pulsar://broker:6650",
    "CDC_PULSAR_BATCH_DELAY_IN_MS": "-1",
    "CDC_PULSAR_KEY_BASED_BATCHER": "false",
    "CDC_PULSAR_MAX_PENDING_MESSAGES": "1000",
    "CDC_PULSAR_MEMORY_LIMIT_BYTES": "0",
    "CDC_PULSAR_AUTH_PLUGIN_CLASS_NAME": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
    "CDC_PULSAR_AUTH_PARAMS": "token:geheim",
    "CDC_SSL_PROVIDER": "JDK",
    "CDC_SSL_TRUSTSTORE_PATH": "/trust.jks",
    "CDC_SSL_TRUSTSTORE_PASSWORD": "geheim",
    "CDC_SSL_TRUSTSTORE_TYPE": "JKS",
    "CDC_SSL_KEYSTORE_PATH": "/key.jks",
    "CDC_SSL_KEYSTORE_PASSWORD": "geheim",
    "CDC_SSL_CIPHER_SUITES": "TLS_X",
    "CDC_SSL_ENABLED_PROTOCOLS": "TLSv1.2,TLSv1.1,TLSv1",
    "CDC_SSL_ALLOW_INSECURE_CONNECTION": "true",
    "CDC_SSL_HOSTNAME_VERIFICATION_ENABLE": "false",
    "CDC_USE_KEYSTORE_TLS": "false",
}


def test_every_variable_of_datastax_agent_is_taken_over(tmp_path: Path) -> None:
    """Variables with an equivalent are used. Each of the others is reported once. No secret is shown."""
    trusted = tmp_path / "trust.pem"
    trusted.touch()
    variables = _DATASTAX_VARIABLES | {"CDC_TLS_TRUST_CERTS_FILE_PATH": str(trusted)}
    config = AgentConfig.from_mapping({"cdcRawDirectory": str(tmp_path)}, variables)
    assert (config.topic_prefix, str(config.cdc_working_dir)) == ("events-", "/var/lib/cdc")
    assert (config.cdc_poll_interval_ms, config.pulsar_service_url) == (60_000, "pulsar://broker:6650")
    assert config.pulsar_auth_params is not None
    assert config.pulsar_auth_params.get_secret_value() == "token:geheim"
    assert (config.ssl_allow_insecure_connection, config.ssl_hostname_verification_enable) == (True, False)
    assert config.tls_trust_certs_file_path == trusted
    told = [note.split()[0] for note in config.notes]
    assert sorted(told) == [
        "cdcConcurrentProcessors",
        "errorCommitLogReprocessEnabled",
        "maxInflightMessagesPerTask",
        "pulsarBatchDelayInMs",
        "pulsarKeyBasedBatcher",
        "pulsarMaxPendingMessages",
        "pulsarMemoryLimitBytes",
        "sslCipherSuites",
        "sslEnabledProtocols",
        "sslKeystorePassword",
        "sslKeystorePath",
        "sslProvider",
        "sslTruststorePassword",
        "sslTruststorePath",
        "sslTruststoreType",
        "useKeyStoreTls",
    ]
    assert "geheim" not in f"{config!r}{config.notes}"


def test_the_environment_alone_is_enough(tmp_path: Path) -> None:
    """No file is needed. An empty variable counts as not set."""
    environment = {"CDC_RAW_DIRECTORY": str(tmp_path), "CDC_WORKING_DIR": "/w", "CDC_HTTP_PORT": "off", "CDC_PORT": ""}
    config = AgentConfig.load(None, environment)
    assert (config.cdc_raw_directory, config.http_port, config.port) == (tmp_path, None, 9042)


def test_a_variable_that_is_almost_one_is_told(needed: dict[str, object]) -> None:
    """A misspelled variable has no effect and is reported. Variables of other programs are ignored."""
    config = AgentConfig.from_mapping(needed, {"CDC_TOPIC_PREFX": "x", "CDC_SOMETHING_ELSE": "y"})
    assert config.notes == (
        "the environment's CDC_TOPIC_PREFX is no option and has no effect; did you mean CDC_TOPIC_PREFIX?",
    )


def test_a_secret_comes_from_its_file(needed: dict[str, object], tmp_path: Path) -> None:
    """A secret is read without the last line break of its file.

    The option and its file together are refused, and so is a missing file.
    """
    (tmp_path / "password").write_text("geheim\n")
    options = needed | {"username": "u", "passwordFile": str(tmp_path / "password")}
    config = AgentConfig.from_mapping(options, {})
    assert config.password is not None
    assert config.password.get_secret_value() == "geheim"
    assert _problems(options | {"password": "p"}) == {
        "passwordFile": "has no meaning beside password; set one of the two"
    }
    assert _problems(needed | {"pulsarAuthParamsFile": "/nowhere/params"}) == {
        "pulsarAuthParamsFile": "/nowhere/params cannot be read (No such file or directory)"
    }


def test_table_patterns_name_keyspace_and_table(needed: dict[str, object]) -> None:
    """The option is a list, or one string with commas.

    A pattern without a dot is refused, as it would match nothing.
    """
    config = AgentConfig.from_mapping(
        needed | {"includeTables": "shop.*, crm.person?", "excludeTables": ["shop.log"]}, {}
    )
    assert (config.include_tables, config.exclude_tables) == (("shop.*", "crm.person?"), ("shop.log",))
    assert _problems(needed | {"includeTables": "shop"}) == {
        "includeTables": "'shop' is not a pattern of <keyspace>.<table>, such as shop.* or shop.orders"
    }


def test_every_option_is_documented_with_its_default() -> None:
    """The table in docs/agent.md names exactly the options of the agent. DataStax's own options are named beside it."""
    document = (Path(__file__).parents[3] / "docs" / "agent.md").read_text(encoding="utf-8")
    section = document.split("## agent.yaml")[1].split("\n## ")[0]
    rows = [line for line in section.split("\n### ")[0].splitlines() if line.startswith("| `")]
    documented = {name: default for row in rows for name, default in _documented_defaults(row)}
    own = {str(field.alias): field for field in AgentConfig.model_fields.values()}
    assert documented.keys() == own.keys()
    assert {name: documented[name] for name, field in own.items() if field.is_required()} == {
        "cdcRawDirectory": "from `cassandraYaml`",
        "cdcWorkingDir": "required",
    }
    fixed = {
        name: _as_documented(field.default)
        for name, field in own.items()
        if not field.is_required() and field.default not in (None, ())
    }
    assert {name: documented[name] for name in fixed} == fixed
    for name in option_names():
        assert f"`{name}`" in section


def _documented_defaults(row: str) -> list[tuple[str, str]]:
    """Pairs of an option's name and its default, from a row of the table. Options of one row may have one default."""
    names = re.findall(r"`(\w+)`", row.split("|")[1])
    defaults = row.split("|")[2].strip().split(", ")
    return list(zip(names, defaults if len(defaults) == len(names) else defaults * len(names), strict=True))


def _as_documented(default: object) -> str:
    """The default as the table has it: text and addresses as code, 1 GiB with its unit, 0 with its meaning."""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, int):
        return {1 << 30: "1 GiB", 0: "0 (off)"}.get(default, str(default))
    return f"`{', '.join(default) if isinstance(default, tuple) else default}`"


def test_the_environment_fills_what_the_file_leaves_out(needed: dict[str, object]) -> None:
    """The variables have DataStax's names. The file takes precedence."""
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
    [
        ("a: [", "is not YAML (see line 1)"),
        ("- a\n", "must hold options by name"),
        (None, "cannot be read"),
        ("a: 2026-13-45", "is not YAML (a value in it is not of the type that it is written as"),
        ("a: !!int x", "is not YAML (a value"),
        ("a: !!timestamp x", "is not YAML (a value"),
        ("a: !!bool x", "is not YAML (a value"),
        ("a: !!float", "is not YAML (a value"),
        ("a: " + 1000 * "[", "is not YAML (it is nested too deeply)"),
    ],
)
def test_a_file_that_is_no_configuration_is_one_line(tmp_path: Path, content: str | None, reason: str) -> None:
    """The message begins with the path of the broken, foreign or missing file."""
    path = tmp_path / "agent.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=re.escape(reason)) as raised:
        AgentConfig.load(path, {})
    assert str(raised.value).startswith(str(path)) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("option", "folder"),
    [
        ("cdcWorkingDir", "{raw}/agent"),
        ("spillDir", "{raw}/spill"),
        ("archiveUrl", "{raw}/archive"),
        ("archiveUrl", "file://{raw}/archive"),
    ],
)
def test_the_agent_keeps_nothing_in_cdc_raw(needed: dict[str, object], option: str, folder: str) -> None:
    """Cassandra counts these files too, and would refuse writes because of them."""
    raw = needed["cdcRawDirectory"]
    path = folder.format(raw=raw)
    assert _problems(needed | {option: path}) == {
        option: f"{path.removeprefix('file://')} lies in cdcRawDirectory, where Cassandra counts it; take a folder"
        " elsewhere: stop the agent, move this one there with all its content (if it exists), and set"
        f" {option} to it (docs/upgrade.md)"
    }


@pytest.mark.parametrize("option", ["cdcWorkingDir", "spillDir", "archiveUrl"])
def test_cdc_raw_itself_is_not_the_agents_folder(needed: dict[str, object], option: str) -> None:
    """When the user moves the agent's files, Cassandra's segments must stay there."""
    raw = needed["cdcRawDirectory"]
    assert _problems(needed | {option: raw}) == {
        option: f"{raw} is cdcRawDirectory, where Cassandra counts it; take a folder elsewhere: stop the agent, move"
        f" everything there except Cassandra's segments in cdcRawDirectory, and set {option} to it (docs/upgrade.md)"
    }


@pytest.mark.parametrize("name", ["error", "reprocess", "held"])
def test_spilled_segments_are_not_kept_among_other_files(needed: dict[str, object], name: str) -> None:
    """The agent would delete a segment that was set aside, as one that was spilled and read."""
    path = f"{needed['cdcWorkingDir']}/{name}"
    assert _problems(needed | {"spillDir": path}) == {
        "spillDir": f"{path} is for other files of the agent; take another folder: stop the agent, move the segments"
        " without a .reason.json there, and set spillDir to it (docs/upgrade.md)"
    }


@pytest.mark.parametrize("name", ["spill", "error", "reprocess", "held"])
def test_cdc_raw_is_no_folder_of_the_agent(tmp_path: Path, name: str) -> None:
    """The default of spillDir would be the folder that the agent has to keep free."""
    raw = tmp_path / name
    raw.mkdir()
    assert _problems({"cdcRawDirectory": str(raw), "cdcWorkingDir": str(tmp_path)}) == {
        "cdcWorkingDir": f"cdcRawDirectory ({raw}) is one of the agent's own folders there; take a folder elsewhere:"
        " stop the agent, move everything there except Cassandra's segments in cdcRawDirectory, and set cdcWorkingDir"
        " to it (docs/upgrade.md)"
    }


@pytest.mark.parametrize("option", ["cdcRawDirectory", "cdcWorkingDir", "spillDir", "archiveUrl"])
def test_an_empty_folder_is_refused(needed: dict[str, object], option: str) -> None:
    """An empty path would mean the working directory of the process, which is often / for a service."""
    reason = _problems(needed | {option: ""})[option]
    assert reason.startswith("is empty; give a ")
    assert reason.endswith("leave the option out") == (option in {"spillDir", "archiveUrl"})


def test_a_cdc_raw_that_is_called_like_a_commit_log_is_taken_when_cassandra_yaml_names_it(tmp_path: Path) -> None:
    """Cassandra 3.11 writes no indexes there, by which the agent could tell the two apart."""
    raw, node = tmp_path / "cdc" / "commitlog", tmp_path / "cassandra.yaml"
    raw.mkdir(parents=True)
    (raw / "CommitLog-6-1.log").write_bytes(b"")
    options = {"cdcRawDirectory": str(raw), "cdcWorkingDir": str(tmp_path / "work")}
    assert "if the node's cdc_raw_directory has this name, set cassandraYaml" in _problems(options)["cdcRawDirectory"]
    node.write_text(f"cdc_enabled: true\ncommitlog_directory: {tmp_path}/log\ncdc_raw_directory: {raw}\n")
    config = AgentConfig.from_mapping(options | {"cassandraYaml": str(node)}, {})
    assert config.cdc_raw_directory == raw
    # Without this setting, the file does not say what the folder is.
    node.write_text(f"cdc_enabled: true\ncommitlog_directory: {tmp_path}/log\n")
    assert "is the node's commit log" in _problems(options | {"cassandraYaml": str(node)})["cdcRawDirectory"]


def test_a_folder_with_an_impossible_name_is_no_commit_log(tmp_path: Path) -> None:
    """The comparison with the node's commit log ended with a traceback."""
    node = tmp_path / "cassandra.yaml"
    node.write_text(f"cdc_enabled: true\ncommitlog_directory: {tmp_path}\n")
    options = {"cdcRawDirectory": "a\0b", "cdcWorkingDir": str(tmp_path / "work"), "cassandraYaml": str(node)}
    assert "is not a directory" in _problems(options)["cdcRawDirectory"]
