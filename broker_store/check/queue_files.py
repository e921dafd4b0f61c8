"""The files of all queues: which directories are queues, and how long their files should be."""

from __future__ import annotations

from pathlib import Path

from broker_store.check.files import FileLists, StoreFile, named
from broker_store.check.log import Log
from broker_store.check.places import PlaceCheck
from broker_store.check.queue import Queue
from broker_store.check.report import ERROR
from broker_store.check.store import CheckedStore
from broker_store.engine.disk.file_sizes import likely_size
from broker_store.errors import NameError_
from broker_store.formats import names, queue_unit

QueueKey = tuple[str, int]  # topic, queue id
_MAX_ID_DIGITS = 9


def load_queues(
    store: CheckedStore,
    lists: FileLists,
    places: PlaceCheck,
    log: Log,
    wanted_size: int | None,
    noted_size: int | None,
) -> tuple[dict[QueueKey, Queue], int | None]:
    """Return (the queues of the store, the length that each of their files should have in bytes).

    `wanted_size` is the length that the caller gives, `noted_size` the one that the last start used. The
    length is None when nothing shows it.
    """
    listed = _listed(store, lists)
    # Of all queues together, since many have one file only, with no other to compare.
    size = wanted_size or likely_size(
        (named(files) for _, files in listed.values()), noted_size, queue_unit.SIZE
    )
    places.queue_files(listed, size, log.record_at)
    queues: dict[QueueKey, Queue] = {}
    for key, (directory, files) in listed.items():
        files = lists.in_order(directory, files, size, key)
        store.report.count("queue_files", len(files))
        queues[key] = Queue(store.disk, key, str(directory), files)
    return queues, size


def _listed(store: CheckedStore, lists: FileLists) -> dict[QueueKey, tuple[Path, list[StoreFile]]]:
    """Return directory and files of each queue, by their names."""
    disk, report = store.disk, store.report
    listed: dict[QueueKey, tuple[Path, list[StoreFile]]] = {}
    top = store.root / "consumequeue"
    for topic in disk.list_names(top):
        try:
            names.check_stored_topic(topic)
        except NameError_ as error:
            report.add(ERROR, "stray-file", str(top / topic), None, str(error))
            continue
        if not disk.is_directory(top / topic):
            report.add(ERROR, "unreadable", str(top / topic), None, "is no directory")
            continue
        for name in disk.list_names(top / topic):
            directory = top / topic / name
            if not (name.isascii() and name.isdigit() and len(name) <= _MAX_ID_DIGITS):
                report.add(ERROR, "stray-file", str(directory), None, "is no number of a queue")
                continue
            if not disk.is_directory(directory):
                report.add(ERROR, "unreadable", str(directory), None, "is no directory")
                continue
            key = (topic, int(name))
            listed[key] = directory, lists.listed(directory, f"consumequeue/{topic}/{name}", key)
    return listed
