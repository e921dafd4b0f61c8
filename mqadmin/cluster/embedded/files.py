"""The files of this process's store."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from broker_store.engine.status.store_state import StoreFile
from broker_store.facts.directory import File
from broker_store.turns import in_turns
from broker_store.units import fields_of
from mqadmin.cluster.embedded.host import Host
from mqadmin.cluster.protocol import Files
from mqadmin.facts.store import QueueFile


class EmbeddedFiles(Files):
    """The implementation for the broker of this process."""

    def __init__(self, host: Host):
        self._host = host

    def known(self, *kinds: str) -> list[StoreFile]:
        return self._host.open_store.status.files(*kinds)

    async def all(self, *kinds: str, topic: str | None = None) -> list[StoreFile]:
        directory, store = self._host.directory(), self._host.process.store
        if store.state not in ("running", "read_only"):
            return await self._host.in_thread(lambda: _chosen(directory.files(), kinds, topic))
        found: list[StoreFile] = []
        others = [kind for kind in ("commitlog", "index") if not kinds or kind in kinds]
        if topic is None and others:
            found += store.status.files(*others)
        if not kinds or "consumequeue" in kinds:
            queues = (
                store.queues()
                if topic is None
                else [(topic, queue_id) for queue_id in store.queue_ids(topic)]
            )
            async for some in in_turns(queues):
                for queue in some:
                    found += store.status.queue_files(*queue)
        return found + _chosen(await self.hung(), kinds, topic)

    async def hung(self) -> list[StoreFile]:
        return await self._host.in_thread(self._host.open_store.status.hung_files)

    async def with_times(self, files: Sequence[File]) -> list[File]:
        return await self._host.in_thread(self._host.directory().with_times, files)

    async def of_queues(self, search: str, begin: int, count: int) -> tuple[list[QueueFile], int]:
        store = self._host.open_store
        queues = store.queues()
        if search:
            queues = [
                queue async for some in in_turns(queues) for queue in some if search in queue[0].lower()
            ]
        files = [
            QueueFile(
                **fields_of(file),
                min_offset=store.reads.min_offset(*queue),
                max_offset=store.reads.max_offset(*queue),
            )
            for queue in queues[begin : begin + count]
            for file in store.status.queue_files(*queue)
        ]
        return files, len(queues)


def _chosen(files: list[StoreFile], kinds: Collection[str], topic: str | None) -> list[StoreFile]:
    """Return the files of the named kinds (all without one), and of one topic if it is named."""
    return [file for file in files if (not kinds or file.kind in kinds) and topic in (None, file.topic)]
