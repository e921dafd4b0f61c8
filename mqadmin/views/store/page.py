"""The store from inside: its map and its recovery, which are there while it starts, too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from django.urls import path

from broker_store.engine.status.store_state import Snapshot, StoreFile
from broker_store.errors import StoreClosedError
from broker_store.facts.exposure import Exposure
from broker_store.facts.starts import StartReport
from broker_store.units import fields_of
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.store import LogFile
from mqadmin.views.page import drawn, page
from mqadmin.views.query_parameters import PART, one_of, text, whole
from mqadmin.views.store.facts import with_dispatched

QUEUES_PER_PART = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedFile(LogFile):
    """A file of the log with its place in the stream of all."""

    row: str  # from 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFiles:
    """The files of some queues, by parts."""

    queue_files: Sequence[StoreFile]
    queues: int  # of all parts
    part: int  # its number, from 1
    parts: int
    q: str  # what their topics have in their names


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMap:
    """The files of the log and of the index."""

    log_files: list[NumberedFile]
    hung_files: list[StoreFile]  # that were deleted and are still held
    index_files: list[StoreFile]
    newest_index: int  # its place among the index files
    exposure: Exposure | None  # None: the store could not be opened


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFiles:
    """The data of store/log_files.html."""

    log_files: list[NumberedFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePage:
    """The data of the page: also the fields of StoreMap and QueueFiles, once there are such."""

    store: Snapshot
    recovery: StartReport | None  # None: the store has not been opened
    log_files: list[NumberedFile] | None = None  # None: it starts, and the page shows recovery
    hung_files: list[StoreFile] = field(default_factory=list)
    index_files: list[StoreFile] = field(default_factory=list)
    newest_index: int = -1
    exposure: Exposure | None = None
    queue_files: Sequence[StoreFile] = ()
    queues: int = 0
    part: int = 1
    parts: int = 1
    q: str = ""


@page(takes={"q": text, "part": PART, "part_of": one_of("log")})
async def store(request):
    cluster = current_cluster()
    is_failed = cluster.state().state == "failed"
    if request.htmx:
        if request.GET.get("part_of") == "log":
            files = await cluster.files.all("commitlog") if is_failed else cluster.files.known("commitlog")
            shown = LogFiles(log_files=await _log_files(cluster, files))
            return await drawn(request, "store/log_files.html", fields_of(shown))
        if is_failed:
            queue_files = await _queues_from_files(cluster, request, await cluster.files.all("consumequeue"))
        else:
            queue_files = await _queue_files(cluster, request)
        return await drawn(request, "store/queue_files.html", fields_of(queue_files))
    whole_page = StorePage(store=cluster.store.snapshot(), recovery=cluster.store.recovery())
    try:
        if is_failed:
            files = await cluster.files.all()
            whole_page = replace(whole_page, **fields_of(await _map_from_files(cluster, files)))
            whole_page = replace(whole_page, **fields_of(await _queues_from_files(cluster, request, files)))
        else:
            whole_page = replace(whole_page, **fields_of(await _map(cluster)))
            whole_page = replace(whole_page, **fields_of(await _queue_files(cluster, request)))
    except StoreClosedError:
        pass  # while it starts the page shows recovery in place of the files
    return await drawn(request, "store/page.html", fields_of(whole_page))


async def _map(cluster) -> StoreMap:
    index_files = cluster.files.known("index")
    return StoreMap(
        log_files=await _log_files(cluster, cluster.files.known("commitlog")),
        hung_files=await cluster.files.hung(),
        index_files=index_files,
        newest_index=len(index_files) - 1,
        exposure=await asyncio.to_thread(cluster.store.exposure),
    )


async def _map_from_files(cluster, files: list[StoreFile]) -> StoreMap:
    """Return the map of a store that could not be opened: what its files say."""
    index_files = [file for file in files if file.kind == "index"]
    return StoreMap(
        log_files=await _log_files(cluster, [file for file in files if file.kind == "commitlog"]),
        hung_files=[],
        index_files=index_files,
        newest_index=len(index_files) - 1,
        exposure=None,
    )


async def _log_files(cluster, files: list[StoreFile]) -> list[NumberedFile]:
    of_log = with_dispatched(files, cluster.store.snapshot().positions.dispatched)
    return [
        NumberedFile(**fields_of(file), row=str(number))
        for number, file in enumerate(await cluster.files.with_times(of_log))
    ]


async def _queues_from_files(cluster, request, files: list[StoreFile]) -> QueueFiles:
    """Return the files of queues of a store that could not be opened."""
    search = request.GET.get("q", "").strip()
    queues = {
        (file.topic, file.queue_id)
        for file in files
        if file.kind == "consumequeue" and file.topic is not None and file.queue_id is not None
    }
    found = sorted(queue for queue in queues if search.lower() in queue[0].lower())
    parts = _parts(len(found))
    part = min(_part(request), parts)
    shown = set(found[(part - 1) * QUEUES_PER_PART : part * QUEUES_PER_PART])
    return QueueFiles(
        queue_files=await cluster.files.with_times(
            [file for file in files if (file.topic, file.queue_id) in shown]
        ),
        queues=len(found),
        part=part,
        parts=parts,
        q=search,
    )


async def _queue_files(cluster, request) -> QueueFiles:
    search, part = request.GET.get("q", "").strip(), _part(request)
    wanted = search.lower()
    files, queues = await cluster.files.of_queues(wanted, (part - 1) * QUEUES_PER_PART, QUEUES_PER_PART)
    parts = _parts(queues)
    if part > parts:  # as when fewer are found than before
        part = parts
        files, queues = await cluster.files.of_queues(wanted, (part - 1) * QUEUES_PER_PART, QUEUES_PER_PART)
    return QueueFiles(
        queue_files=await cluster.files.with_times(files), queues=queues, part=part, parts=parts, q=search
    )


def _part(request) -> int:
    return whole(request.GET.get("part"), 1)


def _parts(queues: int) -> int:
    return max(1, -(-queues // QUEUES_PER_PART))


PAGES = (path("store/", store, name="store"),)
