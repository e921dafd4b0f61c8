"""Counters and rates: what came in and went out, for the whole broker, each topic and each group of a topic.

A `Meter` counts messages and bytes. `tick` is called once a second and remembers each meter that moved, so a rate is
measured between two moments, never smoothed: over 1 s and 10 s for the dashboard, over a minute, 10 minutes, an hour
and a day for Apache's tools. Today's totals begin at local midnight, as Apache's do.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from broker_store.broker.flow import Refusals
from broker_store.broker.put_times import PutTimes

KEPT_SECONDS = 11
KEPT_TEN_SECONDS = 61
KEPT_TEN_MINUTES = 7
KEPT_HOURS = 25
QUIET_SECONDS = 620  # after these every rate is 0 and a meter is no longer sampled until it moves
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


class Meter:
    """Messages and bytes since the start, with samples of the past; `times` they came, where that is counted. Times are milliseconds."""

    __slots__ = ("messages", "bytes", "times", "_seconds", "_tens", "_ten_minutes", "_hours", "_quiet")

    def __init__(self, now_ms: int):
        self.messages = 0
        self.bytes = 0
        self.times = 0
        self._seconds: deque[tuple[int, int, int]] = deque([(now_ms, 0, 0)], maxlen=KEPT_SECONDS)
        self._tens: deque[tuple[int, int, int]] = deque([(now_ms, 0, 0)], maxlen=KEPT_TEN_SECONDS)
        self._ten_minutes: deque[tuple[int, int, int]] = deque([(now_ms, 0, 0)], maxlen=KEPT_TEN_MINUTES)
        self._hours: deque[tuple[int, int, int]] = deque([(now_ms, 0, 0)], maxlen=KEPT_HOURS)
        self._quiet = 0

    def sample(self, now_ms: int) -> bool:
        """Remember the counters; False when they have not moved for so long that every rate is 0."""
        if self._quiet >= QUIET_SECONDS and now_ms - self._seconds[-1][0] > 2_000:
            # It was left alone while it was quiet; until a second ago its counters were what they were then.
            self._remember((now_ms - 1_000, *self._seconds[-1][1:]))
        self._quiet = 0 if self._seconds[-1][1] != self.messages else self._quiet + 1
        self._remember((now_ms, self.messages, self.bytes))
        return self._quiet < QUIET_SECONDS

    def _remember(self, sample: tuple[int, int, int]) -> None:
        self._seconds.append(sample)
        for samples, apart_ms in ((self._tens, 10_000), (self._ten_minutes, 600_000), (self._hours, HOUR_MS)):
            if sample[0] - samples[-1][0] >= apart_ms - 500:
                samples.append(sample)

    def rates(self, over_ms: int) -> tuple[float, float]:
        """Messages and bytes a second over the last `over_ms`, from the samples: at least up to the last tick."""
        samples = self._seconds if over_ms <= 10_000 else self._tens
        last = self._seconds[-1]
        begin = next((sample for sample in samples if sample[0] >= last[0] - over_ms - 500), last)
        elapsed_s = (last[0] - begin[0]) / 1000
        if elapsed_s <= 0:
            return 0.0, 0.0
        return (last[1] - begin[1]) / elapsed_s, (last[2] - begin[2]) / elapsed_s

    def lately(self, now_ms: int, over_ms: int) -> tuple[int, int, float]:
        """Messages and bytes of the last minute, hour or day, and the seconds that this was measured over."""
        samples = {MINUTE_MS: self._tens, HOUR_MS: self._ten_minutes, DAY_MS: self._hours}[over_ms]
        begin = next((sample for sample in samples if sample[0] >= now_ms - over_ms - 500), None)
        if begin is None:  # it has been quiet for longer than that
            return 0, 0, over_ms / 1000
        return self.messages - begin[1], self.bytes - begin[2], (now_ms - begin[0]) / 1000

    def per_second(self, over_ms: int = 10_000) -> float:
        return self.rates(over_ms)[0]

    def facts(self) -> dict:
        """What the dashboard shows of a meter."""
        rate_1s, bytes_1s = self.rates(1_000)
        rate_10s, bytes_10s = self.rates(10_000)
        return {
            "messages": self.messages,
            "bytes": self.bytes,
            "rate_1s": rate_1s,
            "rate_10s": rate_10s,
            "bytes_1s": bytes_1s,
            "bytes_10s": bytes_10s,
        }


class Statistics:
    """All meters. `clock` gives milliseconds."""

    def __init__(self, *, clock: Callable[[], int]):
        self._clock = clock
        now_ms = clock()
        self.started_ms = now_ms
        self.put = Meter(now_ms)
        self.got = Meter(now_ms)
        self.sent_back = Meter(now_ms)
        self.pulls = 0
        self.pulls_found = 0
        # Reads of the store for pulls, also those of a parked pull that looks again, by whether they gave messages.
        self.reads_found = Meter(now_ms)
        self.reads_missed = Meter(now_ms)
        self.longest_read_s = 0.0
        self.put_times = PutTimes(now_ms)
        self.timer_enqueued = Meter(now_ms)
        self.timer_delivered = Meter(now_ms)
        self.refusals = Refusals(clock)
        self.refuse = self.refusals.add
        self._topics: dict[str, Meter] = {}
        self._groups: dict[tuple[str, str], Meter] = {}
        self._sent_back: dict[tuple[str, str], Meter] = {}
        self._cold: dict[tuple[str, str], Meter] = {}
        self._moving: set[Meter] = set()
        self._days = _Days(now_ms)

    def stored(self, topic: str, messages: int, size: int) -> None:
        """Messages were put to a topic, `size` bytes of bodies together."""
        self.put.messages += messages
        self.put.bytes += size
        meter = self._topics.get(topic)
        if meter is None:
            meter = self._topics[topic] = Meter(self._clock())
        meter.messages += messages
        meter.bytes += size
        self._moving.add(meter)

    def delivered(self, group: str, topic: str, messages: int, size: int, cold: bool = False) -> None:
        """Messages were handed to a group by one read, `size` bytes of records together; `cold` when a thread had to read them."""
        self.got.messages += messages
        self.got.bytes += size
        meter = self._groups.get((group, topic))
        if meter is None:
            meter = self._groups[group, topic] = Meter(self._clock())
        meter.messages += messages
        meter.bytes += size
        meter.times += 1
        self._moving.add(meter)
        if cold:
            self._came_cold(group, topic, messages, size)

    def _came_cold(self, group: str, topic: str, messages: int, size: int) -> None:
        meter = self._cold.get((group, topic))
        if meter is None:
            meter = self._cold[group, topic] = Meter(self._clock())
        meter.messages += messages
        meter.bytes += size
        meter.times += 1
        self._moving.add(meter)

    def gave_back(self, group: str, topic: str | None) -> None:
        """A group sent a message back that it had from a topic; None for one that is not known."""
        self.sent_back.messages += 1
        if topic is not None:
            meter = self._sent_back.get((group, topic))
            if meter is None:
                meter = self._sent_back[group, topic] = Meter(self._clock())
            meter.messages += 1
            self._moving.add(meter)

    def tick(self, now_ms: int) -> None:
        """Once a second."""
        for meter in (self.put, self.got, self.sent_back, self.reads_found, self.reads_missed, self.timer_enqueued, self.timer_delivered):
            meter.sample(now_ms)
        self.put_times.tick(now_ms)
        for meter in list(self._moving):
            if not meter.sample(now_ms):
                self._moving.discard(meter)
        self._days.tick(now_ms, self.put.messages, self.got.messages)

    def read(self, found: bool, seconds: float) -> None:
        """The store was read for a pull."""
        meter = self.reads_found if found else self.reads_missed
        meter.messages += 1
        if seconds > self.longest_read_s:
            self.longest_read_s = seconds

    def timed(self, enqueued: int, delivered: int) -> None:
        """How many messages the timer has put on its wheel and delivered since the start."""
        self.timer_enqueued.messages, self.timer_delivered.messages = enqueued, delivered

    def topic(self, name: str) -> Meter | None:
        return self._topics.get(name)

    def group_topic(self, group: str, topic: str) -> Meter | None:
        return self._groups.get((group, topic))

    def sent_back_of(self, group: str, topic: str) -> Meter | None:
        return self._sent_back.get((group, topic))

    def reads(self) -> list[dict]:
        """What each group got of each topic by reads from memory and, `cold`, by reads that a thread had to make."""
        return [{"group": group, "topic": topic} | _split(meter, self._cold.get((group, topic))) for (group, topic), meter in self._groups.items()]

    def group(self, name: str) -> dict[str, Meter]:
        """topic -> meter of what the group got."""
        return {topic: meter for (group, topic), meter in self._groups.items() if group == name}

    def put_rate(self, topic: str) -> float:
        meter = self._topics.get(topic)
        return meter.per_second() if meter else 0.0

    def got_rate(self, group: str, topic: str | None = None) -> float:
        meters = self.group(group)
        return sum(meter.per_second() for name, meter in meters.items() if topic is None or name == topic)

    def got_rates(self) -> dict[tuple[str, str], float]:
        """(group, topic) -> messages a second handed out, of all that were ever read."""
        return {key: meter.per_second() for key, meter in self._groups.items()}

    def forget_topic(self, name: str) -> None:
        self._topics.pop(name, None)
        for table in (self._groups, self._sent_back, self._cold):
            for key in [key for key in table if key[1] == name]:
                del table[key]

    def forget_group(self, name: str) -> None:
        for table in (self._groups, self._sent_back, self._cold):
            for key in [key for key in table if key[0] == name]:
                del table[key]

    def rates(self) -> dict:
        """The whole broker's facts for the dashboard."""
        return {
            "put": self.put.facts(),
            "got": self.got.facts(),
            "sent_back": self.sent_back.facts(),
            "pulls": self.pulls,
            "pulls_found": self.pulls_found,
        }

    def days(self) -> dict[str, int]:
        """Totals at local midnights, as Apache's tools subtract them: put and got, yesterday, today and now."""
        return {
            "msgPutTotalYesterdayMorning": self._days.yesterday[0],
            "msgPutTotalTodayMorning": self._days.today[0],
            "msgPutTotalTodayNow": self.put.messages,
            "msgGetTotalYesterdayMorning": self._days.yesterday[1],
            "msgGetTotalTodayMorning": self._days.today[1],
            "msgGetTotalTodayNow": self.got.messages,
        }


