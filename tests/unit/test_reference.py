"""docs/reference and docs/schemas match the code, and the schemas accept what the programs accept."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml

from cdc.health.line_config import LineConfig
from change_agent.configuration.config import option_names
from source_connector.configuration.config import SourceConfig

_DOCS: Final = Path(__file__).parent.parent.parent / "docs"
_BLOCK: Final = re.compile(r"^[ ]*```(?:yaml)\n(.*?)^[ ]*```", re.MULTILINE | re.DOTALL)


def test_the_reference_is_what_its_code_makes() -> None:
    """`make reference` writes it again.

    The check needs its own process, because click remembers the first help request.
    """
    command = [sys.executable, str(_DOCS / "make_reference.py"), "--check"]
    environment = {**os.environ, "PYTHONPATH": str(_DOCS.parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def _schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_DOCS / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(found)
    return found


def _agent_files() -> Iterator[str]:
    for page in (*_DOCS.glob("*.md"), _DOCS.parent / "README.md"):
        for block in _BLOCK.findall(page.read_text(encoding="utf-8")):
            if "cdcWorkingDir" in block:
                yield block


@pytest.mark.parametrize("block", list(_agent_files()))
def test_the_schema_takes_each_agent_yaml_of_the_documents(block: str) -> None:
    """The agent accepts these files too."""
    jsonschema.validate(yaml.safe_load(block), _schema("agent"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("agent", {"cdcWorkingDir": "/w", "cdcRawDirectory": "/r", "contactPoints": ["a", "b"], "httpPort": "off"}),
        ("agent", {"cdcWorkingDir": "/w", "cassandraYaml": "/c", "includeTables": "shop.*, crm.person"}),
        ("source", {"contactPoints": "10.0.0.1", "loadBalancing.localDc": "dc1", "keyspace": "ks", "table": "t"}),
        ("source", {"contactPoints": ["a"], "loadBalancing": {"localDc": "dc1"}, "tables": ["ks.*"], "batch.size": 9}),
        ("line", {"agents": ["/etc/agent.yaml"], "tables": "shop.*", "mirrors": ["/m"]}),
    ],
)
def test_a_schema_takes_what_the_program_takes(name: str, content: dict[str, object]) -> None:
    """Lists, strings with commas, nested maps, and DataStax's options."""
    jsonschema.validate(content, _schema(name))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("agent", {"cdcWorkingDir": "/w", "cdcRawDirectory": "/r", "cdcPolIntervalMs": 5}),
        ("agent", {"cdcWorkingDir": "/w"}),
        ("agent", {"cdcWorkingDir": "/w", "cdcRawDirectory": "/r", "port": 70_000}),
        ("source", {"events.maxWaitng": 3}),
        ("line", {"agent": "/etc/agent.yaml"}),
    ],
)
def test_a_schema_refuses_what_the_program_refuses(name: str, content: dict[str, object]) -> None:
    """Unknown names, values out of range, and missing options."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, _schema(name))


def test_the_schemas_have_every_option_with_its_description() -> None:
    """All options of the models are there. Each of our options has a description in a table of the documents."""
    agent, source, line = _schema("agent"), _schema("source"), _schema("line")
    assert set(agent["properties"]) == set(option_names())
    assert {field.alias or name for name, field in SourceConfig.model_fields.items()} <= set(source["properties"])
    assert set(line["properties"]) == {str(field.alias) for field in LineConfig.model_fields.values()}
    for schema in (agent, source):
        for option, field in schema["properties"].items():
            assert field.get("description") or option in {"port", "httpPort"}, option
