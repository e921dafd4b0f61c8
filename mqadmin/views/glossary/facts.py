"""docs/GLOSSARY.md, parsed: each term is a heading of the second level, with paragraphs of plain sentences,
`code`, *emphasis* and [links](GLOSSARY.md)."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from django.conf import settings
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe

_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`]+)`")
_EMPHASIS = re.compile(r"\*([^*]+)\*")


@dataclass(frozen=True, slots=True)
class Term:
    """A term with its meaning."""

    name: str
    anchor: str
    text: str  # without markup
    html: SafeString


@functools.cache
def terms() -> dict[str, Term]:
    """Return the terms by their names, in the order of the file."""
    _, *parts = _HEADING.split((settings.BASE_DIRECTORY / "docs" / "GLOSSARY.md").read_text())
    return {name: _term(name, " ".join(body.split())) for name, body in zip(*[iter(parts)] * 2, strict=True)}


def _term(name: str, body: str) -> Term:
    """Return the term of a heading and the text below it."""
    return Term(name, anchor_of(name), _without_markup(body), mark_safe(_html(body)))


def anchor_of(name: str) -> str:
    """Return the anchor of a heading, as sites that show Markdown make it: Cold read is #cold-read."""
    return re.sub(r"[^\w-]", "", name.lower().replace(" ", "-"))


def _without_markup(body: str) -> str:
    return _EMPHASIS.sub(r"\1", _CODE.sub(r"\1", _LINK.sub(r"\1", body)))


def _html(body: str) -> str:
    """Return a paragraph as HTML. Links to other terms stay; the other documents are not on this site."""
    escaped = _LINK.sub(
        lambda link: f'<a href="{link[2]}">{link[1]}</a>' if link[2].startswith("#") else link[1],
        escape(body),
    )
    return _EMPHASIS.sub(r"<em>\1</em>", _CODE.sub(r'<code class="break">\1</code>', escaped))
