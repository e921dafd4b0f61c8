"""What comments, docstrings and pages refer to is in the repository: files, sections, rules and decisions.

A reference has one of these forms, and may be broken over two lines:

    docs/NAME.md                          the file exists
    docs/NAME.md section N.M              and has a heading with that number; also "sections N, M and K",
                                          "sections N to M"
    docs/durability.md R13, S7 and G5     and has a row with that rule
    decision NN                           docs/decisions has a page with that number

A name of a document that is not in the repository is an error, and so is a section without the name of its
document.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import syntax

ROOT = Path(__file__).parent.parent.parent
FILES = sorted(file for top in ("broker_store", "mqadmin", "tests") for file in (ROOT / top).rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_SPACE = r"[\s#]+"  # a line break within a comment has the sign of the next line after it
_NUMBER = r"\d+(?:\.\d+)?"
_RULE = r"[RGS]\d{1,2}"
_MORE = rf"(?:,{_SPACE}|{_SPACE}and{_SPACE}|{_SPACE}to{_SPACE})"
_WHERE = rf"(?:{_SPACE}sections?{_SPACE}(?P<sections>{_NUMBER}(?:{_MORE}{_NUMBER})*)|{_SPACE}(?P<rules>{_RULE}(?:{_MORE}{_RULE})*)\b)?"
REFERENCE = re.compile(rf"docs/(?P<name>[\w./-]+\.md){_WHERE}")
LINK = re.compile(rf"\[[^\]]*\]\((?P<target>[^)#:]+\.md)(?:#[\w-]+)?\){_WHERE}")
DECISION = re.compile(rf"\b[Dd]ecisions?{_SPACE}(?P<numbers>\d+(?:{_MORE}\d+)*)")

# Names of documents that a reader of the repository does not have. It is an error where `REFERENCE` and
# `LINK` are taken out.
_OUTSIDE = re.compile(
    "|".join(
        (
            r"RELIABILITY",
            rf"\bDESIGN(?:\.md|{_SPACE}(?:section{_SPACE})?\d)",
            r"PROTOTYPES",
            r"ECOSYSTEM",
            r"STYLE\.md",
            r"\bspec/[\w.-]+",
            rf"\bspec{_SPACE}(?:section{_SPACE})?\d[\d.]*",
            r"\b(?:store-format|store-behaviour|remoting|namesrv)\.md",
        )
    )
)
# A file without any of these words has no reference, and need not be parsed.
_MAY_REFER = re.compile(rf"\.md\b|[Dd]ecisions?{_SPACE}\d|[Ss]ections?{_SPACE}\d|{_OUTSIDE.pattern}")
_SECTION_ALONE = re.compile(rf"\bsections?{_SPACE}{_NUMBER}")


def texts_of(source: str, wanted: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring and each run of comment lines, as they stand in the source. Comments may be
    left out where `wanted` is in none of them: splitting a module into tokens takes most of the time.
    """
    lines = source.splitlines()
    for node in syntax.statements(syntax.tree_of(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield first.lineno, "\n".join(lines[first.lineno - 1 : first.end_lineno])
    if not wanted.search("\n".join(line for line in lines if "#" in line)):
        return
    run: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if run and token.start[0] != run[-1][0] + 1:
            yield run[0][0], "\n".join(text for _, text in run)
            run = []
        run.append((token.start[0], token.string))
    if run:
        yield run[0][0], "\n".join(text for _, text in run)


@functools.cache
def sections(page: Path) -> frozenset[str]:
    """The numbers of a page's headings."""
    return frozenset(re.findall(rf"^#+ ({_NUMBER})\.? ", page.read_text(), re.MULTILINE))


@functools.cache
def rules(page: Path) -> frozenset[str]:
    """The rules of a page: first cells of table rows, with an anchor or without."""
    return frozenset(re.findall(rf"^\| (?:<a id=\"\w+\"></a>)?({_RULE}) \|", page.read_text(), re.MULTILINE))


@functools.cache
def decisions() -> frozenset[int]:
    return frozenset(int(page.name[:4]) for page in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def wrong_in(found: re.Match[str], page: Path) -> str | None:
    """What a reference to a page asks for and the page does not have."""
    if not page.is_file():
        return "no such file"
    if found["sections"]:
        missing = [
            number for number in re.findall(_NUMBER, found["sections"]) if number not in sections(page)
        ]
        return f"no section {', '.join(missing)}" if missing else None
    if found["rules"]:
        missing = [rule for rule in re.findall(_RULE, found["rules"]) if rule not in rules(page)]
        return f"no rule {', '.join(missing)}" if missing else None
    return None


def wrong_references(text: str) -> Iterator[tuple[int, str]]:
    """(place in the text, what is wrong) of each reference of a docstring or comment that leads nowhere."""
    for found in REFERENCE.finditer(text):
        if (wrong := wrong_in(found, ROOT / "docs" / found["name"])) is not None:
            yield found.start(), f"{found[0]!r}: {wrong}"
    for found in DECISION.finditer(text):
        missing = [
            number for number in re.findall(r"\d+", found["numbers"]) if int(number) not in decisions()
        ]
        if missing:
            yield found.start(), f"no decision {', '.join(missing)}"


def without_a_document(text: str, known: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """(place in the text, words) of each reference to what is not in the repository; `known` references are
    left out."""
    rest = known.sub(lambda found: " " * len(found[0]), text)
    for found in _OUTSIDE.finditer(rest):
        yield found.start(), found[0]


def places(file: Path, start: int, text: str, found: Iterator[tuple[int, str]]) -> list[str]:
    return [f"{file.relative_to(ROOT)}:{start + text.count(chr(10), 0, at)}: {words}" for at, words in found]


@functools.cache
def all_texts() -> tuple[tuple[Path, int, str], ...]:
    sources = ((file, file.read_text()) for file in FILES if file != Path(__file__))
    return tuple(
        (file, line, text)
        for file, source in sources
        if _MAY_REFER.search(source)
        for line, text in texts_of(source, _MAY_REFER)
    )


def test_each_reference_leads_to_a_file_a_section_or_a_rule():
    wrong = [
        place
        for file, line, text in all_texts()
        for place in places(file, line, text, wrong_references(text))
    ]
    assert not wrong, "\n".join(wrong)


def test_no_comment_names_a_document_that_is_not_in_the_repository():
    wrong = [
        place
        for file, line, text in all_texts()
        for place in places(file, line, text, without_a_document(text, REFERENCE))
    ]
    assert not wrong, "\n".join(wrong)


def test_no_comment_names_a_section_without_its_document():
    wrong = []
    for file, line, text in all_texts():
        rest = REFERENCE.sub(lambda found: " " * len(found[0]), text)
        wrong += places(
            file, line, text, ((found.start(), found[0]) for found in _SECTION_ALONE.finditer(rest))
        )
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_refers_to_what_is_there(page):
    text = page.read_text()
    wrong = []
    for found in LINK.finditer(text):
        if (what := wrong_in(found, (page.parent / found["target"]).resolve())) is not None:
            wrong += places(page, 1, text, iter([(found.start(), f"{found[0]!r}: {what}")]))
    known = re.compile(
        f"{LINK.pattern}|{REFERENCE.pattern}".replace("(?P<sections>", "(?:").replace("(?P<rules>", "(?:")
    )
    wrong += places(page, 1, text, without_a_document(text, known))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("as docs/spec/store-format.md has it", []),
        ("(docs/spec/store-format.md section 2.4).", []),
        ("docs/spec/store-behaviour.md sections 4.2 and 4.3;", []),
        ("docs/spec/remoting.md sections 3 to 5, docs/spec/namesrv.md", []),
        ("docs/durability.md\n    R5, R6 and G5)", []),
        ("# docs/spec/store-format.md\n# section 2.4", []),
        ("decision 4, and decisions 10 and 40", []),
        ("docs/none.md", ["'docs/none.md': no such file"]),
        (
            "docs/spec/store-format.md section 2.99",
            ["'docs/spec/store-format.md section 2.99': no section 2.99"],
        ),
        (
            "docs/spec/store-format.md sections 2.4, 77 and 5",
            ["'docs/spec/store-format.md sections 2.4, 77 and 5': no section 77"],
        ),
        ("docs/durability.md R5 and R99", ["'docs/durability.md R5 and R99': no rule R99"]),
        ("decisions 4 and 9999", ["no decision 9999"]),
    ],
)
def test_a_reference_is_understood(text, wrong):
    assert [what for _, what in wrong_references(text)] == wrong


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("docs/spec/store-format.md section 2.4", []),
        ("a specification, by design, of this style", []),
        ("spec/store-format.md section 2.4", ["spec/store-format.md"]),
        ("store-behaviour.md section 12", ["store-behaviour.md"]),
        ("(spec 2.6)", ["spec 2.6"]),
        ("# (spec\n# section 4)", ["spec\n# section 4"]),
        ("RELIABILITY.md R13", ["RELIABILITY"]),
        ("DESIGN 5, PROTOTYPES.md Q5", ["DESIGN 5", "PROTOTYPES"]),
    ],
)
def test_a_document_from_outside_is_seen(text, words):
    assert [found for _, found in without_a_document(text, REFERENCE)] == words


def test_docstrings_and_runs_of_comments_are_read():
    source = '"""One\ntwo."""\nx = 1  # three\n# four\n\n# five\ndef f():\n    """Six."""\n'
    assert sorted(texts_of(source, re.compile("#"))) == [
        (1, '"""One\ntwo."""'),
        (3, "# three\n# four"),
        (6, "# five"),
        (8, '    """Six."""'),
    ]
