"""Changes of the mappings of static topics: by request 513, and by the cleaning of old items.

They are made one after another, and the file is written before a change acts. Without it the offsets of
messages that are sent then would be others after a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker_store.broker.static_topics import FILE_NAME, StaticTopics
from broker_store.engine.store_protocol import Store
from broker_store.formats.static_topics import TopicMapping

Change = Callable[[TopicMapping | None], TopicMapping | None]


class StaticTopicChanges:
    """For coroutines of the loop."""

    def __init__(self, static_topics: StaticTopics, store: Store):
        self._static_topics, self._store = static_topics, store
        self._lock = asyncio.Lock()

    async def make(self, topic: str, change: Change) -> bool:
        """Replace the mapping of a topic by `change(mapping)`, after its file was written; nothing if that is
        None. Return whether it was replaced. Raises what `change` raises, and StoreError; then nothing is
        changed."""
        async with self._lock:
            mapping = change(self._static_topics.get(topic))
            if mapping is None:
                return False
            text = self._static_topics.text_with(mapping)
            await asyncio.to_thread(self._store.write_config, FILE_NAME, text)
            self._static_topics.put(mapping)
            return True
