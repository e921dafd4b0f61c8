"""The offsets from which the lag of a group is counted.

These are the offsets that the group committed. A retry topic also counts where the group has no offset: a
message comes again before the next pop commits one, and a consumer begins there at the first message. So all
messages of such a queue are lag.

Lags on pages, by REST, commands and metrics, the samples of groups, timelines, the disk's forecast and
request 208 are counted from these offsets. A broker has offsets and queues in memory; without one they are in
files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from broker_store.formats.names import RETRY_PREFIX, pop_retry_topic, retry_topic

BROADCAST = "@broadcast"  # suffix of a group's name, for the slowest client of a broadcasting group
Entry = tuple[str, str, dict[int, int]]  # group, topic, queue -> offset


class LagOffsets:
    """Finds retry topics, and the queues of these without an offset. Any thread.

    `queue_ids` returns the queues of a topic, none if it does not exist. `ends` returns the first offset of a
    queue and the next one. `is_group` says whether a group of a name exists.
    """

    def __init__(
        self,
        *,
        queue_ids: Callable[[str], Sequence[int]],
        ends: Callable[[str, int], tuple[int, int]],
        is_group: Callable[[str], bool],
        committed: Callable[[str, str], Mapping[int, int]],
    ):
        self._queue_ids, self._ends, self._is_group = queue_ids, ends, is_group
        self._committed = committed  # by group and topic

    def retry_topics(self, group: str, topics: Iterable[str]) -> list[str]:
        """Return the retry topics of a group that hold, or held, messages: that of messages that it sent
        back, and those of messages that it popped. `topics` are those in which it has offsets."""
        sent_back = retry_topic(group)
        found = [sent_back] if self._queue_ids(sent_back) else []
        return found + self.pop_retry_topics(group, topics)

    def pop_retry_topics(self, group: str, topics: Iterable[str]) -> list[str]:
        """Return the retry topics with messages of `topics` that a group popped. A pop commits an offset of
        its topic, so the topics with offsets lead to all of them, by two look-ups each.

        A name that is also the retry topic of another group belongs to that group.
        """
        return [
            name
            for topic in topics
            if not topic.startswith(RETRY_PREFIX)
            for name in (pop_retry_topic(topic, group), pop_retry_topic(topic, group, version=2))
            if self._queue_ids(name) and not self._is_group(name.removeprefix(RETRY_PREFIX))
        ]

    def unread(self, group: str, retry: str) -> dict[int, int]:
        """Return queue → first offset of the queues of a retry topic that hold messages, and in which the
        group has no offset."""
        found, committed = {}, self._committed(group, retry)
        for queue_id in self._queue_ids(retry):
            low, high = self._ends(retry, queue_id)
            if high > low and queue_id not in committed:
                found[queue_id] = low
        return found

    def of_all(self, committed: Iterable[Entry], groups: Iterable[str]) -> Iterator[Entry]:
        """Yield all committed offsets, and then those of retry topics without one. `groups` are those that
        may have sent messages back and have no offset at all."""
        seen = set(groups)
        for group, topic, queues in committed:
            yield group, topic, queues
            if not group.endswith(BROADCAST):
                seen.add(group)
                for retry in self.pop_retry_topics(group, (topic,)):
                    yield from self._entry(group, retry)
        for group in sorted(seen):
            yield from self._entry(group, retry_topic(group))

    def _entry(self, group: str, retry: str) -> Iterator[Entry]:
        if unread := self.unread(group, retry):
            yield group, retry, unread
