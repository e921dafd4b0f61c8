"""What scrapers get under Apache's names, of one moment (mqadmin/metrics/apache.py, exporter.py)."""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.units import Moment
from mqadmin.facts.overview import Broker


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Messages and bytes since the start, and over the last minute."""

    messages: int
    bytes: int  # of bodies where messages come in, of whole records where they go out
    in_minute: int  # messages
    per_s: float  # messages, over the last minute
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFlow:
    """A topic and what was stored in it."""

    topic: str
    kind: str  # normal, retry, dlq or system
    into: Flow | None  # None: nothing since the start
    end_offset: int  # sum of the offsets of the next messages of its queues


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFlow:
    """A group and a topic that it reads. What concerns positions is None where the group has no offset."""

    group: str
    topic: str
    kind: str  # of the topic, as in TopicFlow
    is_system: bool  # the group or the topic is the broker's own
    clients: int
    model: str | None  # clustering or broadcasting; None: no client is connected
    out: Flow | None  # None: nothing since the start
    sent_back_in_minute: int | None  # None: nothing since the start
    offset: int | None  # sum of the offsets that the group reads next, over the queues
    lag: int | None  # messages, without those that are invisible
    in_flight: int | None  # messages that were given and not acknowledged; None: unknown
    ready: int | None  # messages that were not given yet; None: unknown
    lag_ms: int | None = None  # since the oldest message of the lag was stored; None: not measured
    ready_ms: int | None = None  # since the oldest message that was not given yet was stored; None likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientKind:
    """Clients of one kind; `group` and `mode` are of consumers, and empty for producers."""

    language: str
    version: str  # of Apache's client
    protocol: str  # remoting or grpc
    group: str = ""
    mode: str = ""  # push, pull or pop
    is_system: bool = False
    clients: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerGroup:
    """A group of producers."""

    group: str
    clients: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OfTopic:
    """A number of messages of a topic."""

    topic: str
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DueWithin:
    """Messages on the timer wheel by how soon they are due."""

    bound_s: int
    messages: int  # due within `bound_s`, and not within the bound before it


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviveRecords:
    """Records of the revive log since the start, of one kind. Those stored have a status, those read a
    queue."""

    group: str
    topic: str  # may be a retry topic
    kind: str  # CK: a pop; ACK: an acknowledgement
    records: int
    status: str = ""  # of the put
    queue_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviveWait:
    """A queue of the revive log."""

    queue_id: int
    wait_ms: int | None  # since the oldest record that is not read yet was stored; None: not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class NotMeasured:
    """How many series of a scrape are missing because a bound of reads cut them off, or a read failed."""

    lags: int  # of groups with a topic
    ready: int
    timer: int
    revive: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaveLag:
    """The slaves of one machine."""

    host: str  # an address without a port: each connection of a slave has another one
    bytes: int  # of the log that the slave lacks; of several slaves the most


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreeRates:
    """A rate in messages per second over 10 seconds, a minute and ten minutes."""

    s10: float
    s60: float
    s600: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mornings:
    """Messages since the start at the last two local midnights, and now."""

    yesterday: int
    today: int
    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFlow:
    """What goes through the whole broker."""

    put: Flow
    got: Flow
    put_rates: ThreeRates
    got_rates: ThreeRates
    found_rates: ThreeRates  # reads for pulls that found messages
    missed_rates: ThreeRates  # and that found none
    put_days: Mornings
    got_days: Mornings
    put_times: list[int]  # messages by the ranges of broker_store/broker/put_times.py, of the last minute
    longest_put_ms: int
    longest_read_ms: int
    put_ms_99: float | None  # time below which 99 % of the last sends stayed; None: none was measured
    put_ms_999: float | None
    sends_waiting: int  # for their group and its sync
    most_sends_waiting: int
    pulls_waiting: int  # for a message
    most_pulls_waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Values since the start by bucket: `counts` has one place more than `bounds`, for larger values."""

    bounds: tuple[int, ...]
    counts: list[int]
    total: int  # the sum of the values


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimes:
    """How long requests of the broker port took, in milliseconds."""

    request: str  # name of its code, as Apache's, in small letters
    answer: str
    waited: bool  # for a message
    oneway: bool  # it has no answer
    times: Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class OfTopicSpread:
    """Values of one topic."""

    topic: str
    is_system: bool
    values: Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Puts:
    """How long requests took that create or change topics or groups, in milliseconds."""

    done: bool  # without an error
    is_system: bool  # of topics
    times: Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Spreads:
    """What is measured value by value."""

    requests: list[RequestTimes]
    message_sizes: list[OfTopicSpread]  # bytes of records
    delays: list[OfTopicSpread]  # seconds that timed messages wait
    finished: list[OfTopicSpread]  # seconds from a half message to its commit
    topics_put: list[Puts]
    groups_put: list[Puts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """The values of one scrape. Lists are cut, and `.._left_out` has how many are missing."""

    at_ms: Moment
    broker: Broker
    protocol_version: int  # the number that Apache has for `broker.version`
    permission: int  # bits: 2 write, 4 read
    serves_grpc: bool
    topics_of_all_kinds: int
    groups_of_all_kinds: int
    earliest_ms: Moment | None  # store time of the oldest message
    flow: BrokerFlow
    topics: list[TopicFlow]
    pairs: list[PairFlow]
    pairs_left_out: int  # of the groups that were asked for
    producers: list[ClientKind]
    consumers: list[ClientKind]
    producer_groups: list[ProducerGroup]
    halves: list[OfTopic]
    timed: list[OfTopic]  # messages on the timer wheel
    timer_enqueued: int  # since the start
    timer_delivered: int
    timer_wait_ms: int | None  # since the oldest message not on the wheel yet was stored; None: not measured
    due_within: list[DueWithin]  # empty: there is no wheel
    revive_waits: list[ReviveWait]
    revive_stored: list[ReviveRecords]
    revive_read: list[ReviveRecords]
    not_measured: NotMeasured
    slaves: list[SlaveLag]  # those that have reported how far they are
    spreads: Spreads
