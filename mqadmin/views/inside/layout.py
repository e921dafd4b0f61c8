"""How the messages of topics lie among each other in the log, and what it costs to read them again."""

from __future__ import annotations

import math

from django.shortcuts import render

from broker_store.errors import NotFoundError
from broker_store.formats import names
from mqadmin import clusters
from mqadmin.inside.layout import check, for_page
from mqadmin.views.messages import moment_of
from mqadmin.views.page import page, whole


@page()
async def layout(request):
    cluster = clusters.current()
    asked = {name: request.GET.get(name, "").strip() for name in ("topic", "group", "from", "offset")}
    context = {"asked": asked, "tab": "layout", "problem": "", "one": None, "each": None}
    try:
        start = moment_of(asked["from"], None), whole(asked["offset"], None)
        topic, group = asked["topic"] and names.check_topic(asked["topic"]), asked["group"] and names.check_group(asked["group"])
        check(topic or None, group or None, *start)
        found = for_page(await cluster.layout_of_both(topic or None, group or None, *start))
        one, each = found["one"], found["each"]
        context |= found | {"one": one and _pictured(one, one["log"]), "rows": [_pictured(row, each["log"]) for row in each["items"]]}
        context["watched"] = start == (None, None)
    except ValueError as error:
        context["problem"] = str(error)
    except NotFoundError as error:
        context["problem"] = f"{str(error)[:1].upper()}{str(error)[1:]}."
    if request.htmx:
        return render(request, "inside/layout_facts.html", context)
    return render(request, "inside/layout.html", context | {"topics": sorted(cluster.topic_kinds())})


def _pictured(found: dict, log: dict) -> dict:
    """With a shade a cell: the root of its share, so that a topic of one message in a hundred can be seen beside one of half the log."""
    cells = found["cell_bytes"]
    room = max(1.0, (log["end"] - log["begin"]) / max(1, len(cells)))
    shares = [min(1.0, size / room) for size in cells]
    return found | {"shades": [math.sqrt(share) for share in shares], "fullest": max(shares, default=None)}
