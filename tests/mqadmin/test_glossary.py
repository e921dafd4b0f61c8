"""The glossary: each term of docs/GLOSSARY.md on its page, and each word of a page among them."""

from __future__ import annotations

import re
from pathlib import Path

from mqadmin.views.glossary.facts import anchor_of, terms

PROJECT = Path(__file__).resolve().parents[2]
TEMPLATES = [*(PROJECT / "templates").rglob("*.html"), *(PROJECT / "mqadmin" / "views").rglob("*.html")]


def test_each_term_is_on_the_page_with_its_anchor(client_of_role, fake_cluster):
    html = client_of_role("viewer").get("/glossary/").content.decode()
    anchors = re.findall(r'<div id="([^"]+)">', html)
    assert anchors == [term.anchor for term in terms().values()] and len({*anchors}) == len(anchors) > 90
    assert set(re.findall(r'href="#([^"]+)"', html)) <= {*anchors, "main"}


def test_markup_becomes_html_and_other_documents_are_no_links():
    acknowledgement, check = terms()["Acknowledgement"], terms()["Check"]
    assert '<a href="#flush">flush</a>' in acknowledgement.html and ".md" in acknowledgement.text
    assert acknowledgement.html.count("<a ") == 1 and "](" not in acknowledgement.text
    assert '<code class="break">check_store</code>' in check.html and "`" not in check.text
    assert anchor_of("lost+found") == "lostfound" and anchor_of("ASYNC_FLUSH") == "async_flush"


def test_the_terms_are_in_alphabetical_order_and_end_with_a_full_stop():
    names = [name.lower() for name in terms()]
    assert names == sorted(names, key=lambda name: re.sub(r"[^a-z ]", " ", name))
    assert [term.name for term in terms().values() if not term.text.endswith(".")] == []


def test_each_word_of_a_template_is_a_term():
    asked = {name for path in TEMPLATES for name in re.findall(r'\{% word "([^"]+)"', path.read_text())}
    assert len(asked) > 25 and asked <= terms().keys()
