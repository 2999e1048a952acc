"""The servers' files: pinned versions, and failures to fetch them."""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from cdc.main import cli
from cdc.sandbox import artifacts
from cdc.sandbox.errors import ArtifactError
from cdc.sandbox.prerequisites import java_home
from cdc.sandbox.versions import CASSANDRA_VERSIONS, PULSAR_VERSION
from schemas.errors import ConfigError

_POMS = Path(artifacts.__file__).parent / "poms"
_NAMESPACE = {"m": "http://maven.apache.org/POM/4.0.0"}


def _pinned(name: str) -> dict[str, str]:
    dependencies = ET.parse(_POMS / f"{name}.xml").getroot().iterfind("m:dependencies/m:dependency", _NAMESPACE)
    return {
        str(dependency.findtext("m:artifactId", None, _NAMESPACE)): str(
            dependency.findtext("m:version", None, _NAMESPACE)
        )
        for dependency in dependencies
    }


@pytest.mark.parametrize(
    ("line", "dependencies"),
    [
        ("5.0", {"cassandra-all": "5.0.9"}),
        ("4.1", {"cassandra-all": "4.1.10"}),
        ("4.0", {"cassandra-all": "4.0.18"}),
        ("3.11", {"cassandra-all": "3.11.19", "cassandra-thrift": "3.11.19"}),
    ],
)
def test_each_line_of_cassandra_is_pinned_to_the_release_that_it_is_called(
    line: str, dependencies: dict[str, str]
) -> None:
    """The version in the pom must equal the version that users are told."""
    assert _pinned(f"cassandra-{line}") == dependencies
    assert CASSANDRA_VERSIONS[line] == dependencies["cassandra-all"]


def test_pulsar_and_the_tools_are_pinned() -> None:
    """A change of a version must be deliberate, so it needs a change of this test."""
    assert _pinned("pulsar") == {"pulsar-server-distribution": "4.0.8"}
    assert PULSAR_VERSION == "4.0.8"
    assert _pinned("pulsar-io-jdbc-sqlite") == {"pulsar-io-jdbc-sqlite": PULSAR_VERSION}
    assert _pinned("jolokia") == {"jolokia-jvm": "1.7.2"}
    assert _pinned("spark-avro") == {"spark-avro_2.13": "4.1.1"}
    assert _pinned("spark-delta").pop("delta-spark_4.1_2.13") == "4.4.0"
    assert _pinned("spark-delta-4.2").pop("delta-spark_4.2_2.13") == "4.4.0"


def test_every_pom_is_an_artifact_set() -> None:
    """Every pom has a name, and every name has a pom."""
    assert sorted(pom.stem for pom in _POMS.iterdir()) == sorted(artifacts.ARTIFACT_SETS)


def test_an_unknown_artifact_set_is_refused_with_the_known_ones() -> None:
    """Maven is not called with a misspelled name."""
    with pytest.raises(ConfigError, match=r"'pulsr' is unknown; it is one of cassandra-5\.0, "):
        artifacts.ensure("pulsr")


def test_a_missing_maven_is_one_line_that_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first start needs Maven."""
    java_home()  # found while the PATH is still whole
    monkeypatch.setenv("CDC_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError) as error:
        artifacts.ensure("jolokia")
    assert str(error.value) == (
        "mvn: Maven fetches the servers and is not on the PATH; install it, e.g. `apt-get install maven`"
    )


def test_a_fetch_that_fails_leaves_nothing_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt starts from an empty folder. The message ends with Maven's reason."""
    program = tmp_path / "bin" / "mvn"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho '[ERROR] no route to host -> [Help 1]'\nexit 1\n")
    program.chmod(0o755)
    java_home()
    monkeypatch.setenv("CDC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{program.parent}:/bin:/usr/bin")
    with pytest.raises(ArtifactError, match=r"^Maven could not fetch jolokia: no route to host; check the network"):
        artifacts.ensure("jolokia")
    assert [path.name for path in (tmp_path / "cache" / "artifacts").iterdir() if path.is_dir()] == []


@pytest.fixture
def maven_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a `mvn` on the PATH that copies one file instead of jars. Return the file that counts its calls."""
    program = tmp_path / "bin" / "mvn"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\necho call >> "$0.calls"\nsleep 0.2\n'
        'for a in "$@"; do case $a in -DoutputDirectory=*) echo jar > "${a#*=}/a.jar";; esac; done\n'
    )
    program.chmod(0o755)
    java_home()
    monkeypatch.setenv("CDC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{program.parent}:/bin:/usr/bin")
    return program.parent / "mvn.calls"


def test_a_filled_cache_needs_no_maven(maven_calls: Path) -> None:
    """A second start needs no network."""
    first = artifacts.ensure("jolokia")
    second = artifacts.ensure("jolokia")
    assert first == second
    assert [path.name for path in first] == ["a.jar"]
    assert maven_calls.read_text() == "call\n"


def test_two_callers_fetch_a_set_once(maven_calls: Path) -> None:
    """The second caller waits for the first, and finds the files."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        first, second = pool.map(artifacts.ensure, ["jolokia", "jolokia"])
    assert first == second
    assert maven_calls.read_text() == "call\n"


def test_what_a_killed_fetch_left_is_removed_by_the_next(maven_calls: Path, tmp_path: Path) -> None:
    """Pulsar's archive has 240 MB, so left-over copies must be removed."""
    (jar,) = artifacts.ensure("jolokia")
    folder = jar.parent
    shutil.rmtree(folder)
    (folder.parent / f".{folder.name}-killed").mkdir()
    artifacts.ensure("jolokia")
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name, f"{folder.name}.lock"]


def test_fetch_downloads_what_the_cache_does_not_have(maven_calls: Path) -> None:
    """A first run of `make demo` downloads the servers while it compiles."""
    artifacts.ensure("pulsar")
    first = CliRunner().invoke(cli, ["sandbox", "fetch", "--cassandra", "4.0"])
    assert (first.exit_code, first.stdout) == (0, "cassandra-4.0, jolokia, pulsar, spark-avro: downloaded\n")
    assert first.stderr == ("cassandra-4.0, jolokia, spark-avro: downloading (once, some minutes on a slow network)\n")
    again = CliRunner().invoke(cli, ["sandbox", "fetch", "--cassandra", "4.0"])
    assert (again.exit_code, again.stdout, again.stderr) == (0, first.stdout, "")
    assert maven_calls.read_text() == "call\n" * 4
