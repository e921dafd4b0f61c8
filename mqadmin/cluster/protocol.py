"""What pages, REST, the admin, jobs and streams may ask of a cluster.

`Cluster` gives its parts by subject, and a caller names the part: `cluster.topics.page()`. The parts of the
broker in this process are in `embedded/`.

Plain methods belong to the thread of the event loop, unless they say "in a thread"; `Cluster.call` runs one
there for a thread that is not it. Coroutines belong to the loop. None is "not known", never 0.

Before the broker runs `state`, `condition` and some parts of `store` and `files` have an answer already. All
else raises StoreClosedError, which pages show as "the broker is starting" and REST as 503.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

from broker_store.engine.status.store_facts import IndexFileFacts, RebuildProgress, Snapshot, StoreFile
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
from mqadmin.facts.cache import CachePicture
from mqadmin.facts.condition import Condition
from mqadmin.facts.dead_letters import ResendPlan
from mqadmin.facts.groups import Group, GroupDetail, OffsetMove
from mqadmin.facts.layout import Both
from mqadmin.facts.messages import SCAN_BUDGET_BYTES, Found, Traces
from mqadmin.facts.offset_ranges import Range
from mqadmin.facts.overview import Overview, State
from mqadmin.facts.sends import PathOfSends, Refused
from mqadmin.facts.store import QueueFile, WatchedSlots
from mqadmin.facts.topics import Topic, TopicDetail
from mqadmin.facts.waiting import SHOWN_HALVES, Halves, MessageFate, Retries, Waiting

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")


class Topics(Protocol):
    """Topics, and their queues as the broker counts them."""

    def counts(self) -> dict[str, int]:
        """How many topics there are of each kind: normal, retry, dlq, system."""

    def offered(self) -> list[str]:
        """The names that a form offers: some hundred, of topics that are not the broker's own."""

    def names(self) -> Sequence[str]:
        """All names, in order."""

    def rows(self, wanted: Iterable[str]) -> list[Topic]:
        """These topics, in this order, without those that do not exist. For some hundred at once: each costs
        a read of the ends of its queues."""

    async def page(
        self, kind: str = "all", search: str = "", sort: str = "name", begin: int = 0, count: int = MAX_LIMIT
    ) -> tuple[list[Topic], int]:
        """A page of the topics of a kind whose names hold `search`, in lower case, and how many these are.
        `sort` is name, messages, in or out."""

    def after(self, name: str | None, count: int, kind: str | None = None) -> list[Topic]:
        """The first `count` topics after a name; None is the beginning."""

    async def every(self) -> list[Topic]:
        """All topics."""

    async def busiest(self, limit: int) -> list[Topic]:
        """The topics with the most messages coming in, then those that hold most."""

    def detail(self, name: str) -> TopicDetail:
        """One topic with its queues and readers. Raises NotFoundError."""

    def create(self, name: str, read_queues: int, write_queues: int, perm: int, order: bool) -> None:
        """Create a topic. Raises Problem for one of the broker's own."""

    def update(self, name: str, **changes: Any) -> None:
        """Change read_queues, write_queues, perm or order; the rest stays. Raises NotFoundError, and Problem
        for a topic of the broker's own."""

    def delete(self, name: str) -> None:
        """Delete a topic with its messages. Raises NotFoundError, and Problem for a topic of the broker's
        own."""


class Groups(Protocol):
    """Consumer groups and their positions."""

    def counts(self) -> dict[str, int]:
        """How many groups there are of each kind: normal, system."""

    def names(self) -> Sequence[str]:
        """All names, in order."""

    def rows(self, wanted: Iterable[str]) -> list[Group]:
        """These groups, in this order, without those that do not exist. For some hundred at once: each costs
        a read of the ends of the queues that it reads."""

    async def page(
        self, kind: str = "all", search: str = "", sort: str = "name", begin: int = 0, count: int = MAX_LIMIT
    ) -> tuple[list[Group], int]:
        """A page of the groups, and how many they are. `sort` is name, lag (at most some seconds old) or
        clients."""

    def after(self, name: str | None, count: int) -> list[Group]:
        """The first `count` groups after a name; None is the beginning."""

    async def every(self) -> list[Group]:
        """All groups."""

    async def most_behind(self, limit: int) -> list[Group]:
        """The groups with the largest lags."""

    def detail(self, name: str) -> GroupDetail:
        """One group with its lag in each queue, and its clients. Raises NotFoundError."""

    def create(self, name: str, **settings: Any) -> None:
        """Create a group. Raises Problem for one of the broker's own."""

    def update(self, name: str, **changes: Any) -> None:
        """Change consume_enable, broadcast, orderly, retry_queues or retry_max_times; the rest stays. Raises
        Problem for a group of the broker's own."""

    def delete(self, name: str) -> None:
        """Delete a group and its positions. Its retry and dead letter topics stay with their messages."""

    def reset_offsets(
        self,
        group: str,
        topic: str,
        to: str,
        value: int | None = None,
        queue_id: int | None = None,
        dry_run: bool = True,
    ) -> list[OffsetMove]:
        """The moves of a reset `to` earliest, latest, time (value in ms) or offset; made unless `dry_run`.
        `queue_id` None is every queue. Raises NotFoundError, and Problem for an offset that is not there."""


