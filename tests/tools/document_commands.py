"""The commands in documents and in messages of the programs, for tests that check them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["DOCUMENTS", "ROOT", "block_commands", "blocks", "inline_commands", "message_commands"]

ROOT: Final = Path(__file__).parent.parent.parent
DOCUMENTS: Final = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK: Final = re.compile(r"^[ ]*```(\w+)\n(.*?)^[ ]*```", re.MULTILINE | re.DOTALL)
# Lines that are indented by six or more spaces continue the line before.
_INDENTED: Final = re.compile(r"^    (?:cdc|make|pulsar-admin) .*(?:\n {6,}.*)*$", re.MULTILINE)
_INLINE: Final = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
_CODE: Final = ("clients", "schemas", "runtime", "change_agent", "source_connector", "spark_bridge", "cdc")


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """The fenced blocks of a language, each with the name of its document."""
    for document in DOCUMENTS:
        for found in _BLOCK.finditer(document.read_text(encoding="utf-8")):
            if found[1] == language:
                yield document.name, found[2]


def block_commands() -> list[str]:
    """Each command of `sh` blocks and of blocks that are indented by four spaces, with joined continuation lines."""
    commands = []
    for block in [*(text for _, text in blocks("sh")), *_indented()]:
        for line in block.replace("\\\n", " ").splitlines():
            command = line.strip()
            if command and not command.startswith("#"):
                commands.append(command)
    return sorted(set(commands))


def _indented() -> Iterator[str]:
    """Commands of indented blocks, including their optional parts in brackets."""
    for document in DOCUMENTS:
        if document.parent.name != "reference":
            for found in _INDENTED.finditer(document.read_text(encoding="utf-8")):
                whole = re.sub(r"\\?\n +", " ", found[0])
                yield re.sub(r"(?<= )\[|\](?= |$)", "", whole)


def inline_commands(program: str) -> list[str]:
    """The commands of this program in backticks within sentences. Their arguments may be left out."""
    texts = (_BLOCK.sub("", document.read_text(encoding="utf-8")) for document in DOCUMENTS)
    found = {re.sub(r"\s+", " ", each[1]) for text in texts for each in _INLINE.finditer(text)}
    return sorted(each for each in found if each.startswith(f"{program} "))


def message_commands(program: str) -> list[str]:
    """The commands of this program in messages, with VALUE for variable parts. Arguments may be left out."""
    found: set[str] = set()
    bare = re.compile(rf"(?<=[`\" ]){program} (?!and )[a-z][a-zA-Z-]*(?: [^`\",;()]*)?")
    for path in (each for folder in _CODE for each in (ROOT / folder).rglob("*.py")):
        text = re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))
        texts = re.findall(rf"`({program} [^`]*)`", text) if program == "cdc" else bare.findall(text)
        found |= {_as_typed(each) for each in texts if " failed:" not in each}
    return sorted(found)


def _as_typed(text: str) -> str:
    """The command without its sentence's end. `{option}` and `{source.arguments}` become options, other
    braces a value."""
    text = re.sub(r"(?:\\n)?[ .]*$", "", re.sub(r"\s+", " ", text))
    text = text.replace("{option}", "--limit 1")
    text = re.sub(r"\{(self|source|other)\.arguments\}", "--name VALUE", text)
    return re.sub(r"\{[^}]*\}|%s", "VALUE", text)
