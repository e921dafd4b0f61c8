"""The page of the cache: the parts of the store's files that are in memory, and the places of writer and
readers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from django.urls import path

from broker_store.engine.status.store_state import Snapshot
from broker_store.facts.cache import CachedFile
from broker_store.units import fields_of
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.cache import ReadingGroup
from mqadmin.templatetags.strips import StripMark
from mqadmin.views.page import drawn, page
from mqadmin.views.store.cache.facts import PageCache, for_page
from mqadmin.views.view import Part

FACTS = "store/cache/facts.html"
NAMED_READERS = 4  # groups named beside a file; the others are counted
SHOWN_GROUPS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFilePlaces(CachedFile):
    """A log file with the places of the writer in it, and of each group in the queue in which it lags
    most."""

    marks: list[StripMark]
    is_written: bool  # the log ends in it
    readers: list[str]  # the first NAMED_READERS groups
    more_readers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFacts:
    """The data of FACTS."""

    picture: PageCache
    log_files: list[LogFilePlaces]
    index_files: list[CachedFile]
    queue_files: list[CachedFile]
    older: int  # log files that are left out
    groups: list[ReadingGroup]  # the first SHOWN_GROUPS
    more_groups: int
    has_unknown: bool  # for some file it is unknown which pages are in memory
    inspects: bool  # the store was opened for inspection


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePage(CacheFacts):
    """The data of the whole page."""

    store: Snapshot


@page()
async def cache(request):
    cluster = current_cluster()
    shown = await asyncio.to_thread(facts, cluster)
    if request.htmx:
        return await drawn(request, FACTS, fields_of(shown))
    whole_page = CachePage(**fields_of(shown), store=cluster.store.snapshot())
    return await drawn(request, "store/cache/page.html", fields_of(whole_page))


def facts(cluster) -> CacheFacts:
    """Return the data of FACTS. For a thread."""
    picture = for_page(cluster.store.cache())

    def files(kind: str) -> list[CachedFile]:
        return [file for file in picture.files if file.kind == kind]

    return CacheFacts(
        picture=picture,
        log_files=[_with_places(file, picture.log.wrote, picture.groups) for file in files("commitlog")],
        index_files=files("index"),
        queue_files=files("consumequeue"),
        older=picture.older,
        groups=picture.groups[:SHOWN_GROUPS],
        more_groups=max(0, len(picture.groups) - SHOWN_GROUPS),
        has_unknown=any(file.resident_bytes is None for file in picture.files),
        inspects=cluster.store.inspects,
    )


def _with_places(file: CachedFile, wrote: int, groups: list[ReadingGroup]) -> LogFilePlaces:
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
    return LogFilePlaces(
        **fields_of(file),
        marks=marks,
        is_written=is_written,
        readers=names[:NAMED_READERS],
        more_readers=max(0, len(names) - NAMED_READERS),
    )


def _mark(at: int, size: int, kind: str, title: str) -> StripMark:
    return StripMark(at=at / size, kind=kind, title=title)


PAGES = (path("store/cache/", cache, name="cache"),)
PARTS = {"cache": Part(FACTS, lambda cluster, asked: facts(cluster))}
