"""The store from inside: its map and its recovery, which are there while it starts, too."""

from __future__ import annotations

import asyncio

from django.urls import path

from broker_store.engine.status.store_facts import StoreFile
from broker_store.errors import StoreClosedError
from broker_store.units import fields_of
from mqadmin.cluster.current import current_cluster
from mqadmin.views.asked import PART, one_of, text, whole
from mqadmin.views.page import drawn, page
from mqadmin.views.store.facts import with_dispatched

QUEUES_A_PART = 50


@page(takes={"q": text, "part": PART, "part_of": one_of("log")})
async def store(request):
    cluster = current_cluster()
    is_failed = cluster.state().state == "failed"
    if request.htmx:
        if request.GET.get("part_of") == "log":
            files = await cluster.files.all("commitlog") if is_failed else cluster.files.known("commitlog")
            shown = {"log_files": await _log_files(cluster, files)}
            return await drawn(request, "store/log_files.html", shown)
        shown = await (_from_files if is_failed else _queue_files)(cluster, request)
        return await drawn(request, "store/queue_files.html", shown)
    context: dict[str, object] = {
        "store": cluster.store.snapshot(),
        "recovery": cluster.store.recovery(),
        "log_files": None,
    }
    try:
        if is_failed:
            context |= await _from_files(cluster, request)
        else:
            index_files = cluster.files.known("index")
            context |= {
                "log_files": await _log_files(cluster, cluster.files.known("commitlog")),
                "hung_files": await cluster.files.hung(),
                "index_files": index_files,
                "newest_index": len(index_files) - 1,
                "exposure": await asyncio.to_thread(cluster.store.exposure),
                **await _queue_files(cluster, request),
            }
    except StoreClosedError:
        pass  # while it starts the page shows recovery in place of the files
    return await drawn(request, "store/page.html", context)


async def _log_files(cluster, files: list[StoreFile]) -> list[dict]:
    of_log = with_dispatched(files, cluster.store.snapshot().positions.dispatched)
    return [
        fields_of(file) | {"row": str(number)}
        for number, file in enumerate(await cluster.files.with_times(of_log))
    ]


async def _from_files(cluster, request) -> dict:
    """The map of a store that could not be opened: what the files say."""
    files = await cluster.files.all()
    shown, queues, part, parts, search = _part_of(
        sorted({(file.topic, file.queue_id) for file in files if file.kind == "consumequeue"}),
        request,
    )
    index_files = [file for file in files if file.kind == "index"]
    return {
        "log_files": await _log_files(cluster, [file for file in files if file.kind == "commitlog"]),
        "index_files": index_files,
        "newest_index": len(index_files) - 1,
        "queue_files": await cluster.files.with_times(
            [file for file in files if (file.topic, file.queue_id) in shown]
        ),
        "queues": queues,
        "part": part,
        "parts": parts,
        "q": search,
    }


def _part_of(queues: list, request) -> tuple[set, int, int, int, str]:
    """(queues of the part that is asked for, how many were found, number of the part, how many there are,
    what was searched for)."""
    search = request.GET.get("q", "").strip()
    found = [queue for queue in queues if search.lower() in queue[0].lower()]
    parts = _parts(len(found))
    part = min(_part(request), parts)
    return set(found[(part - 1) * QUEUES_A_PART : part * QUEUES_A_PART]), len(found), part, parts, search


def _part(request) -> int:
    return whole(request.GET.get("part"), 1)


async def _queue_files(cluster, request) -> dict:
    search, part = request.GET.get("q", "").strip(), _part(request)
    files, queues = await cluster.files.of_queues(search.lower(), (part - 1) * QUEUES_A_PART, QUEUES_A_PART)
    parts = _parts(queues)
    if part > parts:  # as when fewer are found than before
        part = parts
        files, queues = await cluster.files.of_queues(
            search.lower(), (part - 1) * QUEUES_A_PART, QUEUES_A_PART
        )
    return {
        "queue_files": await cluster.files.with_times(files),
        "queues": queues,
        "part": part,
        "parts": parts,
        "q": search,
    }


def _parts(queues: int) -> int:
    return max(1, -(-queues // QUEUES_A_PART))


PAGES = (path("store/", store, name="store"),)
