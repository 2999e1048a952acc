"""A Spark session that can read data topics: this interpreter in the workers, spark-avro on the class path."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from spark_bridge.spark_home import prepared_jars, spark_home
from spark_bridge.spark_line import error_condition, iceberg_jar, line_jars

__all__ = ["SMALL_RUNS", "session_builder"]

SMALL_RUNS: Final = {
    # The number of tasks in which Delta reads a table's log. Its default of 50 is for logs of millions of files, and
    # costs more than a merge. Each task generates the code of its expressions again: with one task, a micro-batch takes
    # a fifth less CPU than with two.
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""Settings for small runs. A mirror applies them to its micro-batches unless the session sets them itself."""

_JARS: Final = "spark.jars"
_PACKAGES: Final = "spark.jars.packages"
_JVM_OPTIONS: Final = "spark.driver.defaultJavaOptions"
_USERS_JVM_OPTIONS: Final = "spark.driver.extraJavaOptions"
_WRITES_ARCHIVE: Final = "-XX:ArchiveClassesAtExit"
_DAEMON: Final = "spark.python.daemon.module"
_WARNS_OF_PLANS: Final = "org.apache.spark.sql.catalyst.util.StringUtils"
_SETTINGS: Final = {
    **SMALL_RUNS,
    # The number of pieces of compiled code that Spark keeps. A micro-batch of a mirror has more than the default of
    # 100, so the next micro-batch would compile all of them again.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # Otherwise, PySpark sends the JVM the line of Python of each column function. This would be most of the traffic
    # between the two while a mirror plans a micro-batch.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Limits of earlier queries in Spark's user interface: a mirror that follows its topic has thousands, with long
    # plans.
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "100",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.streaming.ui.retainedQueries": "10",
    "spark.sql.maxPlanStringLength": "10000",
}


_NOT_FETCHED: Final = (
    "Spark's Java ended before it was ready. If the lines above end in `unresolved dependency` or `FAILED DOWNLOADS`, Spark "
    "could not fetch its packages: run `cdc spark prepare` once, or give the files with session_builder(jars=[...])."
)


class _Builder(SparkSession.Builder):
    """A builder that starts the JVM of a local master with a Spark home for this interpreter and these jars.

    With another master, Spark itself sends jars and PySpark to executors, from its own home. `packages`: the packages
    that Spark fetches, unless `cdc spark prepare` has fetched their jars.
    """

    def __init__(self, jars: Sequence[Path], packages: Sequence[str] = ()) -> None:
        super().__init__()
        self._jars = jars
        self._packages = packages
        if packages:
            self.config(_PACKAGES, ",".join(packages))

    def getOrCreate(self) -> SparkSession:  # noqa: N802  (PySpark's name)
        settings = self._options
        master = settings.get("spark.master", "local")  # Spark's own default is `local[*]`
        if "spark.remote" in settings:
            return super().getOrCreate()
        if not (master == "local" or master.startswith("local[")):
            return _without_warnings_of_plans(super().getOrCreate())
        given = dict(settings)
        jars = self._jars or self._prepared(settings)
        if jars and not self._jars:
            del settings[_PACKAGES]
            settings[_JARS] = _jar_list(jars)
        # Jars that use each other need one class loader: that of the home, or that of Spark's settings.
        are_alone = settings.get(_JARS) == _jar_list(jars) and _PACKAGES not in settings
        try:
            settings.setdefault(_DAEMON, "spark_bridge.worker_daemon")
            with spark_home(jars if are_alone else ()) as home:
                if home is not None and are_alone:
                    del settings[_JARS]
                if (
                    home is not None
                    and home.jvm_options
                    and _WRITES_ARCHIVE not in settings.get(_USERS_JVM_OPTIONS, "")
                ):
                    settings[_JVM_OPTIONS] = " ".join([*filter(None, [settings.get(_JVM_OPTIONS)]), *home.jvm_options])
                return _without_warnings_of_plans(super().getOrCreate())
        except PySparkRuntimeError as error:
            if _PACKAGES in settings and error_condition(error) == "JAVA_GATEWAY_EXITED":
                error.add_note(_NOT_FETCHED)
            raise
        finally:
            settings.clear()  # the builder may be used again
            settings.update(given)

    def _prepared(self, settings: Mapping[str, str]) -> tuple[Path, ...]:
        """The jars to use instead of the packages; empty if there are none, or the user has set other jars."""
        if not self._packages or _JARS in settings or settings.get(_PACKAGES) != ",".join(self._packages):
            return ()
        return prepared_jars([_file_name(each) for each in self._packages])


def _without_warnings_of_plans(session: SparkSession) -> SparkSession:
    """The same session. Spark no longer warns of each plan whose text `spark.sql.maxPlanStringLength` has cut."""
    log4j = session.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]  # noqa: SLF001  # it has one
    log4j.core.config.Configurator.setLevel(_WARNS_OF_PLANS, log4j.Level.ERROR)
    return session


def _file_name(package: str) -> str:
    """The file name of a package's jar in Maven's form."""
    _, artifact, version = package.split(":")
    return f"{artifact}-{version}.jar"


def _jar_list(jars: Sequence[Path]) -> str:
    return ",".join(map(str, jars))


def session_builder(jars: Sequence[Path] = (), *, delta: bool = False, iceberg: bool = False) -> SparkSession.Builder:
    """A builder of sessions. The application may add settings to it, and replace those made here.

    `jars`: local files of spark-avro (and of Delta Lake, Iceberg; on PySpark 3.5 of the pulsar-spark connector).
    Without them, a local session uses those of `cdc spark prepare`, with its archive of classes. If there are none, or
    Spark is configured elsewhere, Spark fetches the jars from Maven Central at its start (Ivy). `delta`: with Delta
    Lake, for the jobs. `iceberg`: with Apache Iceberg, for jobs that keep Iceberg tables. Workers use the running
    interpreter unless PYSPARK_PYTHON names another one; they also need this package, pulsar-client and pyarrow. Raises
    ConfigError if this line of Spark has no such jars.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    packages = () if jars else _packages(delta=delta, iceberg=iceberg)
    builder = _Builder([Path(each) for each in jars], packages).appName("cassandra-cdc")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    if delta:
        builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension").config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
    return builder.config(_JARS, _jar_list(jars)) if jars else builder


def _packages(*, delta: bool, iceberg: bool) -> list[str]:
    known = line_jars()
    return [
        known.spark_avro,
        *([known.delta] if delta else []),
        *([iceberg_jar()] if iceberg else []),
        *([known.connector] if known.connector else []),
    ]
