"""What the documents tell a reader to type is understood by the programs: every block of every document."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import click
import pytest
import yaml

from cdc.main import cli
from change_agent.configuration.config import AgentConfig
from schemas.cql_type import NATIVE_TYPE_NAMES, NativeType
from schemas.row_record import data_value_schema, schema_text
from schemas.table_metadata import ColumnKind, ColumnMetadata, TableMetadata
from source_connector.configuration.config import SourceConfig
from source_connector.configuration.datastax_options import IDLE_OPTIONS
from source_connector.configuration.secret_options import FILE_OPTIONS

_ROOT = Path(__file__).parent.parent.parent
_DOCUMENTS = [_ROOT / "README.md", _ROOT / "CONTRIBUTING.md", *sorted((_ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^[ ]*```(\w+)\n(.*?)^[ ]*```", re.MULTILINE | re.DOTALL)
_MAKE_TARGETS = set(re.findall(r"^([a-z0-9-]+):", (_ROOT / "Makefile").read_text(), re.MULTILINE))


def _blocks(language: str) -> Iterator[tuple[str, str]]:
    for document in _DOCUMENTS:
        for found in _BLOCK.finditer(document.read_text(encoding="utf-8")):
            if found[1] == language:
                yield document.name, found[2]


def _commands() -> list[tuple[str, str]]:
    """Each command of the `sh` blocks, continuation lines joined."""
    commands = []
    for document, block in _blocks("sh"):
        for line in block.replace("\\\n", " ").splitlines():
            command = line.strip()
            if command and not command.startswith("#"):
                commands.append((document, command))
    return commands


def _of(program: str) -> list[str]:
    return sorted({command for _, command in _commands() if command.split()[0] == program})


@pytest.mark.parametrize("command", _of("cdc"))
def test_a_cdc_command_is_one_that_there_is(command: str) -> None:
    """Subcommands and options parse; nothing is run."""
    words = shlex.split(command, comments=True)[1:]
    if "|" in words:
        words = words[: words.index("|")]
    if ">" in words:
        words = words[: words.index(">")]
    command_of_words: click.Command = cli
    context = click.Context(cli, info_name="cdc")
    while isinstance(command_of_words, click.Group):
        if command_of_words.invoke_without_command and words and words[0].startswith("-"):
            break
        while words and words[0].startswith("-"):
            assert words.pop(0) in {"--help", "--version", "--debug"}
        if not words:
            return
        found = command_of_words.get_command(context, words.pop(0))
        assert found is not None
        command_of_words, context = found, click.Context(found, info_name=found.name, parent=context)
    _check_options(command_of_words, words, context)


def _check_options(command: click.Command, words: list[str], context: click.Context) -> None:
    values, rest, _ = command.make_parser(context).parse_args(list(words))
    assert rest == []
    for parameter in command.params:
        if parameter.required:
            assert values.get(parameter.name or ""), f"{parameter.name} is required"


@pytest.mark.parametrize("command", _of("make"))
def test_a_make_command_names_targets_that_there_are(command: str) -> None:
    """Each word that is no variable is a target."""
    targets = [word for word in shlex.split(command, comments=True)[1:] if "=" not in word]
    assert targets
    assert set(targets) <= _MAKE_TARGETS


@pytest.mark.parametrize("command", [each for each in _of("pulsar-admin") if "--source-config" in each])
def test_a_connector_is_deployed_with_options_that_it_takes(command: str) -> None:
    """The JSON of `--source-config` is a whole and right configuration."""
    words = shlex.split(command, comments=True)
    options = json.loads(words[words.index("--source-config") + 1])
    SourceConfig.from_mapping(options, {"getServiceUrl": "pulsar://broker:6650"})


@pytest.mark.parametrize("block", [block for _, block in _blocks("yaml") if "cdcWorkingDir" in block])
def test_an_agent_file_is_one_that_the_agent_takes(block: str, tmp_path: Path) -> None:
    """The YAML of the documents, with folders that exist here."""
    options = yaml.safe_load(block)
    raw = tmp_path / "cdc_raw"
    raw.mkdir()
    node_file = tmp_path / "cassandra.yaml"
    node_file.write_text(json.dumps({"cdc_enabled": True, "cdc_raw_directory": str(raw)}))
    places = {"cdcRawDirectory": raw, "cassandraYaml": node_file, "cdcWorkingDir": tmp_path / "work"}
    options |= {name: str(place) for name, place in places.items() if name in options}
    AgentConfig.from_mapping(options, {})


@pytest.mark.parametrize("block", [block for _, block in _blocks("python")])
def test_python_in_the_documents_compiles(block: str) -> None:
    """At least no typing error."""
    indent = len(block) - len(block.lstrip(" "))
    compile("\n".join(line[indent:] for line in block.splitlines()), "document", "exec")


def test_the_documents_hold_commands_of_every_kind() -> None:
    """The checks above have something to check."""
    programs = {command.split()[0] for _, command in _commands()}
    assert {"cdc", "make", "pulsar-admin"} <= programs


_CONNECTOR = (_ROOT / "docs" / "connector.md").read_text(encoding="utf-8")


def _section(heading: str) -> str:
    """A section of the connector's page, up to the next heading."""
    return re.split(r"^##+ ", _CONNECTOR.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def _first_cells(heading: str) -> list[str]:
    """What stands in backticks in the first column of a section's table."""
    rows = [line for line in _section(heading).splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]


def test_the_connectors_options_are_all_documented_and_none_else() -> None:
    """The table's first column is the model; what has no meaning is listed behind it."""
    options = [field.alias or name for name, field in SourceConfig.model_fields.items()]
    assert sorted(_first_cells("Options")) == sorted([*options, *FILE_OPTIONS])
    without_meaning = _section("Options").partition("Accepted without effect")[2].partition("Of the Java driver")[0]
    listed = set(re.findall(r"`([^`]+)`", without_meaning)) - {"auth.gssapi.*", "datastax-java-driver."}
    assert listed == {name for name in IDLE_OPTIONS if not name.startswith("auth.gssapi.")}


def test_the_connectors_types_are_all_documented() -> None:
    """Each native type of CQL has a row, with its Avro type as the schema has it."""
    rows = [line.split("|")[1:3] for line in _section("Types").splitlines() if line.startswith("| `")]
    documented = {name: avro for names, avro in rows for name in re.findall(r"`([^`]+)`", names)}
    assert documented.keys() == NATIVE_TYPE_NAMES - {"varchar"}
    for name, text in documented.items():
        column = ColumnMetadata(name="v", kind=ColumnKind.REGULAR, type=NativeType(name))
        table = TableMetadata(
            keyspace="ks", name="t", table_id=UUID(int=1), partition_key=(), clustering_key=(), static_columns=(),
            regular_columns=(column,),
        )  # fmt: skip
        avro = json.loads(schema_text(data_value_schema(table)))["fields"][0]["type"][1]
        if isinstance(avro, dict) and avro["type"] == "record":
            assert f"record `{avro['name']}`" in text
            assert [field["name"] for field in avro["fields"]] == re.findall(r"`(\w+)`", text)[1:]
        elif isinstance(avro, dict):
            assert text.strip().startswith(f"`{avro['type']}` (`{avro['logicalType']}`")
        else:
            assert text.strip() == f"`{avro}`"
