"""The residency of some of the files, as page, stream and REST show it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from broker_store.facts import cache
from broker_store.units import Small, fields_of
from mqadmin.facts.cache import CachePicture, CacheReaders

PAGE_LOG_FILES = 24
PAGE_QUEUE_FILES = 10


@dataclass(frozen=True, kw_only=True)
class _QueueFiles:
    queue_files: int  # of queues, of which those with the most in memory are shown


@dataclass(frozen=True, kw_only=True)
class ShownCache(_QueueFiles, CacheReaders, cache.Residency):
    """The residency and the readers, with some of the files of queues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCache(ShownCache):
    """The data of page and stream."""

    older: Small  # files of the log that are left out


def shown(picture: CachePicture, queue_files: int, topic: str | None = None) -> ShownCache:
    """Return the picture with at most `queue_files` files of queues, of one topic when it is named."""
    few = cache.few_files(picture, queue_files, topic)
    return ShownCache(**fields_of(replace(picture, files=few.files)), queue_files=few.queue_files)


def for_page(picture: CachePicture) -> PageCache:
    """Return the picture for page and stream: the newest files of the log and those in which a group reads,
    and the queues' files with the most in memory."""
    found = shown(picture, PAGE_QUEUE_FILES)
    log = [file for file in found.files if file.kind == "commitlog"]
    places = [group.log_offset for group in found.groups if group.log_offset is not None]
    old = [
        file
        for file in log[:-PAGE_LOG_FILES]
        if not any(file.base is not None and file.base <= place < file.base + file.size for place in places)
    ]
    names = {file.name for file in old}
    files = [file for file in found.files if file.kind != "commitlog" or file.name not in names]
    return PageCache(**fields_of(found) | {"files": files}, older=len(old))
