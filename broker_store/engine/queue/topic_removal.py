"""Removal of a topic's queues; its records stay in the log until they are too old."""

from __future__ import annotations

from broker_store.engine.store_parts import StoreParts
from broker_store.errors import SyncError


def remove_topic(parts: StoreParts, topic: str) -> None:
    """Remove the topic's queues with their files. Raises StoreError. Loop's thread.

    A tombstone in config/deletedTopics.json notes where they end: a later topic of that name must not get
    them back when a start dispatches the log again.
    """
    disk, log, queues, confirmation = parts.disk, parts.log, parts.queues, parts.confirmation
    if parts.dispatcher.dispatched < log.wrote:
        try:
            log.sync(log.wrote)
        except SyncError as error:
            confirmation.stop_writing(str(error))
            raise
        confirmation.flushed(log.flushed)
    if not queues.ids_of(topic):
        return
    # The tombstone is on the disk first: from then on the queues' files are leftovers, which a start removes
    # if this process does not.
    parts.tombstones.add(topic, log.wrote)
    gone = queues.forget_topic(topic)
    for queue in gone:
        queue.close()
        for file in queue.files:
            disk.unlink(file.path, missing_ok=True)
        if disk.is_directory(queue.directory):
            disk.remove_directory(queue.directory)
    if disk.is_directory(queues.directory / topic):
        disk.remove_directory(queues.directory / topic)
    disk.sync_directory(queues.directory)
    parts.ends.forget([(topic, queue.queue_id) for queue in gone])
