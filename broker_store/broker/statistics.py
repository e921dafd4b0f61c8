"""Counters and rates: messages in and out, for the whole broker, each topic and each group of a topic.

A `Meter` counts messages and bytes. `tick` is called once a second and samples only the meters that moved
since the last tick, so its cost depends on the traffic and not on the number of topics. Where two samples are
more than a second apart, nothing moved until a second before the later one. So a rate is always a difference
between two moments, never smoothed: over 1 s and 10 s for the dashboard; over a minute, 10 minutes, an hour
and a day for Apache's tools. Totals of a day begin at local midnight, as Apache's do.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator

from broker_store.broker.buckets import ApacheHistograms
from broker_store.broker.flow import Refusals
from broker_store.broker.group_reads import GroupReads
from broker_store.broker.put_times import PutTimes

# Samples kept of each interval: one more than the intervals of the longest rate
KEPT_SECONDS = 11
KEPT_TEN_SECONDS = 61
KEPT_TEN_MINUTES = 7
KEPT_HOURS = 25
RECENT_MS = 10_000  # a topic is active if something moved within this time
MAX_FORGOTTEN = 40_000  # topics that one tick removes from the active ones
STEP = 64  # meters that a tick samples between two pauses
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


Sample = tuple[int, int, int]  # time (ms), messages, bytes


class _Ticks:
    """The time of the last sampling of all meters."""

    __slots__ = ("now_ms",)

    def __init__(self, now_ms: int):
        self.now_ms = now_ms


def _keep(samples: list[Sample], sample: Sample, most: int) -> None:
    """Add a sample, without the oldest of more than `most`."""
    samples.append(sample)
    if len(samples) > most:
        del samples[0]


class Meter:
    """Messages and bytes since the start, with past samples. `times` counts reads, where that is used. Times
    are milliseconds."""

    __slots__ = (
        "messages",
        "bytes",
        "times",
        "topic",
        "_ticks",
        "_seconds",
        "_tens",
        "_ten_minutes",
        "_hours",
    )

    def __init__(self, now_ms: int, ticks: _Ticks, topic: str | None = None):
        self.topic = topic
        self.messages = 0
        self.bytes = 0
        self.times = 0
        self._ticks = ticks
        # Lists: a deque takes 760 bytes at least, and each topic has four of them.
        first = (now_ms, 0, 0)
        self._seconds: list[Sample] = [first]
        self._tens: list[Sample] = [first]
        self._ten_minutes: list[Sample] = [first]
        self._hours: list[Sample] = [first]

    def sample(self, now_ms: int) -> None:
        """Save the counters of now as a sample."""
        last = self._seconds[-1]
        if now_ms - last[0] > 2_000:
            # The meter did not move until a second ago, so its counters then were those of the last sample.
            self._remember((now_ms - 1_000, last[1], last[2]))
        self._remember((now_ms, self.messages, self.bytes))

    def _remember(self, sample: Sample) -> None:
        _keep(self._seconds, sample, KEPT_SECONDS)
        for samples, apart_ms, most in (
            (self._tens, 10_000, KEPT_TEN_SECONDS),
            (self._ten_minutes, 600_000, KEPT_TEN_MINUTES),
            (self._hours, HOUR_MS, KEPT_HOURS),
        ):
            if sample[0] - samples[-1][0] >= apart_ms - 500:
                _keep(samples, sample, most)

    def rates(self, over_ms: int) -> tuple[float, float]:
        """Return messages and bytes per second over the last `over_ms`, measured up to the last tick. Any
        thread."""
        last = self._seconds[-1]
        now_ms = max(self._ticks.now_ms, last[0])
        begin = self._begin(self._seconds if over_ms <= 10_000 else self._tens, now_ms, over_ms)
        elapsed_s = (now_ms - begin[0]) / 1000
        if elapsed_s <= 0:
            return 0.0, 0.0
        return (last[1] - begin[1]) / elapsed_s, (last[2] - begin[2]) / elapsed_s

    def lately(self, now_ms: int, over_ms: int) -> tuple[int, int, float]:
        """Return messages and bytes of the last minute, hour or day, and the seconds that were measured."""
        samples = {MINUTE_MS: self._tens, HOUR_MS: self._ten_minutes, DAY_MS: self._hours}[over_ms]
        begin = self._begin(samples, now_ms, over_ms)
        return self.messages - begin[1], self.bytes - begin[2], (now_ms - begin[0]) / 1000

    def _begin(self, samples: list[Sample], now_ms: int, over_ms: int) -> Sample:
        """Return the counters `over_ms` before `now_ms`, or at the meter's begin if that is later."""
        from_ms = now_ms - over_ms
        before = None
        for sample in samples.copy():  # one step, so the loop cannot change it meanwhile
            if sample[0] >= from_ms - 500:
                # A sample near that time is used as it is. Otherwise nothing moved between that time and this
                # sample.
                return (
                    sample
                    if before is None or sample[0] <= from_ms + 500
                    else (from_ms, sample[1], sample[2])
                )
            before = sample
        last = self._seconds[-1]
        quiet = last if before is None or last[0] < from_ms - 500 else before
        return from_ms, quiet[1], quiet[2]

    def per_second(self, over_ms: int = 10_000) -> float:
        return self.rates(over_ms)[0]