def _split(all_reads: Meter, cold: Meter | None) -> dict:
    """The reads of a group, those from memory and the cold ones, since the start and a second over the last ten."""
    per_s, bytes_per_s = all_reads.rates(10_000)
    cold_per_s, cold_bytes_per_s = cold.rates(10_000) if cold is not None else (0.0, 0.0)
    cold_reads, cold_messages, cold_bytes = (cold.times, cold.messages, cold.bytes) if cold is not None else (0, 0, 0)
    return {
        "reads": all_reads.times,
        "messages": all_reads.messages,
        "bytes": all_reads.bytes,
        "per_s": per_s,
        "bytes_per_s": bytes_per_s,
        "cold_reads": cold_reads,
        "cold_messages": cold_messages,
        "cold_bytes": cold_bytes,
        "cold_per_s": cold_per_s,
        "cold_bytes_per_s": cold_bytes_per_s,
    }


class _Days:
    """The totals at the last two midnights."""

    def __init__(self, now_ms: int):
        self._day = _local_day(now_ms)
        self.yesterday = (0, 0)
        self.today = (0, 0)

    def tick(self, now_ms: int, put: int, got: int) -> None:
        day = _local_day(now_ms)
        if day != self._day:
            self._day = day
            self.yesterday, self.today = self.today, (put, got)


def _local_day(now_ms: int) -> tuple[int, int]:
    local = time.localtime(now_ms / 1000)
    return local.tm_year, local.tm_yday
