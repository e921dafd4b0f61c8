"""The page with all terms; the words of other pages link to it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from django.shortcuts import render
from django.urls import path

from broker_store.units import fields_of
from mqadmin.views.glossary.facts import Term, terms
from mqadmin.views.page import page


@dataclass(frozen=True, slots=True, kw_only=True)
class GlossaryPage:
    """The data of the page."""

    terms: Collection[Term]


@page()
async def glossary(request):
    return render(request, "glossary/page.html", fields_of(GlossaryPage(terms=terms().values())))


PAGES = (path("glossary/", glossary, name="glossary"),)
