"""The options of a sandbox, and the Cassandra settings that follow from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.sandbox import SandboxOptions
from cdc.sandbox.addresses import CassandraPorts
from cdc.sandbox.cassandra_config import initial_token, jvm_options, node_settings, write_configuration
from schemas.errors import ConfigError

_PORTS = CassandraPorts(native=9042, storage=7000, jolokia=8778)


def test_all_wrong_options_are_reported_at_once() -> None:
    """A user can correct all options at once."""
    with pytest.raises(ConfigError) as error:
        SandboxOptions(
            cassandra="6.0",
            nodes=51,
            waiting_nodes=1,
            data_centers=["west"],
            commitlog_sync_ms=0,
            commitlog_segment_mb=0,
        )
    assert str(error.value).splitlines() == [
        "cassandra: '6.0' is not one of 5.0, 4.1, 4.0, 3.11",
        "nodes: 51 is not between 0 and 50",
        "waiting_nodes: 1 cannot join 51 nodes; there are 50 at most",
        "data_centers: 1 names for 52 nodes",
        "commitlog_sync_ms: 0 is not between 1 and 600000 milliseconds",
        "commitlog_segment_mb: 0 is not between 1 and 1024 MiB",
    ]


def test_a_sandbox_without_any_server_is_refused() -> None:
    """Such a sandbox would have no use."""
    with pytest.raises(ConfigError, match="leave nothing to start"):
        SandboxOptions(nodes=0, pulsar=False)


@pytest.mark.parametrize(
    ("node", "nodes", "token"),
    [
        (1, 1, -9223372036854775808),
        (1, 2, -9223372036854775808),
        (2, 2, 0),
        (2, 3, -3074457345618258603),
        (3, 3, 3074457345618258602),
        (3, 2, -4611686018427387904),  # one that joins halves the part of the first
    ],
)
def test_tokens_part_the_ring_evenly(node: int, nodes: int, token: int) -> None:
    """All nodes own equal parts of the ring."""
    assert initial_token(node, nodes) == token


def _settings(options: SandboxOptions) -> dict[str, object]:
    return dict(
        node_settings(
            Path("/s/cassandra-2"), address="127.7.7.2", seed="127.7.7.1", ports=_PORTS, token=0, options=options
        )
    )


def test_a_node_writes_cdc_raw_and_syncs_as_told() -> None:
    """The change agent depends on these settings."""
    settings = _settings(SandboxOptions(commitlog_sync_ms=50, commitlog_segment_mb=2))
    assert settings["cdc_enabled"] is True
    assert settings["cdc_raw_directory"] == "/s/cassandra-2/cdc_raw"
    assert settings["commitlog_sync"] == "periodic"
    assert settings["commitlog_sync_period_in_ms"] == 50
    assert settings["commitlog_segment_size_in_mb"] == 2


def test_a_node_that_joins_takes_its_data_from_the_others() -> None:
    """The first nodes must not bootstrap, because no node has data then."""
    assert _settings(SandboxOptions())["auto_bootstrap"] is False
    joins = node_settings(
        Path("/s/cassandra-3"),
        address="127.7.7.3",
        seed="127.7.7.1",
        ports=_PORTS,
        token=1,
        options=SandboxOptions(nodes=2, waiting_nodes=1),
        joins=True,
    )
    assert joins["auto_bootstrap"] is True


@pytest.mark.parametrize(("joins", "delay_ms"), [(False, 0), (True, 10_000)])
def test_a_node_that_joins_gives_its_seeds_time_to_answer(joins: bool, delay_ms: int) -> None:
    """Without the delay, it refuses to start on a busy machine, because it reaches no seed in time."""
    options = jvm_options(Path("/s/cassandra-3"), heap_mb=384, jamm=Path("/jamm.jar"), joins=joins)
    assert [each for each in options if "ring_delay_ms" in each] == [f"-Dcassandra.ring_delay_ms={delay_ms}"]


def test_data_centres_come_from_a_file_beside_the_configuration(tmp_path: Path) -> None:
    """The snitch reads the file from the class path."""
    options = SandboxOptions(nodes=2, data_centers=["west", "east"])
    assert _settings(options)["endpoint_snitch"] == "GossipingPropertyFileSnitch"
    write_configuration(tmp_path, {}, "east")
    assert (tmp_path / "conf" / "cassandra-rackdc.properties").read_text() == "dc=east\nrack=rack1\n"


def test_a_node_listens_on_its_own_loopback_address_only() -> None:
    """Other machines must not reach a sandbox."""
    settings = _settings(SandboxOptions())
    assert (settings["listen_address"], settings["rpc_address"]) == ("127.7.7.2", "127.7.7.2")
    assert settings["seed_provider"] == [
        {"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": [{"seeds": "127.7.7.1"}]}
    ]


def test_the_users_settings_win_and_none_removes_one() -> None:
    """Tests of special commit logs need other settings than the default ones."""
    options = SandboxOptions(cassandra_settings={"cdc_total_space_in_mb": 64, "commitlog_sync": None})
    settings = _settings(options)
    assert settings["cdc_total_space_in_mb"] == 64
    assert "commitlog_sync" not in settings


def test_only_3_11_is_told_to_do_without_thrift() -> None:
    """Later versions refuse this setting."""
    assert _settings(SandboxOptions(cassandra="3.11"))["start_rpc"] is False
    assert "start_rpc" not in _settings(SandboxOptions(cassandra="4.0"))
