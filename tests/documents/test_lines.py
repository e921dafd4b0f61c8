"""Prose of the documents has lines of at most 110 characters, so that it can be read and compared in an editor.

Tables, code, HTML and addresses cannot be wrapped. What `make bench` writes stays as it writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_CHARACTERS = 110
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# A row of a table, HTML with the attributes of a tag, an address, or a line of code by its indent
NOT_PROSE = re.compile(r"\s*(\||<\w|\[[^]]+\]: |https?://)|    ")


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines of prose with their numbers."""
    is_code = is_written = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("<!-- make bench"):
            is_written = True
        elif line.startswith("<!-- end of"):
            is_written = False
        elif line.lstrip().startswith("```"):
            is_code = not is_code
        elif not (is_code or is_written or NOT_PROSE.match(line)):
            yield number, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_prose_are_short(page):
    assert [number for number, line in prose(page.read_text()) if len(line) > MAX_CHARACTERS] == []


def test_rows_code_and_results_are_no_prose():
    text = "a\n| b |\n```\nc\n```\n<!-- make bench ONLY=put -->\nd\n<!-- end of put -->\ne\n"
    assert [line for _, line in prose(text)] == ["a", "e"]
