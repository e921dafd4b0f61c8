"""The docs say what the code does."""

import re
from pathlib import Path

import pytest

from broker_store.config.load import acting_settings
from broker_store.config.other_keys import REFUSED, WITHOUT_EFFECT
from tests.support import metrics_page, rest_page, settings_page

ROOT = Path(__file__).parent.parent
SETTINGS = ROOT / "docs" / "SETTINGS.md"
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
CHAPTERS = sorted((ROOT / "docs" / "architecture").glob("*.md"))
TABLE_OF_DECISIONS = ROOT / "docs" / "decisions" / "README.md"
PAGES = [
    *(
        ROOT / name
        for name in (
            "README.md",
            "CONTRIBUTING.md",
            "CHANGELOG.md",
            "docs/ARCHITECTURE.md",
            "docs/COMPATIBILITY.md",
            "docs/OPERATIONS.md",
        )
    ),
    ROOT / "docs" / "GLOSSARY.md",
    TABLE_OF_DECISIONS,
    *CHAPTERS,
    *DECISIONS,
]


@pytest.mark.parametrize("field", [field for _, field in acting_settings()], ids=lambda field: field.name)
def test_each_acting_key_is_in_the_docs_with_default_unit_and_reason(field):
    setting = field.metadata["setting"]
    rows = [line for line in SETTINGS.read_text().splitlines() if line.startswith(f"| `{setting.key}` ")]
    assert rows
    assert any(
        setting.reason.replace("|", "&#124;") in row and (not setting.unit or setting.unit in row)
        for row in rows
    )


def test_the_page_is_the_one_made_from_the_code():
    assert SETTINGS.read_text() == settings_page.page()


def test_the_rest_reference_is_the_one_made_from_the_code():
    assert (ROOT / "docs" / "REST.md").read_text() == rest_page.page()


def test_the_page_of_metrics_is_the_one_made_from_the_tables():
    assert (ROOT / "docs" / "METRICS.md").read_text() == metrics_page.page()


def test_every_key_without_effect_stands_there_with_its_reason():
    text = SETTINGS.read_text()
    assert all(f"`{key}`" in text for key in WITHOUT_EFFECT)
    assert all(f"`{key}`" in text for key in REFUSED)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_files_a_page_names_exist(page):
    """A name in backticks with a slash and an ending of ours is a file, seen from the root or from one of the
    packages."""
    named = set(re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|md|css|js|html|sh|go|java|txt))`", page.read_text()))
    places = [ROOT, ROOT / "broker_store", ROOT / "mqadmin", page.parent]
    assert not [name for name in sorted(named) if not any((place / name).exists() for place in places)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_links_of_a_page_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)|(?:src|srcset)=\"([^\"]+)\"", page.read_text())
    local = [link or source for link, source in links if "://" not in (link or source)]
    assert not [link for link in local if not (page.parent / link).exists()]


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda page: page.stem)
def test_a_chapter_is_short_has_one_drawing_and_stands_in_the_index(chapter):
    text = chapter.read_text()
    assert len(text.split()) <= 600
    (drawing,) = re.findall(r"^```$(.+?)^```$", text, re.MULTILINE | re.DOTALL)
    assert max(map(len, drawing.splitlines())) <= 100
    assert max(map(len, text.splitlines())) <= 110
    assert f"](architecture/{chapter.name})" in (ROOT / "docs" / "ARCHITECTURE.md").read_text()


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda decision: decision.stem)
def test_a_decision_has_its_date_and_status_as_the_table_has_them(decision):
    title, empty, line = decision.read_text().splitlines()[:3]
    number, name = re.fullmatch(r"# (\d+)\. (.+)", title).groups()
    date, status = re.fullmatch(
        r"Date: (\d{4}-\d\d-\d\d) · Status: (accepted|(?:amended|superseded) by \d{4}(?: and \d{4})*)", line
    ).groups()
    assert not empty
    assert int(number) == int(decision.name[:4])
    linked = re.sub(r"\d{4}", lambda later: _link(later[0]), status)
    assert (
        f"| {number} | [{name}]({decision.name}) | {date} | {linked} |"
        in TABLE_OF_DECISIONS.read_text().splitlines()
    )


def test_the_table_of_decisions_has_a_row_for_each_and_no_other():
    rows = re.findall(
        r"^\| \d+ \| \[.+?\]\((0\d{3}-[\w-]+\.md)\) \|", TABLE_OF_DECISIONS.read_text(), re.MULTILINE
    )
    assert rows == [decision.name for decision in DECISIONS]


def _link(number: str) -> str:
    (name,) = [decision.name for decision in DECISIONS if decision.name.startswith(number)]
    return f"[{int(number)}]({name})"
