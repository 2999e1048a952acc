"""For mkdocs: pages of the repository's root are pages of the site, too, and links between both lead there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

_ROOT: Final = Path(__file__).parent.parent
_PAGES: Final = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_NOTEBOOK: Final = "lag-and-rates.ipynb"


def on_files(files: Files, config: Any) -> Files:
    """Add the root's pages."""
    for name in _PAGES:
        files.append(File.generated(config, name, content=(_ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links as they are in the site: it has one folder for both. What it does not have stays as text."""
    source = page.file.src_uri
    if source in _PAGES:
        markdown = markdown.replace("](docs/", "](")
    markdown = markdown.replace("](../README.md)", "](index.md)").replace("](README.md)", "](index.md)")
    for name in _PAGES:
        markdown = markdown.replace(f"](../{name}", f"]({name}")
    return re.sub(rf"\[([^]]+)\]\({re.escape(_NOTEBOOK)}\)", r"`docs/\1`", markdown)
