"""Writes docs/reference and docs/schemas from the code: `python docs/make_reference.py`. A test makes them anew and compares."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import click
from click.testing import CliRunner
from pydantic import BaseModel

import schemas.record_properties
from cdc.health.line_config import LineConfig
from cdc.main import cli
from change_agent.configuration.config import AgentConfig, option_names
from change_agent.metrics import AgentMetrics
from change_agent.reporting.prometheus import MetricsPage
from source_connector.configuration.config import SourceConfig
from source_connector.configuration.datastax_options import IDLE_OPTIONS
from source_connector.configuration.secret_options import FILE_OPTIONS, SECRET_OPTIONS, variable_of
from source_connector.metrics import COUNTED, MEASURED

DOCS: Final = Path(__file__).parent
_MADE: Final = "<!-- Made by docs/make_reference.py; change the code, or the page that it takes the texts from. -->\n\n"
_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
# Of each kind of file: page that describes its options, model, name.
_PAGES: Final = {"agent": "agent.md", "source": "connector.md", "line": "status.md"}


def pages() -> dict[str, str]:
    """Path below docs -> content, of everything that is made."""
    return {
        "reference/commands.md": _commands(),
        "reference/options.md": _options(),
        "reference/metrics.md": _metrics(),
        "reference/record-properties.md": _properties(),
        **{f"schemas/{name}.schema.json": _json(schema) for name, schema in json_schemas().items()},
    }


def _json(content: object) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


# Commands.


def _commands() -> str:
    lines = ["# Commands\n\n", _MADE]
    lines.append("`cdc --help` and `cdc COMMAND --help` print the same. [Completion for shells](../cli.md).\n\n")
    for path in _walk(cli, ()):
        shown = CliRunner().invoke(cli, [*path, "--help"], prog_name="cdc", terminal_width=80, max_content_width=80)
        assert shown.exit_code == 0, shown.output
        text = "\n".join(line.rstrip() for line in shown.output.rstrip().splitlines())
        heading = "##" if len(path) < 2 else "###"
        lines.append(f"{heading} {' '.join(('cdc', *path))}\n\n```text\n{text}\n```\n\n")
    return "".join(lines).rstrip() + "\n"


def _walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path[-1] if path else "cdc")
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from _walk(found, (*path, name))


# Options.


def described(page: str) -> dict[str, str]:
    """Option -> meaning, from the tables of a page; options that share a row share its text."""
    found = {}
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        cells = [each.strip() for each in line.split("|")]
        if line.startswith("| `") and len(cells) == 5:
            for name in re.findall(r"`([^`]+)`", cells[1]):
                found.setdefault(name, cells[3])
    return found


def _options() -> str:
    environment = option_names()
    lines = [
        "# Options\n\n",
        _MADE,
        "Every option with its default and its limits. [agent.md](../agent.md), [connector.md](../connector.md) and"
        " [status.md](../status.md) describe them in their order. Editors complete and check these files with the"
        " schemas in [docs/schemas](../editors.md).\n\n",
    ]
    for title, name in (("agent.yaml", "agent"), ("Source configuration", "source"), ("line.yaml", "line")):
        schema = json_schemas()[name]
        lines.append(f"## {title}\n\n| option | type | default | environment |\n| --- | --- | --- | --- |\n")
        for option, field in _leaves(schema["properties"]):
            variable = environment.get(option, "") if name == "agent" else ""
            if name == "source" and option in SECRET_OPTIONS:
                variable = variable_of(option)
            default = "" if field.get("default") in (None, "", []) else f"`{_text(field['default'])}`"
            lines.append(f"| `{option}` | {_kind(field)} | {default} | {f'`{variable}`' if variable else ''} |\n")
        lines.append("\n")
    return "".join(lines).rstrip() + "\n"


def _leaves(properties: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, field in properties.items():
        if "x-nested" not in field:
            yield name, field


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _kind(field: Mapping[str, Any]) -> str:
    if "anyOf" in field:
        kinds = [_kind(each) for each in field["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in field:
        # YAML reads `off` as false.
        return ", ".join(f"`{each}`" for each in field["enum"] if not isinstance(each, bool))
    if "const" in field:
        return f"`{_text(field['const'])}`"
    limits = [f"from {field['minimum']}"] if "minimum" in field else []
    limits += [f"above {field['exclusiveMinimum']}"] if "exclusiveMinimum" in field else []
    limits += [f"to {field['maximum']}"] if "maximum" in field else []
    if "type" not in field:
        return "of DataStax's, any"
    names = {
        "object": "map",
        "integer": "whole number",
        "number": "number",
        "boolean": "true or false",
        "array": "list",
        "string": "text",
    }
    return " ".join([names[field["type"]], *limits])


# JSON schemas.


def json_schemas() -> dict[str, dict[str, Any]]:
    """Of agent.yaml, of a source's configuration, and of line.yaml."""
    agent = _schema("agent", "agent.yaml of cdc agent", AgentConfig)
    for option in set(option_names()) - set(agent["properties"]):
        agent["properties"][option] = {
            "deprecated": True,
            "description": "Of DataStax's agent; docs/agent.md says which have an effect",
        }
    agent["properties"] = dict(sorted(agent["properties"].items()))
    agent["required"] = ["cdcWorkingDir"]
    agent["anyOf"] = [{"required": ["cdcRawDirectory"]}, {"required": ["cassandraYaml"]}]
    source = _schema("source", "--source-config of a source", SourceConfig)
    for option in FILE_OPTIONS:
        source["properties"][option] = {"type": "string", "description": described("connector.md")[option]}
    for option in IDLE_OPTIONS:
        source["properties"].setdefault(option, {"deprecated": True, "description": "Accepted without effect"})
    source["patternProperties"] = {r"^datastax-java-driver\.": {}}
    source["properties"] = _with_nested(dict(sorted(source["properties"].items())))
    return {"agent": agent, "source": source, "line": _schema("line", "line.yaml of cdc status", LineConfig)}


