"""Which pages of the store's files are in memory, where writer and readers are, and who reads what is not in
memory."""

from __future__ import annotations

import asyncio

from django.urls import path

from broker_store.facts.cache import CachedFile
from broker_store.units import fields_of
from mqadmin.cluster.current import current_cluster
from mqadmin.templatetags.strips import StripMark
from mqadmin.views.page import drawn, page
from mqadmin.views.store.cache.facts import ReadingGroup, for_page
from mqadmin.views.view import Part

FACTS = "store/cache/facts.html"
NAMED_READERS = 4  # beside a file; the others are counted
SHOWN_GROUPS = 50


@page()
async def cache(request):
    cluster = current_cluster()
    context = await asyncio.to_thread(facts, cluster)
    if request.htmx:
        return await drawn(request, FACTS, context)
    return await drawn(request, "store/cache/page.html", context | {"store": cluster.store.snapshot()})


def facts(cluster) -> dict:
    """What FACTS shows. For a thread."""
    picture = for_page(cluster.store.cache())
    files = {
        kind: [file for file in picture.files if file.kind == kind]
        for kind in ("commitlog", "index", "consumequeue")
    }
    return {
        "picture": picture,
        "log_files": [_with_places(file, picture.log.wrote, picture.groups) for file in files["commitlog"]],
        "index_files": files["index"],
        "queue_files": files["consumequeue"],
        "older": picture.older,
        "groups": picture.groups[:SHOWN_GROUPS],
        "more_groups": max(0, len(picture.groups) - SHOWN_GROUPS),
        "not_told": any(file.resident_bytes is None for file in picture.files),
        "inspects": cluster.store.inspects,
    }


def _with_places(file: CachedFile, wrote: int, groups: list[ReadingGroup]) -> dict:
    """A log file with who is in it: the writer, and each group where it lags most."""
    base = file.base or 0
    end = base + file.size
    marks, names = [], []
    for group in groups:
        if group.log_offset is not None and base <= group.log_offset < end:
            marks.append(_mark(group.log_offset - base, file.size, "reads", f"{group.group} reads here"))
            names.append(group.group)
    is_written = base <= wrote < end
    if is_written:
        marks.append(_mark(wrote - base, file.size, "writes", "the log ends here"))
    return fields_of(file) | {
        "marks": marks,
        "is_written": is_written,
        "readers": names[:NAMED_READERS],
        "more_readers": max(0, len(names) - NAMED_READERS),
    }


def _mark(at: int, size: int, kind: str, title: str) -> StripMark:
    return StripMark(at=at / size, kind=kind, title=title)


PAGES = (path("store/cache/", cache, name="cache"),)
PARTS = {"cache": Part(FACTS, lambda cluster, asked: facts(cluster))}
