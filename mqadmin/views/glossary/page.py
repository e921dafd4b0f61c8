"""The page with all terms; the words of other pages link to it."""

from __future__ import annotations

from django.shortcuts import render
from django.urls import path

from mqadmin.views.glossary.facts import terms
from mqadmin.views.page import page


@page()
async def glossary(request):
    return render(request, "glossary/page.html", {"terms": terms().values()})


PAGES = (path("glossary/", glossary, name="glossary"),)