def _schema(name: str, title: str, model: type[BaseModel]) -> dict[str, Any]:
    made = model.model_json_schema(by_alias=True)
    definitions, texts = made.get("$defs", {}), described(_PAGES[name])
    properties = {}
    for option, field in made["properties"].items():
        inner = {**field, **definitions[field["$ref"].rpartition("/")[2]]} if "$ref" in field else dict(field)
        properties[option] = _field(inner) | ({"description": texts[option]} if texts.get(option) else {})
    return {
        "$schema": _DRAFT,
        "title": title,
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _field(field: dict[str, Any]) -> dict[str, Any]:
    """As our validators take it: lists also as one text with commas, a port also as `off`, names in any case."""
    for name in ("$ref", "title", "description", "writeOnly"):
        field.pop(name, None)
    if field.get("format") in {"path", "password"}:
        field.pop("format")
    if "anyOf" in field:
        field["anyOf"] = [_field(dict(each)) for each in field["anyOf"]]
        if any(each.get("maximum") == 65535 for each in field["anyOf"]):
            field["anyOf"] += [{"enum": ["off", False]}]
    if field.get("type") == "array":
        default = {"default": field.pop("default")} if "default" in field else {}
        return {"anyOf": [field, {"type": "string"}], **default}
    return field


def _with_nested(properties: dict[str, Any]) -> dict[str, Any]:
    """Names with dots may be nested maps: each beginning of such a name is one."""
    for prefix in sorted({name.partition(".")[0] for name in properties if "." in name} - set(properties)):
        properties[prefix] = {
            "type": "object",
            "x-nested": True,
            "description": f"The options that begin with {prefix}.",
        }
    return properties


# Metrics.


def _metrics() -> str:
    kinds = {True: "gauge", False: "counter"}
    lines = [
        "# Metrics\n\n",
        _MADE,
        "Alarms on them are in the [runbook](../runbook.md).\n\n## Agents\n\n",
        "`/metrics` of each agent.\n\n| metric | kind | meaning |\n| --- | --- | --- |\n",
    ]
    texts = {f"cdc_agent_{each.name}": each.metadata for each in fields(AgentMetrics) if "help" in each.metadata}
    for family in MetricsPage(AgentMetrics(), dict).collect():
        is_counter = family.type == "counter"
        known = texts.get(family.name)
        kind = family.type if known is None else kinds[known["is_gauge"]]
        lines.append(f"| `{family.name}{'_total' if is_counter else ''}` | {kind} | {family.documentation} |\n")
    lines.append(
        '\n## Sources\n\nUser metrics of Pulsar: `pulsar_source_user_metric__sum{metric="..."}` of a counted metric is the'
        " total; of a measured metric, sum by count is the mean.\n\n| metric | kind | meaning |\n| --- | --- | --- |\n"
    )
    for kind, names in (("counted", COUNTED), ("measured", MEASURED)):
        lines += [f"| `{name}` | {kind} | {text} |\n" for name, text in names.items()]
    return "".join(lines)


# Properties of records.


def _properties() -> str:
    text = schemas.record_properties.__doc__ or ""
    lines = [
        "# Properties of a record\n\n",
        _MADE,
        text.partition("\n\n")[0] + "\n\n",
        "| property | meaning |\n| --- | --- |\n",
    ]
    rows: list[list[str]] = []
    for line in text.splitlines():
        found = re.fullmatch(r"    (\w+(?:, \w+)*) +(\S.*)| {4,}(\S.*)", line)
        if found is None:
            continue
        if found[1]:
            rows.append([found[1], found[2]])
        elif found[3] and rows and line.startswith(" " * 10):
            rows[-1][1] += f" {found[3]}"
        elif found[3]:
            names, _, meaning = found[3].partition("    ")
            rows.append([names.strip(), meaning.strip() or "as `range_start`"])
    lines += [f"| {', '.join(f'`{each}`' for each in names.split(', '))} | {meaning} |\n" for names, meaning in rows]
    return "".join(lines)


def main() -> None:
    """Write all of them; `--check`: only name those that differ, and end with 1 if there are any."""
    different = [name for name, content in pages().items() if not _is(DOCS / name, content)]
    for name in different:
        print(f"docs/{name} is not what the code says" if "--check" in sys.argv else f"docs/{name}", file=sys.stderr)
    if "--check" in sys.argv:
        sys.exit(bool(different))
    for name, content in pages().items():
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(content, encoding="utf-8")


def _is(path: Path, content: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == content


if __name__ == "__main__":
    main()
