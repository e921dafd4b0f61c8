"""Counts of the messages that wait on the timer wheel, by topic and by hour, and how late they are delivered.

The wheel itself has only a count for each second and the hash of each message's topic. The counts by topic
are those of Apache's file `timermetrics`; ours is written for a broker of Apache's that opens the store
later.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from broker_store.formats.config_json import DataVersion
from broker_store.formats.java_hash import java_hash, java_text

METRICS_FILE_NAME = "timermetrics"
HOUR_MS = 3_600_000
_MAX_HOURS_SHOWN = 7 * 24


@dataclass(frozen=True, slots=True, kw_only=True)
class OnTheWheel:
    """The messages that wait on the wheel."""

    messages: int
    hours: list[tuple[int, int]]  # (ms since 1970, messages) of the hours of their slots, the first of them
    topics: dict[str, int]  # messages by topic


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFacts:
    """The waiting messages of a timer, and what was done since the start."""

    enabled: bool
    waiting: int  # on the wheel
    hours: list[tuple[int, int]]  # (ms since 1970, messages); rolled ones in the hour of their next roll
    topics: dict[str, int]  # messages by real topic
    not_enqueued: int  # still in the timer topic's queue
    due: int  # their time has come
    overdue_ms: int  # since the oldest of these was due
    late_ms: int  # the longest delay of a delivery in this minute and the one before
    read_ms: int  # slots before it were read
    queue_offset: int  # that is put on the wheel next
    enqueued: int
    delivered: int
    rolled: int
    deleted: int
    dropped: int
    failures: int


class TimerCounts:
    """The counts of one broker's timer, used on the event loop only. `clock` gives milliseconds since
    1970."""

    def __init__(self, clock: Callable[[], int]):
        self._clock = clock
        self._names: dict[int, str] = {}  # topics by their hash
        self._by_topic: Counter[str] = Counter()
        self._topic_changed_ms: dict[str, int] = {}
        self._by_hour: Counter[int] = Counter()
        self._minute = 0
        # The longest lateness of a delivery in `_minute` and in the minute before
        self._max_late_ms: tuple[int, int] = (0, 0)
        self._is_changed = False
        self.metrics_version = DataVersion(timestamp=clock())

    def start(self, topics: Iterable[str], by_hash: Mapping[int, int], by_hour: Mapping[int, int]) -> None:
        """Take the counts that a scan of the wheel found: by hash of the topic, and by hour (ms)."""
        self._by_hour.update(by_hour)
        self._names = {java_hash(topic): topic for topic in topics}
        self._by_topic.update(
            {topic: by_hash[hashed] for hashed, topic in self._names.items() if hashed in by_hash}
        )
        self._is_changed = True  # another broker may have written the file, with the counts of its time

    def learn_name(self, topic_hash: int, topic: bytes) -> None:
        """Note the name of a topic whose message is put on the wheel."""
        if topic_hash not in self._names:
            self._names[topic_hash] = java_text(topic)

    def add(self, topic: str, slot_ms: int, more: int) -> None:
        """Count `more` messages of a topic in a slot; fewer when it is negative."""
        self._by_topic[topic] = max(0, self._by_topic[topic] + more)
        self._topic_changed_ms[topic] = self._clock()
        self._is_changed = True
        self._add_hour(slot_ms, more)

    def remove(self, topic_hash: int, slot_ms: int) -> None:
        """Count a message of a slot less, of which only the topic's hash is known."""
        topic = self._names.get(topic_hash)
        if topic is None:
            self._add_hour(slot_ms, -1)
        else:
            self.add(topic, slot_ms, -1)

    def _add_hour(self, slot_ms: int, more: int) -> None:
        hour_ms = slot_ms // HOUR_MS * HOUR_MS
        self._by_hour[hour_ms] += more
        if not self._by_hour[hour_ms]:
            del self._by_hour[hour_ms]

    def note_lateness(self, late_ms: int, now_ms: int) -> None:
        """Note how late a group was delivered, for `recent_lateness_ms`."""
        minute = now_ms // 60_000
        if minute != self._minute:
            self._max_late_ms = (0, self._max_late_ms[0] if minute == self._minute + 1 else 0)
            self._minute = minute
        self._max_late_ms = (max(late_ms, self._max_late_ms[0]), self._max_late_ms[1])

    def recent_lateness_ms(self, now_ms: int) -> int:
        """Return the longest lateness of a delivery in this minute and the one before."""
        minute = now_ms // 60_000
        if minute == self._minute:
            return max(self._max_late_ms)
        return self._max_late_ms[0] if minute == self._minute + 1 else 0

    def of_topic(self, topic: str) -> int:
        """Return how many messages of a topic wait on the wheel."""
        return self._by_topic[topic]

    def facts(self) -> OnTheWheel:
        return OnTheWheel(
            messages=sum(self._by_hour.values()),
            hours=sorted(self._by_hour.items())[:_MAX_HOURS_SHOWN],
            topics={topic: count for topic, count in sorted(self._by_topic.items()) if count},
        )

    def metrics_json(self) -> dict:
        """Return the waiting messages of each topic, in the form of Apache's `timermetrics`."""
        table = {
            topic: {
                "count": count,
                "timeStamp": self._topic_changed_ms.get(topic, self.metrics_version.timestamp),
            }
            for topic, count in self._by_topic.items()
        }
        return {"dataVersion": self.metrics_version.to_json(), "timingCount": table}

    def metrics_picture(self) -> Callable[[], bytes] | None:
        """Return a function that makes the text of `timermetrics` as of now; None without a change."""
        if not self._is_changed:
            return None
        self._is_changed = False
        self.metrics_version = self.metrics_version.next(self._clock())
        value = self.metrics_json()
        return lambda: json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
