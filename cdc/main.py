"""The command line `cdc`: one group, one module of `cdc.commands` per subcommand, loaded when it is called.

Exit codes: 0 done, 1 failed, 2 wrong configuration or usage. A mistake of the user is one line an error, never a
traceback; `--debug` shows the traceback as well.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from importlib.metadata import version
from typing import Final

import click

from schemas.errors import CdcError, ConfigError

__all__ = ["cli", "main"]

# subcommand -> (module, attribute, help); a table, so that `cdc --help` imports no client library
_COMMANDS: Final = {
    "agent": ("cdc.commands.agent", "agent", "Read a node's cdc_raw and publish its changes."),
    "compile": ("cdc.commands.compile", "compile_decoder", "Compile the decoder and the row path, for speed."),
    "connector": ("cdc.commands.connector", "connector", "List a connector's dead letters, and send them again."),
    "decode": ("cdc.commands.decode", "decode", "Print what a commit log segment holds."),
    "demo": ("cdc.commands.demo", "demo", "Run the whole line on the sandbox and check every row."),
    "doctor": ("cdc.commands.doctor", "doctor", "Check every link of a line, and say what to do."),
    "faults": ("cdc.commands.faults", "faults", "Break every part on purpose, and prove that nothing was lost."),
    "parked": ("cdc.commands.parked", "parked", "List the mutations that an agent could not decode."),
    "sandbox": ("cdc.commands.sandbox", "sandbox", "Start real Cassandra and Pulsar servers without Docker."),
    "status": ("cdc.commands.status", "status", "Say how a whole line is, and what to do."),
    "spark": ("cdc.commands.spark", "spark", "Keep tables in a lakehouse by data topics."),
}


class _LazyGroup(click.Group):
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
    """Entry point of `cdc`: runs a command and turns errors into one line each and an exit code."""
    debug = "--debug" in sys.argv[1:]
    try:
        sys.exit(cli(standalone_mode=False) or 0)
    except click.exceptions.Abort:
        sys.exit("cdc: interrupted")
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "cdc"
        print(f"{command}: {error.format_message()} (`{command} --help` lists what there is)", file=sys.stderr)
        sys.exit(2)
    except click.ClickException as error:
        print(f"cdc: {error.format_message()}", file=sys.stderr)
        sys.exit(error.exit_code)
    except CdcError as error:
        if debug:
            traceback.print_exc()
        for line in str(error).splitlines():
            print(f"cdc: {line}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)


if __name__ == "__main__":
    main()
