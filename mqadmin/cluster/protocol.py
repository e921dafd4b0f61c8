"""The interface of a cluster, for pages, REST, the admin, jobs and streams.

`Cluster` gives its parts by subject, and a caller names the part: `cluster.topics.page()`. The parts of the
broker in this process are in `embedded/`.

Plain methods run on the thread of the event loop, unless their docstring has "In a thread"; another thread
runs them there with `Cluster.call`. Coroutines run on the loop. None means "unknown", never 0.

Before the broker runs, `state`, `condition` and some methods of `store` and `files` have an answer already.
All others raise StoreClosedError, which pages show as "the broker is starting" and REST as 503.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

from broker_store.engine.status.store_state import IndexFileFacts, RebuildProgress, Snapshot, StoreFile
from broker_store.facts.bytes.pieces import FileBytes
from broker_store.facts.bytes.place import MAX_BYTES, Place
from broker_store.facts.chains import Chains
from broker_store.facts.directory import File
from broker_store.facts.disk import DiskFacts, DiskForecast
from broker_store.facts.dispatch import Flushing, Race
from broker_store.facts.explain import LookupStep
from broker_store.facts.exposure import Exposure
from broker_store.facts.journey.stop import Journey
from broker_store.facts.layout import LayoutOfEach, LayoutOfTopics
from broker_store.facts.slots import HeatMap
from broker_store.facts.starts import StartReport
from broker_store.facts.timeline import GroupTimeline
from broker_store.formats.record import StoredMessage
from broker_store.messages import MessageFilter
from broker_store.rest.answers import Receipt
from broker_store.rest.http import MAX_LIMIT
from broker_store.rest.new_messages import NewMessage
from broker_store.rest.problems import Problem
from mqadmin.cluster.access_protocol import Access
from mqadmin.cluster.metrics_protocol import Metrics
from mqadmin.facts.cache import CachePicture
from mqadmin.facts.condition import Condition
from mqadmin.facts.dead_letters import ResendPlan
from mqadmin.facts.groups import Group, GroupDetail, OffsetMove
from mqadmin.facts.layout import Both
from mqadmin.facts.messages import SCAN_BUDGET_BYTES, Found, Traces
from mqadmin.facts.offset_ranges import Range
from mqadmin.facts.overview import Overview, State
from mqadmin.facts.pops import SHOWN_MESSAGES, InvisibleMessages
from mqadmin.facts.replication import ReplicationFacts
from mqadmin.facts.sends import PathOfSends, Refused
from mqadmin.facts.store import QueueFile, WatchedSlots
from mqadmin.facts.topics import Topic, TopicDetail
from mqadmin.facts.waiting import SHOWN_HALVES, Halves, MessageFate, Retries, Waiting

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")


class Topics(Protocol):
    """Topics and their queues."""

    def counts(self) -> dict[str, int]:
        """Return the number of topics by kind: normal, retry, dlq, system."""

    def offered(self) -> list[str]:
        """Return the names that a form offers: the first some hundred, without topics of the broker's own."""

    def names(self) -> Sequence[str]:
        """All names, in order."""

    def rows(self, wanted: Iterable[str]) -> list[Topic]:
        """Return these topics, in this order, without those that do not exist. For at most some hundred at
        once: each needs a read of the ends of its queues."""

    async def page(
        self, kind: str = "all", search: str = "", sort: str = "name", begin: int = 0, count: int = MAX_LIMIT
    ) -> tuple[list[Topic], int]:
        """Return a page of the topics of a kind whose names, in lower case, contain `search`, and the number
        of all these. `sort` is name, messages, in or out."""

    def after(self, name: str | None, count: int, kind: str | None = None) -> list[Topic]:
        """Return the first `count` topics after a name; None is the beginning."""

    async def every(self) -> list[Topic]:
        """Return all topics."""

    async def busiest(self, limit: int) -> list[Topic]:
        """Return the topics with the highest rate of sends, then those with most messages."""

    def detail(self, name: str) -> TopicDetail:
        """Return one topic with its queues and readers. Raises NotFoundError."""

    def create(
        self,
        name: str,
        read_queues: int,
        write_queues: int,
        perm: int,
        order: bool,
        message_type: str = "NORMAL",
    ) -> None:
        """Create a topic. Raises Problem for one of the broker's own, and for a type of messages that the
        broker does not take."""

    def update(self, name: str, **changes: Any) -> None:
        """Change read_queues, write_queues, perm, order or message_type; the rest stays. Raises
        NotFoundError, and Problem as `create`."""

    def delete(self, name: str) -> None:
        """Delete a topic with its messages. Raises NotFoundError, and Problem for a topic of the broker's
        own."""


