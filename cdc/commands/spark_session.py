"""The session of a Spark command: its options, and the messages for Spark's errors."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from cdc.commands.spark_options import MORE_OPTIONS, Command, as_given, read_options, together
from schemas.errors import CdcError, ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JARS_HELP", "SESSION_OPTIONS", "SparkJob", "SparkJobError", "open_session", "spark_errors"]

# Java's first compiler alone. In runs of up to 200,000 records the second one takes more time than it saves
# (docs/spark.md).
_SHORT_RUN: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
JARS_HELP: Final = "A jar to use instead of packages; may be given many times."
_LOCAL: Final = "local[*]"
_MASTERS: Final = ("local[", "local-cluster[")


class SparkJobError(CdcError):
    """A Spark job ended with an error; the text is Spark's reason in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkJob:
    """The values of BROKER_OPTIONS and SESSION_OPTIONS."""

    service_url: str
    admin_url: str
    more: tuple[str, ...]
    jars: tuple[Path, ...]
    master: str | None

    def read_options(self, **others: str | None) -> dict[str, str]:
        """The data source's options for a batch read, with `others`. Raises ConfigError."""
        return read_options(self.service_url, self.admin_url, self.more, **others)

    @contextmanager
    def session(self, *, iceberg: bool = False, is_short: bool = False) -> Iterator[SparkSession]:
        """A session as of `open_session`, which is stopped at the end of the context. Errors as of `spark_errors`."""
        session = open_session(self.jars, self.master, iceberg=iceberg, is_short=is_short)
        try:
            with spark_errors():
                yield session
        finally:
            session.stop()


def _with_job(command: Command) -> Command:
    @wraps(command)
    def with_job(**given: Any) -> object:
        job = SparkJob(**{each.name: given.pop(each.name) for each in fields(SparkJob)})
        return command(job=job, **given)

    return with_job


def _checked_master(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """Refuse a text that no Spark takes. Spark's script would print a stack trace of Java."""
    if not text or text in ("local", "yarn") or text.startswith(_MASTERS) or "://" in text:
        return text
    raise ConfigError.of("--master", f"{text!r} is no master of Spark, such as local[2], spark://host:7077 or yarn")


SESSION_OPTIONS = together(
    MORE_OPTIONS,
    click.option("--jars", multiple=True, type=click.Path(path_type=Path, exists=True), help=JARS_HELP),
    click.option(
        "--master", callback=_checked_master, help="Spark's master; by default local[*], or that of spark-submit."
    ),
    _with_job,
)
"""For commands with BROKER_OPTIONS: the command gets the values of both as `job`."""


def open_session(
    jars: tuple[Path, ...], master: str | None, *, iceberg: bool = False, is_short: bool = False
) -> SparkSession:
    """A session with Delta Lake, and with Iceberg if `iceberg`. Raises SparkJobError.

    Under spark-submit, the default of `master` is the one that spark-submit has set. `is_short`: most runs of the
    command take less than a minute.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkRuntimeError

    from cdc.commands.spark_jars import cached_jars
    from cdc.commands.spark_log import log_options
    from spark_bridge import session_builder
    from spark_bridge.spark_home import configured_elsewhere
    from spark_bridge.spark_line import LINE

    is_submitted = "SPARK_ENV_LOADED" in os.environ  # spark-submit has set master and jars
    if not jars and not is_submitted:
        jars = cached_jars(LINE, delta=True, iceberg=iceberg)
    builder = session_builder(jars, delta=True, iceberg=iceberg).config("spark.ui.showConsoleProgress", "false")
    java_options = [] if is_submitted else [*log_options(master or _LOCAL)]
    if is_short and configured_elsewhere() is None:  # another configuration may have Java options, too
        java_options.append(_SHORT_RUN)
    if java_options:
        builder = builder.config("spark.driver.defaultJavaOptions", " ".join(java_options))
    if master or not is_submitted:
        builder = builder.master(master or _LOCAL)
    try:
        with _ctrl_c_without_tracebacks():
            session = builder.getOrCreate()
    except PySparkRuntimeError as error:
        java = os.environ.get("JAVA_HOME")
        where = f"JAVA_HOME is {java}" if java else "JAVA_HOME is not set"
        text = f"Spark's Java did not start ({where}); install a JDK 17, or set JAVA_HOME to one: {_reason_of(error)}"
        raise SparkJobError(text) from error
    except Py4JError as error:  # for example for an invalid master
        raise SparkJobError(_reason_of(error)) from error
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def _ctrl_c_without_tracebacks() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt and nothing else, in this context and after it. Where it was ignored, it stays so.

    PySpark sets a handler while a session starts. It asks Java to cancel all jobs, on the connection whose answer the
    interrupted call waits for. So that call ends with an error of py4j, and the command with a wrong reason.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    set_handler = signal.signal
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        set_handler(signal.SIGINT, _interrupt)

    def set_other(number: int, handler: object) -> object:
        if number == signal.SIGINT and callable(handler):
            return signal.getsignal(number)
        # PySpark lets Java ignore Ctrl-C, between fork and exec: that is no function.
        return set_handler(number, handler)  # type: ignore[arg-type]

    # Not set back afterwards instead: the session is not ready for some seconds after PySpark has set its handler.
    signal.signal = set_other  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.signal = set_handler


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    logging.disable(logging.CRITICAL)  # py4j logs a traceback for each call that does not return
    raise KeyboardInterrupt


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raise a SparkJobError for Spark's errors, and for Java's errors that PySpark passes on unchanged.

    A ConfigError of a job names the option of the command.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except ConfigError as error:
        raise as_given(error) from error
    except (PySparkException, Py4JError) as error:
        raise SparkJobError(_reason_of(error)) from error


def _reason_of(error: Exception) -> str:
    """One line with the reason: this project's own error in a Python traceback that Spark passes on, else Spark's or
    Java's first line.
    """
    from spark_bridge.errors import reason_of_spark

    return reason_of_spark(str(getattr(error, "java_exception", error)))