class Statistics:
    """All meters. `clock` returns milliseconds."""

    def __init__(self, *, clock: Callable[[], int]):
        self._clock = clock
        now_ms = clock()
        self.started_ms = now_ms
        self._ticks = _Ticks(now_ms)
        self.put = Meter(now_ms, self._ticks)
        self.got = Meter(now_ms, self._ticks)
        # Reads of the store for pulls, also repeated reads for a parked pull, by whether they found messages.
        self.reads_found = Meter(now_ms, self._ticks)
        self.reads_missed = Meter(now_ms, self._ticks)
        self.longest_read_s = 0.0
        self.put_times = PutTimes(now_ms)
        self.histograms = ApacheHistograms()
        self.timer_enqueued = Meter(now_ms, self._ticks)
        self.timer_delivered = Meter(now_ms, self._ticks)
        self.refusals = Refusals(clock)
        self.refuse = self.refusals.add
        self._topics: dict[str, Meter] = {}
        self._groups: dict[tuple[str, str], Meter] = {}
        self._sent_back: dict[tuple[str, str], Meter] = {}
        self._cold: dict[tuple[str, str], Meter] = {}
        self._moved: set[Meter] = set()  # since the last tick
        # Both directions of the pairs in the three tables above.
        self._topics_of: dict[str, set[str]] = {}
        self._groups_of: dict[str, set[str]] = {}
        # Topic -> the tick at which a meter of it was sampled last, in the order of those ticks
        self._recent: dict[str, int] = {}
        self._days = _Days(now_ms)

    def stored(self, topic: str, messages: int, size: int) -> None:
        """Count messages that were put to a topic, with `size` bytes of bodies together."""
        self.put.messages += messages
        self.put.bytes += size
        meter = self._topics.get(topic)
        if meter is None:
            meter = self._topics[topic] = Meter(self._clock(), self._ticks, topic)
        meter.messages += messages
        meter.bytes += size
        self._moved.add(meter)

    def delivered(self, group: str, topic: str, messages: int, size: int, cold: bool = False) -> None:
        """Count messages that one read delivered to a group, `size` bytes of records together; `cold` when a
        thread had to read them."""
        self.got.messages += messages
        self.got.bytes += size
        meter = self._groups.get((group, topic))
        if meter is None:
            meter = self._groups[group, topic] = self._new_pair(group, topic)
        meter.messages += messages
        meter.bytes += size
        meter.times += 1
        self._moved.add(meter)
        if cold:
            self._came_cold(group, topic, messages, size)

    def _came_cold(self, group: str, topic: str, messages: int, size: int) -> None:
        meter = self._cold.get((group, topic))
        if meter is None:
            meter = self._cold[group, topic] = self._new_pair(group, topic)
        meter.messages += messages
        meter.bytes += size
        meter.times += 1
        self._moved.add(meter)

    def _new_pair(self, group: str, topic: str) -> Meter:
        self._topics_of.setdefault(group, set()).add(topic)
        self._groups_of.setdefault(topic, set()).add(group)
        return Meter(self._clock(), self._ticks, topic)

    def sent_back(self, group: str, topic: str) -> None:
        """Count a message that a group sent back; `topic` is where it came from."""
        meter = self._sent_back.get((group, topic))
        if meter is None:
            meter = self._sent_back[group, topic] = self._new_pair(group, topic)
        meter.messages += 1
        self._moved.add(meter)

    def tick(self, now_ms: int) -> None:
        """Sample all meters that moved; called once a second."""
        for _ in self.tick_in_steps(now_ms):
            pass

    def tick_in_steps(self, now_ms: int) -> Generator[None, None, None]:
        """Do as `tick`, with a pause after each STEP meters, in which others may move."""
        for meter in (
            self.put,
            self.got,
            self.reads_found,
            self.reads_missed,
            self.timer_enqueued,
            self.timer_delivered,
        ):
            meter.sample(now_ms)
        self.put_times.tick(now_ms)
        self._days.tick(now_ms, self.put.messages, self.got.messages)
        moved, self._moved = self._moved, set()
        recent = self._recent
        for number, meter in enumerate(moved, 1):
            meter.sample(now_ms)
            if meter.topic is not None:
                recent.pop(meter.topic, None)  # so that the latest topics are last
                recent[meter.topic] = now_ms
            if not number % STEP:
                yield
        self._ticks.now_ms = now_ms
        for number, (topic, at_ms) in enumerate(list(itertools.islice(recent.items(), MAX_FORGOTTEN)), 1):
            if now_ms - at_ms <= RECENT_MS:
                break
            del recent[topic]
            if not number % STEP:
                yield

    def read(self, found: bool, seconds: float) -> None:
        """Count a read of the store for a pull."""
        meter = self.reads_found if found else self.reads_missed
        meter.messages += 1
        if seconds > self.longest_read_s:
            self.longest_read_s = seconds

    def timed(self, enqueued: int, delivered: int) -> None:
        """Set how many messages the timer has put on its wheel and delivered since the start."""
        self.timer_enqueued.messages, self.timer_delivered.messages = enqueued, delivered

    def topic(self, name: str) -> Meter | None:
        return self._topics.get(name)

    def group_topic(self, group: str, topic: str) -> Meter | None:
        return self._groups.get((group, topic))

    def sent_back_of(self, group: str, topic: str) -> Meter | None:
        return self._sent_back.get((group, topic))

    def reads(self) -> list[GroupReads]:
        """Return the reads of each group from each topic: all, and the `cold` ones that a thread had to make.
        Any thread."""
        pairs = list(self._groups.items())
        return [
            _split(group, topic, meter, self._cold.get((group, topic))) for (group, topic), meter in pairs
        ]

    def group(self, name: str) -> dict[str, Meter]:
        """Return topic -> meter of the messages that the group received."""
        return {
            topic: meter
            for topic in self._topics_of.get(name, ())
            if (meter := self._groups.get((name, topic))) is not None
        }

    def out_rate(self, topic: str) -> float:
        """Return the messages of a topic that its groups received per second, over ten seconds."""
        return sum(
            (
                meter.per_second()
                for group in self._groups_of.get(topic, ())
                if (meter := self._groups.get((group, topic))) is not None
            ),
            0.0,
        )

    def recent_topics(self) -> list[str]:
        """Return the topics with traffic in the last ten seconds, the latest last."""
        return list(self._recent)

    def some_topics(self, limit: int) -> list[str]:
        """Return some topics with traffic since the start."""
        return list(itertools.islice(itertools.chain(self._topics, self._groups_of), limit))

    def active_topics(self) -> list[str]:
        """Return the topics with messages put or received since the start."""
        return list(self._topics.keys() | self._groups_of.keys())

    def put_rate(self, topic: str) -> float:
        meter = self._topics.get(topic)
        return meter.per_second() if meter else 0.0

    def got_rate(self, group: str, topic: str | None = None) -> float:
        meters = self.group(group)
        return sum(
            (meter.per_second() for name, meter in meters.items() if topic is None or name == topic), 0.0
        )

    def forget_topic(self, name: str) -> None:
        self._topics.pop(name, None)
        self._recent.pop(name, None)
        self.histograms.forget_topic(name)
        for group in self._groups_of.pop(name, ()):
            self._forget_pair(group, name)
            self._forget_side(self._topics_of, group, name)

    def forget_group(self, name: str) -> None:
        for topic in self._topics_of.pop(name, ()):
            self._forget_pair(name, topic)
            self._forget_side(self._groups_of, topic, name)

    def _forget_pair(self, group: str, topic: str) -> None:
        for table in (self._groups, self._sent_back, self._cold):
            table.pop((group, topic), None)

    @staticmethod
    def _forget_side(table: dict[str, set[str]], key: str, other: str) -> None:
        table[key].discard(other)
        if not table[key]:
            del table[key]

    def midnights(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the messages put and got since the start, at the local midnight before the last one and at
        the last one; 0 where the broker had not started."""
        return self._days.yesterday, self._days.today

    def days(self) -> dict[str, int]:
        """Return totals at local midnights, from which Apache's tools compute differences: put and got,
        yesterday, today and now."""
        return {
            "msgPutTotalYesterdayMorning": self._days.yesterday[0],
            "msgPutTotalTodayMorning": self._days.today[0],
            "msgPutTotalTodayNow": self.put.messages,
            "msgGetTotalYesterdayMorning": self._days.yesterday[1],
            "msgGetTotalTodayMorning": self._days.today[1],
            "msgGetTotalTodayNow": self.got.messages,
        }


def _split(group: str, topic: str, all_reads: Meter, cold: Meter | None) -> GroupReads:
    """Return the reads of a group, all and the cold ones, since the start and per second over the last
    ten."""
    per_s, bytes_per_s = all_reads.rates(10_000)
    cold_per_s, cold_bytes_per_s = cold.rates(10_000) if cold is not None else (0.0, 0.0)
    cold_reads, cold_messages, cold_bytes = (
        (cold.times, cold.messages, cold.bytes) if cold is not None else (0, 0, 0)
    )
    return GroupReads(
        group=group,
        topic=topic,
        reads=all_reads.times,
        messages=all_reads.messages,
        bytes=all_reads.bytes,
        per_s=per_s,
        bytes_per_s=bytes_per_s,
        cold_reads=cold_reads,
        cold_messages=cold_messages,
        cold_bytes=cold_bytes,
        cold_per_s=cold_per_s,
        cold_bytes_per_s=cold_bytes_per_s,
    )


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