class DeadLetters(Protocol):
    """The dead letters of groups."""

    def plan(self, group: str, to: str, limit: int, left_out: Mapping[int, Sequence[Range]]) -> ResendPlan:
        """What a job that sends a group's dead letters again would do (mqadmin/jobs/dead_letters.py).
        `left_out` is what earlier runs left out. In a thread: it reads records. Raises NotFoundError."""


class Search(Protocol):
    """Finds messages."""

    async def in_queue(
        self, topic: str, queue_id: int, offset: int, limit: int, passing: MessageFilter | None = None
    ) -> Found:
        """Messages of a queue from `offset` on; with `passing`, those that pass it. Raises NotFoundError, and
        Problem for a damaged message, which a filtered search leaves out."""

    async def by_time(
        self,
        topic: str,
        begin_ms: int | None,
        end_ms: int,
        limit: int,
        budget: int = SCAN_BUDGET_BYTES,
        passing: MessageFilter | None = None,
    ) -> Found:
        """Messages of a topic stored from `begin_ms` to `end_ms`, oldest first; without a beginning the last
        ones, newest first; with `passing`, those that pass it. `budget` bounds the bytes read. Raises
        NotFoundError."""

    async def offset_by_time(self, topic: str, queue_id: int, time_ms: int) -> int:
        """The first offset of a queue whose message was stored at or after a time. Raises NotFoundError."""

    async def time_doubt(self, topic: str, time_ms: int, queue_id: int | None = None) -> str | None:
        """Why a search of a queue (None: of each queue) for a time is uncertain; None when it is not. Raises
        NotFoundError."""

    async def by_key(
        self,
        topic: str,
        key: str,
        begin_ms: int,
        end_ms: int,
        limit: int,
        passing: MessageFilter | None = None,
    ) -> Found:
        """Messages of a topic with `key` among its keys or as its message id; with `passing`, those that pass
        it. Another key with the same hash is left out. Raises NotFoundError."""

    async def by_id(self, id: str, topic: str | None = None) -> Found:
        """The message of an offset message id; or of a message id, which the index knows only together with
        its topic."""

    async def message_at(self, log_offset: int) -> tuple[StoredMessage, bytes]:
        """The message whose record begins at a place of the log, and its bytes; its CRC may be wrong. Raises
        NotFoundError without a record, Problem where its parts cannot be separated."""

    async def damage_at(self, log_offset: int) -> str | None:
        """How the record at a place of the log is damaged; None when it is not."""

    async def traces_of(self, message_id: str) -> Traces:
        """What its clients wrote about a message, if they write traces (msgTraceTopicName)."""


class Sends(Protocol):
    """Stores messages."""

    async def send_batch(self, topic: str, messages: list[NewMessage]) -> list[Receipt | Problem]:
        """Store messages in order; a receipt each, or why it was not stored. Raises
        NotFoundError and Problem for a topic that is not sent to.

        A topic that does not exist is not created: to create one needs another role, and leaves an audit
        record (decision 43).
        """


class Pulls(Protocol):
    """Reads of a queue that wait for its next message."""

    async def pull(self, topic: str, queue_id: int, offset: int | None, limit: int, wait_ms: int) -> Found:
        """Messages of a queue from `offset` on (None: the lowest there is), waiting up to `wait_ms` for the
        first. Raises NotFoundError, and Problem for a topic that may not be read."""


class WaitingMessages(Protocol):
    """What the broker holds back."""

    def facts(self) -> Waiting:
        """How many messages wait, of each delay level, of halves and on the timer wheel, and until when."""

    def fate(self, stored: StoredMessage) -> MessageFate | None:
        """What becomes of a message that is on its way; None of any other."""

    async def halves(self, limit: int = SHOWN_HALVES) -> Halves:
        """The oldest half messages that wait."""

    def retries(self, group: str) -> Retries:
        """What a group sent back and waits for its next try. In a thread: it reads what waits."""


