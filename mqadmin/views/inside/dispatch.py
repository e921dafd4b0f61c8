"""How far each step behind the log's end has come, how the log gets to the disk, and what a crash would take
now."""

from __future__ import annotations

import asyncio

from django.shortcuts import render

from broker_store.facts.dispatch import SINKS
from mqadmin import clusters, live
from mqadmin.views.page import page

# Where each sink has its colour and its explanation on the page.
TONES = {
    "confirmed": "confirmed",
    "dispatched": "dispatched",
    "flushed": "flushed",
    "checkpoint_position": "checkpoint",
}
MEANINGS = {
    "confirmed": "How far records may be shown and acknowledged. With SYNC_FLUSH that is what is on the "
    "disk.",
    "dispatched": "How far queues and index know the log. They are filled by one pass, so neither can be "
    "ahead of "
    "the other.",
    "flushed": "How far the log is on the disk. A power cut takes what lies behind.",
    "checkpoint_position": "Up to here log, queues and index were all on the disk when the checkpoint was "
    "set; a start "
    "after a crash relies on it.",
}


@page()
async def dispatch(request):
    cluster = clusters.current()
    race, flush = cluster.race(), cluster.flush()
    context = {
        "store": cluster.store(),
        "race": race,
        "rows": [
            race["sinks"][name]
            | {"name": name, "title": title, "tone": TONES[name], "meaning": MEANINGS[name]}
            for name, title in SINKS.items()
        ],
        "flush": flush,
        "exposure": await asyncio.to_thread(cluster.exposure),
        "past": live.sampler.past("store.positions"),
        "tab": "dispatch",
    }
    return render(request, "inside/dispatch.html", context)
