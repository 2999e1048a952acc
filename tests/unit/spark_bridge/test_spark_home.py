"""The home with which Spark's JVM starts: links below the cache folder, and the location of its archive of classes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pyspark
import pytest
from pyspark.sql import SparkSession

from spark_bridge import session_builder
from spark_bridge.spark_home import SparkHome, spark_home
from spark_bridge.spark_line import HAS_ICEBERG, line_jars

SPARK_HOME = "SPARK_HOME"
MORE_JARS = "SPARK_DIST_CLASSPATH"
_ELSEWHERE = (MORE_JARS, "HADOOP_CONF_DIR", "MASTER", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "YARN_CONF_DIR")
_INSTALLED = Path(pyspark.__file__).parent


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and an environment that lets us choose the home."""
    for name in (SPARK_HOME, "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", *_ELSEWHERE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CDC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    """A jar beside Spark's own."""
    path = tmp_path / "beside.jar"
    path.write_bytes(b"PK")
    return path


def _home(*jars: Path) -> SparkHome:
    with spark_home(jars) as home:
        assert home is not None
        assert os.environ[SPARK_HOME] == str(home.folder)
        assert os.environ[MORE_JARS] == ":".join(str(each.absolute()) for each in jars)
    assert SPARK_HOME not in os.environ
    assert MORE_JARS not in os.environ
    return home


def test_it_has_sparks_scripts_and_jars_but_no_packed_pyspark(jar: Path) -> None:
    """The second call uses the existing home."""
    home = _home(jar)
    for name in ("jars", "bin/spark-submit"):
        assert (home.folder / name).samefile(_INSTALLED / name)
    assert not (home.folder / "python").exists()
    assert _home(jar) == home
    assert _home() != home


def test_sparks_own_scripts_start_java_with_it_and_with_the_jars_behind_sparks_own(jar: Path) -> None:
    """`spark-submit --version` in this home prints how it starts Java."""
    with spark_home([jar]) as home:
        assert home is not None
        command = [str(home.folder / "bin" / "spark-submit"), "--version"]
        environment = {**os.environ, "SPARK_PRINT_LAUNCH_COMMAND": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert f"{home.folder}/jars/*:{jar} " in done.stderr
    assert f"version {pyspark.__version__}" in done.stderr


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        (SPARK_HOME, "/opt/spark"),
        ("PYSPARK_PYTHON", "/usr/bin/python9"),
        ("PYSPARK_DRIVER_PYTHON", "ipython"),
        *((name, "...") for name in _ELSEWHERE),
    ],
)
def test_what_the_user_has_set_stays(variable: str, value: str, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Another interpreter may only have the packed PySpark; a configuration may have another master or Java options."""
    monkeypatch.setenv(variable, value)
    with spark_home(()) as home:
        assert home is None
        assert os.environ[variable] == value
    assert not cache.exists()


def test_the_running_interpreter_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own session builder names it, too."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    _home()


def test_a_cache_folder_that_cannot_be_made_changes_nothing(cache: Path) -> None:
    """Spark then starts as usual, only slower."""
    cache.write_text("a file")
    with spark_home(()) as home:
        assert home is None
        assert SPARK_HOME not in os.environ


def test_one_place_of_pyspark_has_one_archive(jar: Path) -> None:
    """An archive has 200 MB. The archive of another location stays, unless its PySpark is gone."""
    home = _home()
    place, state, jars = home.folder.name.split("-")
    removed, replaced, another = (
        home.folder.with_name(name)
        for name in (f"removed-{state}-{jars}", f"{place}-older-{jars}", f"another-{state}-{jars}")
    )
    for each in (removed, replaced, another):
        shutil.copytree(home.folder, each, symlinks=True)
    (removed / "bin").unlink()
    (removed / "bin").symlink_to("/nowhere")
    others = _home(jar)
    assert home.archive is not None
    for folder in (removed, replaced, another, others.folder):
        (folder / "classes-1.jsa").touch()
    home.archive.touch()
    (home.folder / "classes-older.jsa").touch()
    assert {each.parent for each in home.other_archives()} == {removed, replaced, home.folder, others.folder}
    assert home.archive not in home.other_archives()


def test_an_archive_belongs_to_one_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM gets the archive that was made for it."""
    home = _home()
    javas = [tmp_path / name / "bin" / "java" for name in ("a", "b")]
    for java in javas:
        java.parent.mkdir(parents=True)
        java.write_text("#!/bin/sh\n")
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "a"))
    archive = home.archive
    assert archive is not None
    assert home.jvm_options == ()
    archive.write_bytes(b"classes")
    assert f'"-XX:SharedArchiveFile={archive}"' in home.jvm_options
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "b"))
    assert home.jvm_options == ()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert home.archive is None
    assert home.jvm_options == ()