class Store(Protocol):
    """What is measured of the store."""

    @property
    def inspects(self) -> bool:
        """True if this process only reads its store."""

    def snapshot(self) -> Snapshot:
        """The store at this moment; before there is one all of it is not known."""

    def recovery(self) -> StartReport | None:
        """The report of this process's start, live while it runs; None before the store is opened."""

    def race(self) -> Race:
        """How far each step after the log's end has come (broker_store/facts/dispatch.py); unknown positions
        while the broker starts."""

    def flush(self) -> Flushing:
        """The rounds in which the store is synced (broker_store/facts/dispatch.py)."""

    def write_path(self) -> PathOfSends:
        """Where the time of sends goes (broker_store/facts/write_path.py), and what was refused, by cause.
        Any thread."""

    def exposure(self) -> Exposure:
        """What a crash now would take, and what the start after it would do (broker_store/facts/exposure.py).
        In a thread: it reads files."""

    def cache(self) -> CachePicture:
        """What of the store's files is in memory, and which groups read what is not
        (mqadmin/facts/cache.py). In a thread."""

    async def layout(
        self, topic: str | None, group: str | None, from_ms: int | None = None, from_offset: int | None = None
    ) -> LayoutOfTopics | LayoutOfEach:
        """How topics lie in the log and what a replay reads (mqadmin/facts/layout.py)."""

    async def layout_of_both(
        self, topic: str | None, group: str | None, from_ms: int | None, from_offset: int | None
    ) -> Both:
        """The same of what was chosen and of each topic."""

    def watched_layout(self, topic: str | None, group: str | None) -> Both:
        """layout_of_both without a start, one scan for all callers. In a thread."""

    async def bytes_at(self, place: Place, most: int = MAX_BYTES) -> FileBytes:
        """A stretch of a file of the store with its fields (broker_store/facts/bytes/pieces.py)."""

    def journey(self, log_offset: int) -> Journey:
        """The stops of one message (broker_store/facts/journey/). In a thread."""

    async def journey_of(self, log_offset: int) -> Journey:
        """As `journey`, for the loop."""

    def disk(self) -> DiskFacts:
        """The use of the disk, its rate and its marks (broker_store/facts/disk.py). In a thread."""

    def disk_forecast(self, retention_hours: int | None = None) -> DiskForecast:
        """The same with the files that are deleted next, as if files were kept for `retention_hours`. In a
        thread."""

    def timeline(self, group: str, hours: int = 6) -> GroupTimeline:
        """A group's queues over time (broker_store/facts/timeline.py). In a thread. Raises NotFoundError."""


class Files(Protocol):
    """The files of the store."""

    def known(self, *kinds: str) -> list[StoreFile]:
        """Files of some kinds (commitlog, consumequeue, index), or of all."""

    async def all(self, *kinds: str, topic: str | None = None) -> list[StoreFile]:
        """The same in turns; of one topic those of its queues alone. Files that were deleted and are still
        held come last. Also when the store could not be opened, then from its directory."""

    async def hung(self) -> list[StoreFile]:
        """Files that were deleted and are still held."""

    async def with_times(self, files: Sequence[File]) -> list[File]:
        """The files with the store times of what they hold. Each costs short reads, so give those that are
        shown."""

    async def of_queues(self, search: str, begin: int, count: int) -> tuple[list[QueueFile], int]:
        """The files of `count` queues from the `begin`-th on whose topic has `search` in its name, and how
        many queues there are."""


class Index(Protocol):
    """The index of keys and message ids."""

    def facts(self) -> list[IndexFileFacts]:
        """Its files, the oldest first."""

    async def explain(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int | None = None, limit: int = 64
    ) -> list[LookupStep]:
        """The steps of a key lookup (broker_store/facts/explain.py)."""

    async def slots(self, name: str) -> HeatMap:
        """The slots of a file, folded into cells (broker_store/facts/slots.py). Raises NotFoundError."""

    async def chains(self, name: str) -> Chains:
        """The chains of a file by length (broker_store/facts/chains.py). Raises NotFoundError."""

    def watched_chains(self, name: str) -> Chains:
        """`chains`, counted again only when something was added, and then once for all callers. In a
        thread."""

    def watched_slots(self, name: str) -> WatchedSlots:
        """What `slots` returns, with the cells that changed in place of all of them. In a thread."""

    def rebuild(self) -> RebuildProgress:
        """Begin to build the index again, in the engine's own worker; the same as `rebuild_state`."""

    def rebuild_state(self) -> RebuildProgress:
        """How far it is, or the last one came."""

    def cancel_rebuild(self) -> RebuildProgress:
        """End it; the same as `rebuild_state`."""


class Cluster(Protocol):
    """One cluster, by its parts."""

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
    def store(self) -> Store: ...

    @property
    def files(self) -> Files: ...

    @property
    def index(self) -> Index: ...

    def call(
        self, function: Callable[Arguments, Value], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Value:
        """`function(*arguments)` on the loop's thread, from any other. Raises TimeoutError after some
        seconds."""

    def run(self, coroutine: Coroutine[Any, Any, Value]) -> Value:
        """The result of a coroutine that the loop runs, for a thread that is not its. Raises TimeoutError
        after some seconds."""

    def state(self) -> State:
        """Whether the broker serves. No login is needed to ask for it, so the sentence has no directory."""

    def condition(self) -> Condition:
        """How the broker is, of all signs. In a thread."""

    def overview(self) -> Overview:
        """The broker at a glance."""

    def refusals(self) -> list[Refused]:
        """What was refused since the start, by cause, each with its last case; the latest first."""

    def refuse(self, cause: str, **case: Any) -> None:
        """Count what REST refused: `value`, `limit`, `who` and `said` as broker_store/broker/flow.py keeps
        them."""

    def longest_pause_s(self) -> float | None:
        """The longest time of late that the event loop did not turn, in seconds; None before it is
        measured."""
