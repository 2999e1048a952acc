"""The command line `cdc`: a group whose subcommands are modules of `cdc.commands`, imported when they are called.

Exit codes: 0 done, 1 failed, 2 wrong configuration or usage, 130 ended by Ctrl-C. A user's mistake is reported in one line for each error,
without a traceback; `--debug` shows the traceback as well.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from importlib.metadata import version
from typing import Final, NoReturn

import click

from cdc.helpful_group import HelpfulGroup
from schemas.errors import CdcError, ConfigError

__all__ = ["cli", "main", "run"]

# subcommand -> (module, attribute, help); a table, so that `cdc --help` imports no client library
_COMMANDS: Final = {
    "agent": ("cdc.commands.agent", "agent", "Read a node's cdc_raw and publish its changes."),
    "compile": (
        "cdc.commands.compile",
        "compile_decoder",
        "Compile the decoder and the connector's row path, for speed.",
    ),
    "connector": ("cdc.commands.connector", "connector", "List and resend dead letters; restart sources."),
    "decode": ("cdc.commands.decode", "decode", "Print the content of commit log segments."),
    "demo": ("cdc.commands.demo", "demo", "Run the whole pipeline on the sandbox and compare every row."),
    "doctor": ("cdc.commands.doctor", "doctor", "Check every connection and setting, with remedies."),
    "nar": ("cdc.commands.nar", "nar", "Build the connector's archive for Pulsar."),
    "parked": ("cdc.commands.parked", "parked", "List the mutations that an agent could not decode."),
    "resend": ("cdc.commands.trace", "resend", "Publish one row once more."),
    "sandbox": ("cdc.commands.sandbox", "sandbox", "Start real Cassandra and Pulsar servers without Docker."),
    "resolved": ("cdc.commands.resolved", "resolved", "Show until when each table is complete."),
    "status": ("cdc.commands.status", "status", "Show the state of the whole pipeline, with remedies."),
    "spark": ("cdc.commands.spark", "spark", "Keep lakehouse tables, and compare them with Cassandra."),
    "trace": ("cdc.commands.trace", "trace", "Show where the changes of one row went."),
}

_OF_SPARK: Final = ("pyspark", "py4j", "pandas", "pyarrow")


class _LazyGroup(HelpfulGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][2]) for name in self.list_commands(ctx)])


# 128 and the number of SIGINT, as in shells.
_CTRL_C: Final = 130


def _print_version(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        from change_agent.decoder import running

        click.echo(f"cdc {version('cassandra-cdc')}, decoder: {running().description}")
        ctx.exit()


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
@click.option("--debug", is_flag=True, help="Show a traceback with errors.")
def cli(debug: bool) -> None:
    """Change data capture for Apache Cassandra, through Apache Pulsar, into Spark."""


def main() -> None:
    """Entry point of `cdc`."""
    run(cli, "cdc")


def run(command: click.Command, name: str) -> NoReturn:
    """Run a command, and end the process with its exit code. Expected errors are printed in one line each."""
    debug = "--debug" in sys.argv[1:]
    try:
        sys.exit(command(prog_name=name, standalone_mode=False) or 0)
    except click.exceptions.Abort as error:
        print(f"{name}: interrupted", file=sys.stderr)
        # Ctrl-C has its usual exit code: 1 has a meaning of its own, such as rows that differ for `cdc spark verify`.
        sys.exit(_CTRL_C if isinstance(error.__cause__, KeyboardInterrupt) else 1)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else name
        print(f"{path}: {error.format_message()} (`{path} --help` lists what there is)", file=sys.stderr)
        sys.exit(2)
    except click.ClickException as error:
        print(f"{name}: {error.format_message()}", file=sys.stderr)
        sys.exit(error.exit_code)
    except CdcError as error:
        if debug:
            traceback.print_exc()
        for line in str(error).splitlines():
            print(f"{name}: {line}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OF_SPARK:
            raise
        if debug:
            traceback.print_exc()
        print(f"{name}: {error.name} is not installed; pip install 'cassandra-cdc[spark]'", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        if not _is_from_outside(error):
            raise
        if debug:
            traceback.print_exc()
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"{name}: {reason} (`{name} --debug` shows where)", file=sys.stderr)
        sys.exit(1)


def _is_from_outside(error: Exception) -> bool:
    """Return True for an error of files or of Pulsar that no command handles.

    Pulsar's errors are known by the name of their module, because its client may not be imported.
    """
    return isinstance(error, OSError) or type(error).__module__ == "_pulsar"


if __name__ == "__main__":
    main()
