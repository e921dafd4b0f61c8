"""Plain technical English: words that docstrings, comments, pages and documents do not use."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.documents.test_references import texts_of
from tests.support import syntax

ROOT = Path(__file__).resolve().parents[2]

# Words -> what to write. Each is precise enough that no correct use of it is needed.
WORDS = {
    r"whoever|nobody|somebody|anybody|everybody": "name the client, process, thread or caller",
    r"tells?|told|telling": "show, report, state, return",
    r"anew": "again",
    r"mends?|mended|mending": "repair",
    r"(?:looks?|looked|looking) (?:at|for|through|into)": "scan, read, check, search",
    r"by halving": "by binary search",
    r"comes? into being|came into being": "is created",
    r"gently|hurry|hurries|hurried": "throttled, at full speed",
    r"whereabouts": "places, references",
    r"believes?|believed": "trust, verify",
    # "After" in order or place. Lag, and what a proxy hides, are behind in every language.
    r"(?<!far )(?<!lag )(?<!lags )(?<!fall )(?<!falls )(?<!fell )(?<!fallen )(?<!falling )(?<!left )behind"
    r"(?! (?:a|an|the|your|one) (?:\w+ )?(?:proxy|balancer|firewall|NAT)\b)": "after",
}
# The same with parts of each word. A text without a part has no use of the word: a comparison of text finds
# that 40 times sooner than the expression does.
FORBIDDEN = [
    (re.compile(rf"\b(?:{word})\b", re.IGNORECASE), parts.split("|"), advice)
    for (word, advice), parts in zip(
        WORDS.items(),
        (
            "whoever|body",
            "tell|told",
            "anew",
            "mend",
            "look",
            "halving",
            "being",
            "gently|hurr",
            "whereabouts",
        )
        + ("believe", "behind"),
        strict=True,
    )
]

_BREAK = re.compile(r"\n[ \t]*(?:# )?")  # a comment may break between two words
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`|\]\([^)]*\)|\"\w+\"", re.MULTILINE | re.DOTALL)
_MARKUP = re.compile(
    r"<(script|style)\b.*?</\1>|<[^>]*>|\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}|\{% comment %\}.*?\{% endcomment %\}",
    re.DOTALL,
)


def files() -> list[Path]:
    """Return the Python files, templates and documents of the repository."""
    names = subprocess.run(
        [
            "git",
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
            "*.py",
            "templates/*.html",
            "mqadmin/views/*.html",
            "*.md",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [
        ROOT / name
        for name in sorted(set(names.split("\0")) - {""})
        if (ROOT / name).is_file() and ROOT / name != Path(__file__)
    ]


def _blanked(pattern: re.Pattern[str], text: str) -> str:
    """Return the text with matches replaced by blanks, so that lines keep their numbers."""
    return pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def sentences_of(source: str) -> list[tuple[int, str]]:
    """Return (line, text) of each string of several words: errors, reasons, help of commands."""
    return [
        (node.lineno, node.value)
        for node in ast.walk(syntax.tree_of(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip()
    ]


def texts(name: str, source: str, in_comments: re.Pattern[str]) -> list[tuple[int, str]]:
    """Return (line, text) of each text of a file that is read as language: of a test its docstrings and
    comments, of the program its messages too."""
    if name.endswith(".py"):
        found = [(line, _blanked(_CODE, text)) for line, text in texts_of(source, in_comments)]
        return found if name.startswith("tests/") else found + sentences_of(source)
    return [(1, _blanked(_CODE if name.endswith(".md") else _MARKUP, source))]


def found_in(name: str, source: str) -> list[str]:
    """Return line, words and advice for each forbidden use in a file."""
    lowered = source.lower()
    possible = [row for row in FORBIDDEN if any(part in lowered for part in row[1])]
    if not possible:
        return []
    in_one_line = _BREAK.sub(" ", source)
    possible = [row for row in possible if row[0].search(in_one_line)]
    if not possible:
        return []
    in_comments = re.compile("|".join(part for _, parts, _ in possible for part in parts), re.IGNORECASE)
    places = []
    for line, text in texts(name, source, in_comments):
        unbroken = _BREAK.sub(lambda mark: "\n" + " " * (len(mark[0]) - 1), text)
        for word, _, advice in possible:
            for found in word.finditer(unbroken):
                at = line + text.count("\n", 0, found.start())
                places.append((at, f"{at}: {found[0]!r}: {advice}"))
    return [place for _, place in sorted(set(places))]  # a docstring is a string of several words too


def test_no_file_uses_such_words():
    wrong = [
        f"{file.relative_to(ROOT)}:{use}"
        for file in files()
        for use in found_in(str(file.relative_to(ROOT)), file.read_text())
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("a.py", '"""Whoever asks is told."""\n', ["Whoever", "told"]),
        ("a.py", "x = 'told'  # made anew\n", ["anew"]),
        ("a.py", "raise ValueError('nobody replied')\n", ["nobody"]),
        ("tests/a.py", "raise ValueError('nobody replied')\n", []),
        ("a.py", "# How far behind a reader is; behind a proxy\n", []),
        ("a.py", "# the record behind it, which it\n# looks at\n", ["behind", "looks at"]),
        ("a.py", "# `told` is a name\ntold = 1\n", []),
        ("a.html", "<p title='told'>{{ told }} {% if told %}is told{% endif %}</p>", ["told"]),
        ("a.md", "Nothing is `told`.\n```\ntold\n```\nIt tells [more](told.md).", ["tells"]),
    ],
)
def test_a_word_is_found_where_it_is_language(name, source, words):
    assert [use.split("'")[1] for use in found_in(name, source)] == words


@pytest.mark.parametrize(
    "use",
    "whoever Nobody somebody anybody everybody tells told telling anew mends mended mending looks_at looked_for "
    "looking_through look_into by_halving comes_into_being came_into_being gently hurry hurries hurried whereabouts "
    "believes believed behind".split(),
)
def test_each_word_is_found(use):
    assert found_in("a.md", f"It is {use.replace('_', ' ')} it.") != []