def test_a_jar_that_was_replaced_or_is_another_of_the_same_relative_path_has_another_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise Java would load the older jar, or find none."""
    homes = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.jar").write_bytes(b"PK")
        monkeypatch.chdir(tmp_path / name)
        homes.append(_home(Path("x.jar")))
    (tmp_path / "b" / "x.jar").write_bytes(b"PK2")
    homes.append(_home(Path("x.jar")))
    assert len({each.folder for each in homes}) == 3


def test_a_jar_that_is_missing_leaves_spark_to_itself(tmp_path: Path) -> None:
    """Spark itself then reports the error."""
    with spark_home([tmp_path / "missing.jar"]) as home:
        assert home is None


class _StartedError(Exception):
    """Spark would start now."""


def _started(builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The settings and the home with which the builder would start Spark."""
    found: dict[str, str] = {}

    def start(self: SparkSession.Builder) -> NoReturn:
        found.update(self._options, home=os.environ.get(SPARK_HOME, ""), jars=os.environ.get(MORE_JARS, ""))
        raise _StartedError

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", start)
    with pytest.raises(_StartedError):
        builder.getOrCreate()
    return found


def test_a_local_session_has_its_jars_in_the_home(jar: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings also have the user's Java options, and the archive if it exists."""
    builder = session_builder([jar]).master("local[2]").config("spark.driver.defaultJavaOptions", "-Dmine=1")
    started = _started(builder, monkeypatch)
    assert started["jars"] == str(jar)
    assert "spark.jars" not in started
    assert builder._options["spark.jars"] == str(jar)  # The builder may be used again.
    assert started["spark.driver.defaultJavaOptions"] == "-Dmine=1"
    archive = SparkHome(Path(started["home"])).archive
    assert archive is not None
    archive.write_bytes(b"classes")
    again = _started(session_builder([jar]).config("spark.driver.defaultJavaOptions", "-Dmine=1"), monkeypatch)
    assert again["spark.driver.defaultJavaOptions"].startswith(f'-Dmine=1 "-XX:SharedArchiveFile={archive}"')
    writes = session_builder([jar]).config("spark.driver.extraJavaOptions", "-XX:ArchiveClassesAtExit=/a")
    assert "spark.driver.defaultJavaOptions" not in _started(writes, monkeypatch)


@pytest.fixture
def prepared(tmp_path: Path, cache: Path) -> list[Path]:
    """The jars that `cdc spark prepare` has fetched and made an archive for."""
    coordinates = [
        each for each in (line_jars().spark_avro, line_jars().delta, line_jars().connector) if each is not None
    ]
    jars = [tmp_path / f"{'-'.join(each.split(':')[1:])}.jar" for each in coordinates]
    jars.append(tmp_path / "delta-storage-4.4.0.jar")
    for each in jars:
        each.write_bytes(b"PK")
    home = _home(*jars)
    home.note_jars(jars)
    assert home.archive is not None
    home.archive.write_bytes(b"classes")
    _home()  # The home of sessions without jars, which has no archive.
    return jars


@pytest.mark.parametrize("delta", [True, False])
def test_a_session_without_jars_uses_what_was_prepared(
    prepared: list[Path], monkeypatch: pytest.MonkeyPatch, delta: bool
) -> None:
    """Otherwise Spark fetches packages at each start, and Java loads all classes by itself."""
    builder = session_builder(delta=delta).master("local[2]")
    packages = builder._options["spark.jars.packages"]
    started = _started(builder, monkeypatch)
    assert started["jars"] == ":".join(map(str, prepared))
    assert not {"spark.jars", "spark.jars.packages"} & started.keys()
    archive = SparkHome(Path(started["home"])).archive
    assert f"SharedArchiveFile={archive}" in started["spark.driver.defaultJavaOptions"]
    assert builder._options["spark.jars.packages"] == packages


def test_what_was_prepared_is_not_used_when_it_does_not_fit(
    prepared: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another master, jars of the user's, a jar that is missing or was replaced, another configuration, no archive."""

    def is_used(builder: SparkSession.Builder) -> bool:
        packages = builder._options["spark.jars.packages"]
        started = _started(builder, monkeypatch)
        assert (started["jars"] == "") == (started.get("spark.jars.packages") == packages)
        return bool(started["jars"])

    assert is_used(session_builder())
    assert not is_used(session_builder().master("yarn"))
    assert not is_used(session_builder().config("spark.jars", "/mine.jar"))
    assert not is_used(session_builder().config("spark.jars.packages", "a:b:1"))
    if HAS_ICEBERG:
        assert not is_used(session_builder(iceberg=True))
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    assert not is_used(session_builder())
    monkeypatch.delenv("SPARK_CONF_DIR")
    prepared[-1].write_bytes(b"PK2")
    assert not is_used(session_builder())
    prepared[-1].unlink()
    assert not is_used(session_builder())
    prepared[-1].write_bytes(b"PK")
    home = _home(*prepared)
    home.note_jars(prepared)
    archive = home.archive
    assert archive is not None
    archive.write_bytes(b"classes")
    assert is_used(session_builder())
    (home.folder / "jars.json").write_text("{")
    assert not is_used(session_builder())
    home.note_jars(prepared)
    archive.unlink()
    assert not is_used(session_builder())


@pytest.mark.parametrize("master", ["spark://h:7077", "yarn", "local-cluster[2,1,1024]"])
def test_executors_elsewhere_get_their_jars_from_spark(master: str, jar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """YARN, for example, sends the packed PySpark of Spark's own home."""
    started = _started(session_builder([jar]).master(master), monkeypatch)
    assert (started["home"], started["spark.jars"]) == ("", str(jar))


@pytest.mark.parametrize("setting", [("spark.jars", "/mine.jar"), ("spark.jars.packages", "a:b:1")])
def test_with_jars_of_the_users_all_have_one_class_loader(
    setting: tuple[str, str], jar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is Spark's class loader, because classes of the home's jars would not see the user's jars."""
    started = _started(session_builder([jar]).master("local").config(*setting), monkeypatch)
    assert started["jars"] == ""
    assert started["spark.jars"] == ("/mine.jar" if setting[0] == "spark.jars" else str(jar))
    assert started[setting[0]] == setting[1]


def test_a_java_that_does_not_start_is_told_with_what_to_do_about_packages() -> None:
    """Ivy fails if Maven has left a package's description without its file: PySpark says only that Java has ended."""
    for given, is_told in (("", True), ("[Path('a.jar')]", False)):
        program = f"from pathlib import Path; import spark_bridge; spark_bridge.session_builder({given}).getOrCreate()"
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "JAVA_HOME": "/nowhere"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "JAVA_GATEWAY_EXITED" in done.stderr
        assert ("run `cdc spark prepare` once, or give the files" in done.stderr) == is_told