class Groups(Protocol):
    """Consumer groups and their offsets."""

    def counts(self) -> dict[str, int]:
        """Return the number of groups by kind: normal, system."""

    def names(self) -> Sequence[str]:
        """All names, in order."""

    def rows(self, wanted: Iterable[str]) -> list[Group]:
        """Return these groups, in this order, without those that do not exist. For at most some hundred at
        once: each needs a read of the ends of the queues that the group reads."""

    async def page(
        self, kind: str = "all", search: str = "", sort: str = "name", begin: int = 0, count: int = MAX_LIMIT
    ) -> tuple[list[Group], int]:
        """Return a page of the groups, and the number of all. `sort` is name, lag (at most some seconds old)
        or clients."""

    def after(self, name: str | None, count: int) -> list[Group]:
        """Return the first `count` groups after a name; None is the beginning."""

    async def every(self) -> list[Group]:
        """Return all groups."""

    async def most_behind(self, limit: int) -> list[Group]:
        """Return the groups with the largest lags."""

    def detail(self, name: str) -> GroupDetail:
        """Return one group with its lag in each queue, and its clients. Raises NotFoundError."""

    def create(self, name: str, **settings: Any) -> None:
        """Create a group. Raises Problem for one of the broker's own."""

    def update(self, name: str, **changes: Any) -> None:
        """Change consume_enable, broadcast, orderly, retry_queues or retry_max_times; the rest stays. Raises
        Problem for a group of the broker's own."""

    def delete(self, name: str) -> None:
        """Delete a group and its offsets. Its retry and dead letter topics stay, with their messages."""

    def reset_offsets(
        self,
        group: str,
        topic: str,
        to: str,
        value: int | None = None,
        queue_id: int | None = None,
        dry_run: bool = True,
    ) -> list[OffsetMove]:
        """Return the moves of a reset `to` earliest, latest, time (value in ms since 1970) or offset. They
        are made unless `dry_run`. `queue_id` None is every queue. Raises NotFoundError, and Problem for an
        offset that the queue does not hold."""


class DeadLetters(Protocol):
    """The dead letters of groups."""

    def plan(self, group: str, to: str, limit: int, left_out: Mapping[int, Sequence[Range]]) -> ResendPlan:
        """Return what a job that sends a group's dead letters again would do (mqadmin/jobs/dead_letters.py).
        `left_out` are by queue the ranges that earlier runs left out. In a thread: it reads records. Raises
        NotFoundError."""


class Search(Protocol):
    """Searches for messages."""

    async def in_queue(
        self, topic: str, queue_id: int, offset: int, limit: int, passing: MessageFilter | None = None
    ) -> Found:
        """Return messages of a queue from `offset` on; with `passing`, those that pass it. Raises
        NotFoundError, and Problem for a damaged message, which a filtered search leaves out."""

    async def by_time(
        self,
        topic: str,
        begin_ms: int | None,
        end_ms: int,
        limit: int,
        budget: int = SCAN_BUDGET_BYTES,
        passing: MessageFilter | None = None,
    ) -> Found:
        """Return messages of a topic stored from `begin_ms` to `end_ms`, oldest first; without a beginning
        the last ones, newest first; with `passing`, those that pass it. `budget` is the most bytes that are
        read. Raises NotFoundError."""

    async def offset_by_time(self, topic: str, queue_id: int, time_ms: int) -> int:
        """Return the first offset of a queue whose message was stored at or after a time. Raises
        NotFoundError."""

    async def time_doubt(self, topic: str, time_ms: int, queue_id: int | None = None) -> str | None:
        """Return why a search of a queue (None: of each queue) for a time is uncertain; None when it is not.
        Raises NotFoundError."""

    async def by_key(
        self,
        topic: str,
        key: str,
        begin_ms: int,
        end_ms: int,
        limit: int,
        passing: MessageFilter | None = None,
    ) -> Found:
        """Return messages of a topic with `key` among their keys or as their message id; with `passing`,
        those that pass it. Other keys with the same hash are left out. Raises NotFoundError."""

    async def by_id(self, id: str, topic: str | None = None) -> Found:
        """Return the message of an offset message id, or of a message id. The index finds a message id only
        together with its topic, so without one the first topics are searched."""

    async def message_at(self, log_offset: int) -> tuple[StoredMessage, bytes]:
        """Return the message whose record begins at a log offset, and its bytes; its CRC may be wrong. Raises
        NotFoundError without a record, Problem where its parts cannot be separated."""

    async def damage_at(self, log_offset: int) -> str | None:
        """Return how the record at a log offset is damaged; None when it is not."""

    async def traces_of(self, message_id: str) -> Traces:
        """Return the traces that clients wrote about a message, in the topic msgTraceTopicName."""


