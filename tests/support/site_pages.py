"""What mkdocs.yml asks of Python: pages from the root of the repository, and a navigation with whole folders.

README.md becomes the first page. CHANGELOG.md, CONTRIBUTING.md and LICENSE join it. Their links into docs/ are
written as seen from there. An item `folder/*` of the navigation stands for all pages of the folder but
README.md, in the order of their names.

MkDocs calls `on_config`, `on_files` and `on_page_markdown`. Its own environment has none of our packages, so
nothing of ours is imported here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
FROM_ROOT = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "LICENSE": "LICENSE",
}
_INTO_DOCS = re.compile(r"(\]\(|src=\"|srcset=\")docs/")
_LIST = re.compile(r"(?:[-*]|\d+\.) ")
_TO_FOLDER = re.compile(r"\[([^\]]+)\]\((?:docs/)?examples/?\)")


def on_config(config: Any) -> Any:
    config.nav = [_with_folders(item, Path(config.docs_dir)) for item in config.nav]
    return config


def _with_folders(item: Any, docs: Path) -> Any:
    if not isinstance(item, dict):
        return item
    ((title, inside),) = item.items()
    if isinstance(inside, str):
        return item
    pages: list[str] = []
    for page in inside:
        if page.endswith("/*"):
            folder = docs / page[:-2]
            pages += sorted(
                f"{folder.name}/{file.name}" for file in folder.glob("*.md") if file.stem != "README"
            )
        else:
            pages.append(page)
    return {title: pages}


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for name, place in FROM_ROOT.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(
            File.generated(config, place, content=from_root(text) if place.endswith(".md") else text)
        )
    return files


def from_root(text: str) -> str:
    """The text of a page of the root as it stands beside the pages of docs/."""
    text = _TO_FOLDER.sub(r"`\1`", text)
    return _INTO_DOCS.sub(r"\1", text).replace("](README.md)", "](index.md)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Pages of docs/ name those of the root by `../`; where they lie in the site there is no root."""
    deeper = "../" * page.file.src_uri.count("/")
    for name, place in FROM_ROOT.items():
        markdown = markdown.replace(f"]({deeper}../{name}", f"]({deeper}{place}")
    return with_lists(markdown)


def with_lists(markdown: str) -> str:
    """An empty line before each list that follows a paragraph: GitHub needs none, Python-Markdown does."""
    lines: list[str] = []
    is_code = is_list = False
    for line in markdown.splitlines():
        if line.startswith("```"):
            is_code = not is_code
        begins = not is_code and _LIST.match(line) is not None
        if begins and not is_list and lines and lines[-1].strip():
            lines.append("")
        is_list = begins or (is_list and bool(line.strip()))
        lines.append(line)
    return "\n".join(lines) + "\n"
