"""Commands, configurations and links in the documents: the programs accept them, and their targets exist."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
import yaml

from cdc.main import cli
from change_agent.configuration.config import AgentConfig
from schemas.cql_type import NATIVE_TYPE_NAMES
from schemas.row_record import data_value_schema, schema_text
from source_connector.configuration.config import SourceConfig
from source_connector.configuration.datastax_options import IDLE_OPTIONS
from source_connector.configuration.secret_options import FILE_OPTIONS
from tests.cql.tables import table_of
from tests.fuzz.names import NAMES
from tests.tools.document_commands import DOCUMENTS, ROOT, block_commands, blocks, inline_commands, message_commands

_MAKE_TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _of(program: str) -> list[str]:
    return [command for command in block_commands() if command.split()[0] == program]


@pytest.mark.parametrize("command", _of("cdc"))
def test_a_cdc_command_is_one_that_there_is(command: str) -> None:
    """The subcommands and options are parsed; the command is not run."""
    _check_cdc(command, is_whole=True)


@pytest.mark.parametrize("command", sorted({*inline_commands("cdc"), *message_commands("cdc")}))
def test_a_cdc_command_within_a_sentence_is_one_that_there_is(command: str) -> None:
    """The commands are in documents and in messages of the programs. `start | stop` stands for two commands."""
    first, *others = command.split(" | ")
    if first in {"cdc = true", "cdc = false"}:  # an option of a table
        return
    stem, _, last = first.rpartition(" ")
    for each in [first, *(f"{stem} {other}" for other in others)]:
        _check_cdc(each, is_whole=False)
    assert last


def _check_cdc(command: str, *, is_whole: bool) -> None:
    """Without `is_whole`, arguments and values of options may be missing."""
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
        if words[1:] == ["--help"]:
            words = []
        if not words or words == ["COMMAND"]:
            return
        found = command_of_words.get_command(context, words.pop(0))
        assert found is not None, command
        command_of_words, context = found, click.Context(found, info_name=found.name, parent=context)
    if is_whole:
        _check_options(command_of_words, words, context)
    else:
        options = {name for each in command_of_words.params for name in (*each.opts, *each.secondary_opts)}
        assert {word for word in words if word.startswith("-")} <= {*options, "--help"}, command


def _check_options(command: click.Command, words: list[str], context: click.Context) -> None:
    values, rest, _ = command.make_parser(context).parse_args(list(words))
    assert rest == []
    for parameter in command.params:
        if parameter.required:
            assert values.get(parameter.name or ""), f"{parameter.name} is required"


@pytest.mark.parametrize("command", [*_of("make"), *inline_commands("make")])
def test_a_make_command_names_targets_that_there_are(command: str) -> None:
    """Each word that is not a variable is a target."""
    targets = [word for word in shlex.split(command, comments=True)[1:] if "=" not in word]
    assert targets
    assert set(targets) <= _MAKE_TARGETS


@pytest.mark.parametrize("command", [each for each in _of("pulsar-admin") if "--source-config" in each])
def test_a_connector_is_deployed_with_options_that_it_takes(command: str) -> None:
    """The JSON of `--source-config` is a complete and valid configuration."""
    words = shlex.split(command, comments=True)
    options = json.loads(words[words.index("--source-config") + 1])
    SourceConfig.from_mapping(options, {"getServiceUrl": "pulsar://broker:6650"})


@pytest.mark.parametrize("block", [block for _, block in blocks("yaml") if "cdcWorkingDir" in block])
def test_an_agent_file_is_one_that_the_agent_takes(block: str, tmp_path: Path) -> None:
    """The YAML is that of the documents, with folders that exist here."""
    options = yaml.safe_load(block)
    raw = tmp_path / "cdc_raw"
    raw.mkdir()
    node_file = tmp_path / "cassandra.yaml"
    node_file.write_text(json.dumps({"cdc_enabled": True, "cdc_raw_directory": str(raw)}))
    places = {"cdcRawDirectory": raw, "cassandraYaml": node_file, "cdcWorkingDir": tmp_path / "work"}
    options |= {name: str(place) for name, place in places.items() if name in options}
    AgentConfig.from_mapping(options, {})


@pytest.mark.parametrize("block", [block for _, block in blocks("python")])
def test_python_in_the_documents_compiles(block: str) -> None:
    """This finds at least typing errors."""
    indent = len(block) - len(block.lstrip(" "))
    compile("\n".join(line[indent:] for line in block.splitlines()), "document", "exec")


def test_the_documents_hold_commands_of_every_kind() -> None:
    """The tests above have commands to check."""
    assert all(map(_of, ("cdc", "make", "pulsar-admin")))
    assert all(map(inline_commands, ("cdc", "make", "pulsar-admin")))
    assert all(map(message_commands, ("cdc", "pulsar-admin")))


_CHECKED_ELSEWHERE = {"cdc", "make", "pulsar-admin"}
_OF_THE_SYSTEM = {"activate", "alias", "cargo", "cd", "install", "ln", "useradd"}
"""Commands of a shell, of cargo or of Debian. Only the folders of `cd` are checked."""


@pytest.mark.parametrize(
    "command",
    [each for each in block_commands() if each.split()[0] not in _CHECKED_ELSEWHERE],
    ids=lambda each: each[:60],
)
def test_what_another_command_names_is_there(command: str) -> None:
    """Files, services, extras, modules and tests exist.

    For an unknown program the test fails, and needs a new check.
    """
    words = [word for word in shlex.split(command, comments=True) if not re.fullmatch(r"[A-Z_]+=.*", word)]
    program = words[words[0] == "."].rpartition("/")[2]
    if program == "cdc":
        _check_cdc(shlex.join(["cdc", *words[1:]]), is_whole=True)
    elif program == "pip":
        _check_pip(words[1:])
    elif program == "systemctl":
        assert (ROOT / "deploy" / f"{words[-1]}.service").exists()
    elif program == "cp":
        assert not words[1].startswith("deploy/") or (ROOT / words[1]).exists()
        assert not words[1].endswith(".service") or (ROOT / "deploy" / words[1]).exists()
    elif program == "runuser":
        _check_cdc(shlex.join(words[words.index("--") + 1 :]), is_whole=True)
    elif program == "helm":
        assert f"{_PROJECT['name']}-{_PROJECT['version']}.tgz" in words
    elif program == "pytest":
        assert all(list(ROOT.glob(word)) for word in words[1:] if word.startswith("tests/"))
    elif program == "spark-submit":
        assert find_spec("cdc.spark_job") is not None
        _check_cdc(shlex.join(["cdc", "spark", *words[words.index("mirror") :]]), is_whole=False)
    elif program.startswith("python"):
        assert words[1:3] == ["-m", "venv"] or find_spec(words[2]) is not None
    else:
        assert program in _OF_THE_SYSTEM, program
        assert program != "cd" or (ROOT / words[1]).is_dir()


def _check_pip(words: list[str]) -> None:
    """Check that extras and lists of requirements exist, and that wheels have the project's name and version."""
    name = f"{_PROJECT['name'].replace('-', '_')}-{_PROJECT['version']}-"
    for word in words:
        if extra := re.fullmatch(r"\.\[(\w+)\]", word):
            assert extra[1] in _PROJECT["optional-dependencies"]
        assert not word.endswith(".whl") or word.startswith(name)
        assert not word.endswith(".lock") or (ROOT / word).exists()