class Sends(Protocol):
    """Storing of messages."""

    async def send_batch(self, topic: str, messages: list[NewMessage]) -> list[Receipt | Problem]:
        """Store messages, those of each queue in order; return for each a receipt, or the problem why it was
        not stored. Raises NotFoundError, and Problem for a topic that is not writable.

        A topic that does not exist is not created: to create one needs another role, and leaves an audit
        record (decision 43).
        """


class Pulls(Protocol):
    """Reads of a queue that wait for its next message."""

    async def pull(self, topic: str, queue_id: int, offset: int | None, limit: int, wait_ms: int) -> Found:
        """Return messages of a queue from `offset` on (None: the lowest), and wait up to `wait_ms` for the
        first. Raises NotFoundError, and Problem for a topic that may not be read."""


class WaitingMessages(Protocol):
    """Messages that the broker holds back."""

    def facts(self) -> Waiting:
        """Return the numbers of messages that wait, by delay level, of half messages and on the timer wheel,
        and when they are due."""

    def fate(self, stored: StoredMessage) -> MessageFate | None:
        """Return the fate of a message that waits, or that a group sent back or gave up; None for any
        other."""

    async def halves(self, limit: int = SHOWN_HALVES) -> Halves:
        """Return the oldest half messages that wait."""

    def retries(self, group: str) -> Retries:
        """Return the messages that a group sent back and that wait for their next try. In a thread: it reads
        records."""


class Pops(Protocol):
    """Popped messages."""

    def invisible(
        self, group: str, after: str | None = None, limit: int = SHOWN_MESSAGES
    ) -> InvisibleMessages:
        """Return messages that are invisible to a group, those that come again first at the beginning; with
        `after`, the `next` of an earlier piece, the following ones. In a thread: it reads records. Raises
        NotFoundError, and Problem for another `after`."""


class Store(Protocol):
    """Measurements of the store."""

    @property
    def inspects(self) -> bool:
        """True if this process only reads its store."""

    def snapshot(self) -> Snapshot:
        """Return the state of the store at this moment; before there is a store, unknown values."""

    def recovery(self) -> StartReport | None:
        """Return the report of this process's start, also while it runs; None before the store is opened."""

    def race(self) -> Race:
        """Return the position of each step after an append (broker_store/facts/dispatch.py); unknown
        positions while the broker starts."""

    def flush(self) -> Flushing:
        """Return facts of the rounds in which the store is synced (broker_store/facts/dispatch.py)."""

    def replication(self) -> ReplicationFacts:
        """Return the slaves or the master of this broker, and what a failover now would lose
        (mqadmin/facts/replication.py)."""

    async def take_slaves(self) -> ReplicationFacts:
        """Open a port for slaves on this machine unless there is one, until the broker stops. Raises
        Problem."""

    def write_path(self) -> PathOfSends:
        """Return the times of the parts of sends (broker_store/facts/write_path.py), and the refusals by
        cause. Any thread."""

    def exposure(self) -> Exposure:
        """Return what a crash now would lose, and what the start after it would do
        (broker_store/facts/exposure.py). In a thread: it reads files."""

    def cache(self) -> CachePicture:
        """Return which parts of the store's files are in memory, and which groups read other parts
        (mqadmin/facts/cache.py). In a thread."""

    async def layout(
        self, topic: str | None, group: str | None, from_ms: int | None = None, from_offset: int | None = None
    ) -> LayoutOfTopics | LayoutOfEach:
        """Return the places of topics in the log and what a replay reads (mqadmin/facts/layout.py)."""

    async def layout_of_both(
        self, topic: str | None, group: str | None, from_ms: int | None, from_offset: int | None
    ) -> Both:
        """Return the same for the chosen topic or group and for each topic."""

    def watched_layout(self, topic: str | None, group: str | None) -> Both:
        """Return what `layout_of_both` does without a start, of one scan for all callers. In a thread."""

    async def bytes_at(self, place: Place, most: int = MAX_BYTES) -> FileBytes:
        """Return a range of bytes of a file of the store with its fields
        (broker_store/facts/bytes/pieces.py)."""

    async def journey_of(self, log_offset: int) -> Journey:
        """Return the journey of one message (broker_store/facts/journey/)."""

    def watched_journey(self, log_offset: int) -> Journey:
        """Return what `journey_of` does; a journey that took long is the same for some seconds. In a
        thread."""

    def disk(self) -> DiskFacts:
        """Return the use of the disk, its rate of growth and its marks (broker_store/facts/disk.py). In a
        thread."""

    def disk_forecast(self, retention_hours: int | None = None) -> DiskForecast:
        """Return the same with the files that are deleted next, as if files were kept for `retention_hours`.
        In a thread."""

    def timeline(self, group: str, hours: int = 6) -> GroupTimeline:
        """Return a group's offsets over the last `hours` (broker_store/facts/timeline.py). In a thread.
        Raises NotFoundError."""


