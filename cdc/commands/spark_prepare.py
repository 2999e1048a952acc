"""`cdc spark prepare`: prepares this machine, so that Spark's commands start faster."""

from __future__ import annotations

from pathlib import Path

import click

from cdc.commands.spark_jars import cached_jars
from cdc.commands.spark_session import JARS_HELP
from schemas.errors import ConfigError

__all__ = ["prepare_command"]

_MIB = 1 << 20


@click.command(name="prepare")
@click.option("--jars", multiple=True, type=click.Path(path_type=Path, exists=True), help=JARS_HELP)
def prepare_command(*, jars: tuple[Path, ...]) -> None:
    """Fetch Spark's jars, and archive its classes: the other commands then start many seconds sooner.

    It takes a minute or two, and 200 MB of the cache folder. Run it again after an upgrade of Java, of PySpark or of this
    package. It serves commands with a local master, which is the default, and without a Spark configuration of your own.

    \b
    cdc spark prepare
    """
    from spark_bridge.jobs.class_archive import write_archive
    from spark_bridge.spark_line import HAS_ICEBERG, LINE

    used = jars or cached_jars(LINE, delta=True, iceberg=HAS_ICEBERG) or cached_jars(LINE, delta=True, iceberg=False)
    if not used:
        raise ConfigError.of("jars", f"those for Spark {LINE} are not there and Maven cannot fetch them; give --jars")
    click.echo("classes: archiving (a minute or two)", err=True)
    archive = write_archive(used)
    click.echo(f"classes: {archive.stat().st_size // _MIB} MiB in {archive}")
