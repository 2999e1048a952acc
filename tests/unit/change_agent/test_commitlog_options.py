"""The options of cassandra.yaml that reading commit logs needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from change_agent.configuration.commitlog_options import load_segment_options
from change_agent.configuration.config import AgentConfig
from schemas.errors import ConfigError
from tests.oracle.variants import STORE_PASSWORD, encryption

_KEY = "edde2c6146b4ef243b16d3da1a2ff9ab"


def _written(folder: Path, options: object) -> Path:
    path = folder / "options"
    path.write_text(json.dumps(options, indent=1))
    return path


def _encryption(**changes: object) -> dict[str, object]:
    """The options of tests/golden/key_stores/keys.jceks."""
    options = encryption("keys.jceks")["transparent_data_encryption_options"]
    assert isinstance(options, dict)
    return {"transparent_data_encryption_options": {**options, **changes}}


def _problem(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_segment_options(path, "--commitlog-options")
    assert STORE_PASSWORD not in f"{caught.value} {caught.value.__cause__!r}"
    return str(caught.value)


def test_keys_come_from_json_and_from_yaml(tmp_path: Path) -> None:
    """All other options of cassandra.yaml are ignored."""
    options = {**_encryption(), "cluster_name": "c", "commitlog_compression": [{"class_name": "LZ4Compressor"}]}
    path = _written(tmp_path, options)
    for text in (
        json.dumps(options, indent="\t"),
        yaml.safe_dump(options),
        yaml.safe_dump(options) + "\n# a comment\n",
    ):
        path.write_text(text)
        keys = load_segment_options(path, "x").keys
        assert keys is not None
        assert keys.secret_key("testing:1").hex() == _KEY


def test_a_file_without_these_options_changes_nothing(tmp_path: Path) -> None:
    """Compressed logs need no options."""
    options = load_segment_options(_written(tmp_path, {"cdc_enabled": True}), "x")
    assert (options.keys, options.max_segment_size) == (None, 256 << 20)


@pytest.mark.parametrize(
    ("setting", "size"),
    [
        ({"commitlog_segment_size": "512MiB"}, 512 << 20),
        ({"commitlog_segment_size": "1 GiB"}, 1 << 30),
        ({"commitlog_segment_size_in_mb": 1024}, 1 << 30),
        ({"commitlog_segment_size": "32MiB"}, 256 << 20),
    ],
)
def test_large_segments_are_read_when_the_node_has_them(tmp_path: Path, setting: object, size: int) -> None:
    """A small setting does not lower the limit, because older segments may be larger."""
    assert load_segment_options(_written(tmp_path, setting), "x").max_segment_size == size


def test_a_relative_key_store_is_found_beside_the_file_or_its_folder(tmp_path: Path) -> None:
    """`conf/.keystore`, as cassandra.yaml has it, is relative to the folder above `conf`."""
    store = Path(__file__).parents[2] / "golden" / "key_stores" / "keys.jceks"
    (tmp_path / "conf").mkdir()
    options = json.loads(json.dumps(_encryption()).replace(str(store), "conf/.keystore"))
    path = _written(tmp_path / "conf", options)
    assert "conf/conf/.keystore: the key store cannot be read (No such file or directory)" in _problem(path)
    (tmp_path / "conf" / ".keystore").write_bytes(store.read_bytes())
    keys = load_segment_options(path, "x").keys
    assert keys is not None
    assert keys.secret_key("testing:1").hex() == _KEY


def test_encryption_that_is_off_needs_no_key_store(tmp_path: Path) -> None:
    """cassandra.yaml has it off by default.

    If the key store is readable, older encrypted segments can still be read.
    """
    keys = load_segment_options(_written(tmp_path, _encryption(enabled=False)), "x").keys
    assert keys is not None
    assert keys.secret_key("testing:1").hex() == _KEY
    for provider in (
        None,
        [{"class_name": "com.example.Other", "parameters": [{"keystore": "x", "keystore_password": 1}]}],
    ):
        path = _written(tmp_path, _encryption(enabled=False, key_provider=provider))
        assert load_segment_options(path, "x").keys is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"key_provider": None}, "key_provider is missing; set it as the node has it"),
        (
            {
                "key_provider": [
                    {"class_name": "com.example.Other", "parameters": [{"keystore": "x", "keystore_password": 1}]}
                ]
            },
            "key provider com.example.Other is not supported (JKSKeyProvider is)",
        ),
        ({"key_provider": [{"class_name": "JKSKeyProvider", "parameters": [{}]}]}, "keystore_password: field required"),
        ({"enabled": "perhaps"}, "enabled: input should be a valid boolean"),
    ],
)
def test_wrong_options_are_told(tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    """The message names the option and the place in the file."""
    path = _written(tmp_path, _encryption(**changes))
    problem = _problem(path)
    assert reason in problem
    assert problem.startswith(f"--commitlog-options: {path}: ")


def test_a_wrong_password_is_told_at_the_start(tmp_path: Path) -> None:
    """One line names the key store, and does not show the password."""
    text = json.dumps(_encryption()).replace(STORE_PASSWORD, "another-secret")
    path = tmp_path / "options"
    path.write_text(text)
    problem = _problem(path)
    assert problem.endswith("keys.jceks: the password is wrong, or the file is damaged")
    assert "another-secret" not in problem


@pytest.mark.parametrize("content", ["{", "a: [", "[1]", "", "text", "{1: 2}", "\0"])
def test_a_file_that_holds_no_options_is_refused(tmp_path: Path, content: str) -> None:
    """The message does not show the content of the file."""
    path = tmp_path / "options"
    path.write_text(content)
    assert str(path) in _problem(path)


def _agent_options(folder: Path, **options: object) -> dict[str, object]:
    (folder / "cdc_raw").mkdir(exist_ok=True)
    return {"cdcRawDirectory": str(folder / "cdc_raw"), "cdcWorkingDir": str(folder / "work"), **options}


def test_an_agent_takes_the_keys_from_cassandra_yaml(tmp_path: Path) -> None:
    """They come from the file of `commitlogOptions` instead if that option is set."""
    node = _written(tmp_path, {"cdc_enabled": True, **_encryption()})
    config = AgentConfig.from_mapping(_agent_options(tmp_path, cassandraYaml=str(node)), {})
    assert config.segment_options.keys is not None
    assert config.segment_options.keys.secret_key("testing:1").hex() == _KEY
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"commitlog_segment_size": "512MiB"}))
    both = _agent_options(tmp_path, cassandraYaml=str(node), commitlogOptions=str(other))
    config = AgentConfig.from_mapping(both, {})
    assert (config.segment_options.keys, config.segment_options.max_segment_size) == (None, 512 << 20)
    assert AgentConfig.from_mapping(_agent_options(tmp_path), {}).segment_options.keys is None


@pytest.mark.parametrize("option", ["cassandraYaml", "commitlogOptions"])
@pytest.mark.parametrize(
    "line", ["keystore_password: *hidden", 'keystore_password: "hidden', "keystore_password: @hidden"]
)
def test_a_broken_file_is_told_without_what_it_holds(tmp_path: Path, option: str, line: str) -> None:
    """The parser's own message would quote the line."""
    path = tmp_path / "broken.yaml"
    path.write_text(f"a: 1\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        AgentConfig.from_mapping(_agent_options(tmp_path, **{option: str(path)}), {})
    assert [problem.option for problem in caught.value.problems] == [option]
    assert "hidden" not in str(caught.value)
    with pytest.raises(ConfigError) as of_agent:
        AgentConfig.load(path, {})
    assert "hidden" not in f"{of_agent.value} {of_agent.value.__cause__!r}"


def test_an_agent_tells_wrong_keys_with_all_other_problems(tmp_path: Path) -> None:
    """All problems are reported at once, each under its option."""
    options = _agent_options(tmp_path, commitlogOptions=str(tmp_path / "nothing"), port=0)
    with pytest.raises(ConfigError) as caught:
        AgentConfig.from_mapping(options, {})
    assert [problem.option for problem in caught.value.problems] == ["commitlogOptions", "port"]