class Files(Protocol):
    """The files of the store."""

    def known(self, *kinds: str) -> list[StoreFile]:
        """Return the files of some kinds (commitlog, consumequeue, index), or of all."""

    async def all(self, *kinds: str, topic: str | None = None) -> list[StoreFile]:
        """Return the same, collected in turns of the loop; for a topic only the files of its queues. Files
        that were deleted and are still open are last. If the store could not be opened, its directory is
        read."""

    async def hung(self) -> list[StoreFile]:
        """Return the files that were deleted and are still open."""

    async def with_times(self, files: Sequence[File]) -> list[File]:
        """Return the files with the store times of their messages. Each needs short reads, so pass only files
        that are shown."""

    async def of_queues(self, search: str, begin: int, count: int) -> tuple[list[QueueFile], int]:
        """Return the files of `count` queues from number `begin` on, of those whose topic has `search` in its
        name, and the number of all these queues."""


class Index(Protocol):
    """The index of keys and message ids."""

    def facts(self) -> list[IndexFileFacts]:
        """Return the index files, the oldest first."""

    async def explain(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int | None = None, limit: int = 64
    ) -> list[LookupStep]:
        """Return the steps of a lookup of a key (broker_store/facts/explain.py)."""

    async def slots(self, name: str) -> HeatMap:
        """Return the slots of a file, summed into cells (broker_store/facts/slots.py). Raises
        NotFoundError."""

    async def chains(self, name: str) -> Chains:
        """Return the chains of a file by length (broker_store/facts/chains.py). Raises NotFoundError."""

    def watched_chains(self, name: str) -> Chains:
        """Return what `chains` does. They are counted again only when entries were added, and then once for
        all callers. In a thread."""

    def watched_slots(self, name: str) -> WatchedSlots:
        """Return what `slots` does, with the cells that changed instead of all. In a thread."""

    def rebuild(self) -> RebuildProgress:
        """Begin to build the index again, in the engine's own worker; return `rebuild_state`."""

    def rebuild_state(self) -> RebuildProgress:
        """Return the progress of the rebuild, or of the last one."""

    def cancel_rebuild(self) -> RebuildProgress:
        """End the rebuild; return `rebuild_state`."""


class Cluster(Protocol):
    """One cluster, with its parts."""

    @property
    def topics(self) -> Topics: ...

    @property
    def groups(self) -> Groups: ...

    @property
    def dead_letters(self) -> DeadLetters: ...

    @property
    def search(self) -> Search: ...

    @property
    def sends(self) -> Sends: ...

    @property
    def pulls(self) -> Pulls: ...

    @property
    def waiting(self) -> WaitingMessages: ...

    @property
    def pops(self) -> Pops: ...

    @property
    def store(self) -> Store: ...

    @property
    def files(self) -> Files: ...

    @property
    def index(self) -> Index: ...

    @property
    def access(self) -> Access: ...

    @property
    def metrics(self) -> Metrics: ...

    def call(
        self, function: Callable[Arguments, Value], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Value:
        """Return `function(*arguments)`, run on the loop's thread; any thread may call this. Raises
        TimeoutError after some seconds."""

    def run(self, coroutine: Coroutine[Any, Any, Value]) -> Value:
        """Return the result of a coroutine that the loop runs, for another thread. Raises TimeoutError after
        some seconds."""

    def state(self) -> State:
        """Return whether the broker serves, and why not. Callers without a login get it, so the sentence
        names no directory."""

    def condition(self) -> Condition:
        """Return the condition of the broker, by all signs. In a thread."""

    def overview(self) -> Overview:
        """Return the numbers of the overview."""

    def refusals(self) -> list[Refused]:
        """Return the refusals since the start, by cause, each with its last case; the latest first."""

    def refuse(self, cause: str, **case: Any) -> None:
        """Count a refusal by REST; `case` has `value`, `limit`, `who` and `said`, as
        broker_store/broker/flow.py keeps them."""

    def longest_pause_s(self) -> float | None:
        """Return the longest time in seconds that the event loop was blocked in the last minutes; None before
        it is measured."""