_CONNECTOR = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("connector.md", "records.md"))


def _section(heading: str) -> str:
    """A section of the pages on the connector and its records, up to the next heading."""
    return re.split(r"^##+ ", _CONNECTOR.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def _first_cells(heading: str) -> list[str]:
    """The texts in backticks in the first column of a section's table."""
    rows = [line for line in _section(heading).splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]


def test_the_connectors_options_are_all_documented_and_none_else() -> None:
    """The first column of the table has all options of the model. Options without effect are listed after it."""
    options = [field.alias or name for name, field in SourceConfig.model_fields.items()]
    assert sorted(_first_cells("Options")) == sorted([*options, *FILE_OPTIONS])
    without_meaning = _section("Options").partition("Accepted without effect")[2].partition("Of the Java driver")[0]
    listed = set(re.findall(r"`([^`]+)`", without_meaning)) - {"auth.gssapi.*", "datastax-java-driver."}
    assert listed == {name for name in IDLE_OPTIONS if not name.startswith("auth.gssapi.")}


def test_the_connectors_types_are_all_documented() -> None:
    """Each native type of CQL has a row with the Avro type of the schema."""
    rows = [line.split("|")[1:3] for line in _section("Types").splitlines() if line.startswith("| `")]
    documented = {name: avro for names, avro in rows for name in re.findall(r"`([^`]+)`", names)}
    assert documented.keys() == NATIVE_TYPE_NAMES - {"varchar"}
    for name, text in documented.items():
        table = table_of({}, regular={"v": name})
        avro = json.loads(schema_text(data_value_schema(table)))["fields"][0]["type"][1]
        if isinstance(avro, dict) and avro["type"] == "record":
            assert f"record `{avro['name']}`" in text
            assert [field["name"] for field in avro["fields"]] == re.findall(r"`(\w+)`", text)[1:]
        elif isinstance(avro, dict):
            assert text.strip().startswith(f"`{avro['type']}` (`{avro['logicalType']}`")
        else:
            assert text.strip() == f"`{avro}`"


def _anchors(page: Path) -> set[str]:
    """The anchors of the page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_page_and_a_heading_that_there_are(page: Path) -> None:
    """Only relative links are checked."""
    text = re.sub(r"^[ ]*```.*?^[ ]*```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        place, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in _anchors(target), link


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    """Each page is listed once. docs/site_pages.py adds the pages of the root."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r": ([\w/-]+\.md)$", text, re.MULTILINE)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(listed) == sorted(pages | {"CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"})


def test_messages_in_the_runbook_are_those_of_the_programs() -> None:
    """Each text in backticks in the first column is part of a message in the code. `...` stands for variable parts."""
    folders = ("runtime", "clients", "schemas", "change_agent", "source_connector", "spark_bridge", "cdc")
    code = "".join(path.read_text(encoding="utf-8") for folder in folders for path in (ROOT / folder).rglob("*.py"))
    code = re.sub(r'"\s*\n\s*f?"', "", code)
    runbook = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8").partition("\n## Messages\n")[2]
    said = re.findall(r"^\| `([^`]+)` \|", runbook, re.MULTILINE)
    assert len(said) > 15
    for message in said:
        for part in message.split("..."):
            assert part.strip() in code, message


def test_a_second_terminal_has_the_environment() -> None:
    """In the quickstart, a new terminal has `cdc` on its PATH only after the environment is activated."""
    quickstart = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    after = quickstart.partition("In a second terminal")[2]
    commands = after.partition("```sh\n")[2].split()
    assert commands[:2] == [".", ".venv/bin/activate"]


def test_the_targets_of_fuzzing_are_all_documented() -> None:
    """The comment of the command has their number."""
    section = (
        (ROOT / "docs" / "testing.md").read_text(encoding="utf-8").split("## Fuzzing\n", 1)[1].split("\n## ", 1)[0]
    )
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert sorted(name for row in rows for name in re.findall(r"`([^`]+)`", row)) == sorted(NAMES)
    assert f"the {len(NAMES)} targets" in section
