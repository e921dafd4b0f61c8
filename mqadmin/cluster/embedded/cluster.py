"""The one door from the dashboard to a broker: pages, REST, admin, jobs and streams know nothing else of it.

`current()` is the cluster of this process. Before the broker is up it exists already and answers `state`,
`store`, `recovery` (what the store knows while it opens); everything else raises StoreClosedError, which
pages turn into "the broker is starting" and REST into 503.

Plain methods belong to the thread of the event loop; `call` runs one there for a thread that is not it (sync
views, the admin). Coroutines belong to the loop as well and read cold bytes in threads of their own. Nothing
here keeps a picture: what is returned was measured at that moment, and None means *not known*, never 0.

Shapes (times are ms since 1970, sizes bytes, rates per second):

    state(), overview()  see facts/overview.py
    store()      Snapshot of engine/status/store_facts.py
    condition()  {"severity": "bad|warn|unknown|good", "sentence", "notices": [{"severity", "kind",
                 "sentence", "number", "page", "of"}]}
    topic_counts()  {kind: number}; group_counts() the same
    topics(names), topic(name)  see facts/topics.py; groups(names), group(name)  facts/groups.py
    waiting()    {"at_ms", "delayed": {"waiting", "due_ms", "levels": [{"level", "queue_id", "delay_ms",
                 "offset", "max_offset", "waiting",
                  "due_ms"}], "delivered", "dropped", "failures"}, "prepared": {"waiting", "half_offset",
                  "op_offset", "committed", "rolled_back", "asked", "given_up", "failures", "most_checks"},
                  "timed": {"enabled", "waiting", "not_enqueued", "due", "behind_ms", "late_ms", "delivered",
                  "rolled", "deleted", "dropped", "failures", "hours": [{"hour_ms", "messages"}], "topics":
                  [{"topic", "messages"}]}}
    halves()     {"items": [{"message_id", "log_offset", "queue_offset", "born_ms", "store_ms", "checks",
                 "group", "topic", "queue_id"}],
                  "complete"}: the oldest that wait
    retries(group)  {"delayed", "levels": [{"level", "delay_ms", "count", "due_ms"}], "complete"}
    fate(stored)    what becomes of a message that is on its way, None of any other
    disk(), disk_forecast(hours)  see facts/disk.py; timeline(group, hours), facts/timeline.py
    Found        what the message searches give
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from broker_store.broker.flow import Refused
from broker_store.broker.groups import SubscriptionGroup
from broker_store.broker.topics import FORBIDDEN_TO_SEND, PERM_WRITE, TopicConfig
from broker_store.engine.status.store_facts import (
    Behind,
    IndexFileFacts,
    LogPositions,
    Snapshot,
    StoreFile,
    Totals,
)
from broker_store.errors import FormatError, NotFoundError, StoreClosedError
from broker_store.facts import dispatch, exposure, write_path
from broker_store.facts.bytes.look import Look
from broker_store.facts.bytes.place import MAX_BYTES, Place
from broker_store.facts.bytes.viewer import Viewer
from broker_store.facts.chains import Chains, chains
from broker_store.facts.directory import File, StoreDirectory
from broker_store.facts.disk import DiskFacts, DiskForecast
from broker_store.facts.dispatch import Flushing, Race
from broker_store.facts.explain import LookupStep, explain
from broker_store.facts.exposure import Exposure, ScanRate
from broker_store.facts.journey.journey import journey
from broker_store.facts.journey.stop import Journey
from broker_store.facts.knowing import FromFiles, Knowing
from broker_store.facts.layout import LayoutOfEach, LayoutOfTopics
from broker_store.facts.slots import HeatMap, header_of, heat_map
from broker_store.facts.starts import StartReport, report_of
from broker_store.facts.timeline import GroupTimeline
from broker_store.formats import message_id, names, properties, record, traces
from broker_store.formats.compression import inflate
from broker_store.formats.index_file import FOR_EVER_MS, IndexGeometry
from broker_store.formats.record import StoredMessage
from broker_store.formats.traces import TraceEvent
from broker_store.messages import LOOPBACK_HOST, DamagedRecord, GetRequest, GetStatus, Message, damage_doubt
from broker_store.protocol.command import VERSION
from broker_store.rest.http import MAX_LIMIT
from broker_store.rest.new_messages import NewMessage
from broker_store.rest.problems import BROKERS_OWN_HINT, Problem, problem_of_put
from broker_store.server.admin.groups import forget_group
from broker_store.server.admin.topics import forget_topic
from broker_store.server.runtime_info import RUNNING_VERSION
from broker_store.server.send_group import SENT
from broker_store.turns import in_turns
from broker_store.units import fields_of, with_texts
from mqadmin import condition, signs, waiting, write_routes
from mqadmin.cached_scans import CachedScans
from mqadmin.facts.groups import (
    Dead,
    Group,
    GroupDetail,
    GroupQueue,
    Member,
    OffsetMove,
    Retrying,
    Subscription,
)
from mqadmin.facts.messages import Found, Traces
from mqadmin.facts.overview import Broker, Counts, Overview, Rates, State
from mqadmin.facts.sends import PathOfSends
from mqadmin.facts.store import QueueFile
from mqadmin.facts.topics import Queue, Reader, Topic, TopicDetail
from mqadmin.facts.waiting import SHOWN_HALVES
from mqadmin.jobs import dead_letters
from mqadmin.jobs.facts import ResendPlan
from mqadmin.jobs.left_out import Range
from mqadmin.knowing import FromBroker
from mqadmin.listings import Listings
from mqadmin.views.store.cache import facts as cache
from mqadmin.views.store.disk.facts import Forecasts
from mqadmin.views.store.index.slot_watch import SlotWatch, WatchedSlots
from mqadmin.views.store.layout import facts as layout
from mqadmin.views.store.recoveries import facts as recoveries

TOLD_SECONDS = 1.0  # a start that is over is told as it was told last
CALL_SECONDS = 3.0
RUN_SECONDS = 30.0  # what walks over all topics in turns
ROWS_PER_PIECE = 16  # topics or groups between two readings of the clock; 1,000 took 20 to 35 ms
READ_BYTES = 1 << 20  # asked for in one read of a queue
MAX_ANSWER_BYTES = 4 << 20  # of records in one answer; a larger one is given alone
SCAN_BUDGET_BYTES = 64 << 20  # read for one search by time
SCAN_SECONDS = 5.0
READ_THREADS = 2  # for browsing, beside the broker's own readers
CONDITION_REST = 50  # times the processor time of a look at all signs
# Times the processor time of a count: who watches chains costs at most a hundredth of a core
CHAINS_REST = 100
TIMED_QUEUES = 64  # of a group: each needs a read of a record for its lag in time
TOPICS_OF_AN_ID = 64  # that a message id without a topic is looked for in
MAX_IDS = 32
STARTING = "The broker is starting."
ABSENT = "No broker runs in this process: it was started with --no-broker."
SENTENCES = {
    "opening": STARTING,
    "starting": STARTING,
    "recovering": "The store is being recovered.",
    "running": "Messages are taken and given.",
    "closed": "The broker is stopping.",
}
# What a REST message may not carry: transactions and timers have their own ways in, the rest is the broker's
# to write.
NOT_BY_REST = frozenset(
    {
        "TRAN_MSG",
        "TIMER_DELIVER_MS",
        "TIMER_DELAY_MS",
        "TIMER_DELAY_SEC",
        "REAL_TOPIC",
        "REAL_QID",
        "POP_CK",
        "INNER_NUM",
    }
)


class EmbeddedCluster:
    """The broker of this process. `process` is an assembly.BrokerProcess: its `store` is there from the
    beginning, its `parts` when the broker is up. Without a process (the dashboard alone) everything stays
    "starting"."""

    def __init__(self, process=None, loop: asyncio.AbstractEventLoop | None = None):
        self._process = process
        self._loop = loop
        self._threads = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="browse")
        self._queue_turn = itertools.count()
        self._ids = itertools.count(random.getrandbits(15))
        self._loader = random.getrandbits(32)
        self._lists: Listings | None = None
        self._readers: dict[tuple[str, str, int], object] = {}
        self._looks: Forecasts | None = None
        self._scan_rate: ScanRate | None = None  # of earlier starts; this run adds none
        self._recovery: StartReport | None = None  # as it was told last
        self._recovery_until = 0.0
        self._arrivals: dict[tuple[str, int], set[asyncio.Event]] = {}
        self._listened_to = None
        self._slot_watch = SlotWatch()
        self._cache_looks = cache.CacheLooks(self)
        self._chain_looks = CachedScans(CHAINS_REST)
        self._layout_looks = layout.LayoutLooks(self)
        self._condition_looks = CachedScans(CONDITION_REST)
        self.children: Callable[[], dict] | None = None  # Children.state of mqadmin/process/children.py

    # -- in every state

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """`function(*arguments)` on the loop's thread, from any other; TimeoutError after CALL_SECONDS."""
        if self._loop is None or asyncio._get_running_loop() is self._loop:
            return function(*arguments)
        answer: Future = Future()

        def run() -> None:
            if not answer.set_running_or_notify_cancel():
                return  # nobody waits any more
            try:
                answer.set_result(function(*arguments))
            except BaseException as error:
                answer.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(run)
        except RuntimeError:
            raise StoreClosedError("the broker has stopped") from None
        try:
            return answer.result(CALL_SECONDS)
        except TimeoutError:
            answer.cancel()
            raise

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """The result of a coroutine that the loop runs, for a thread that is not its; TimeoutError after
        RUN_SECONDS."""
        if self._loop is None:
            return asyncio.run(coroutine)
        try:
            running = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise StoreClosedError("the broker has stopped") from None
        try:
            return running.result(RUN_SECONDS)
        except TimeoutError:
            running.cancel()
            raise

    def state(self) -> State:
        """Whether the broker serves. No login is needed to ask for it, so the sentence names files from the
        store's directory on."""
        found = self._state()
        return State(state=found.state, sentence=self._without_directories(found.sentence))

    def _without_directories(self, value: Any) -> Any:
        """A fact of the store without where its directory lies, which is for the log."""
        store = self._store
        if store is None:
            return value
        directories = (store.settings.store_path_commit_log.parent, store.settings.store_path_root_dir)

        def without(text: str) -> str:
            for directory in directories:
                text = text.replace(f"{directory}/", "")
            return text

        return with_texts(value, without)

    def _state(self) -> State:
        store = self._store
        if store is None:
            alone = self._loop is not None and self._process is None
            return (
                State(state="closed", sentence=ABSENT)
                if alone
                else State(state="starting", sentence=STARTING)
            )
        state = store.state
        if state in ("running", "read_only") and self._process.parts is None:
            state = "starting"  # the ports are about to open
        sentence = SENTENCES.get(state, state)
        if state == "failed":
            reason = (store.report.error or "the log says why").rstrip(".")
            sentence = f"The broker did not start: {reason}."
        elif state in ("running", "read_only"):
            causes = "; ".join(store.flags.values())
            if state == "read_only":
                sentence = f"Messages can be read, but none are taken: {causes}."
            elif causes:
                sentence = f"{sentence} Noticed: {causes}."
        return State(state=state, sentence=sentence)

    def store(self) -> Snapshot:
        """The store at this moment. Before there is one nothing of it is known."""
        if self._store is None:
            return Snapshot(
                at_ms=int(time.time() * 1000), state="starting", flags=[], totals=Totals(refused={})
            )
        snapshot, state = self._store.status.snapshot(), self._state().state
        flags = [replace(flag, cause=self._without_directories(flag.cause)) for flag in snapshot.flags]
        snapshot = replace(snapshot, state=state, flags=flags)
        if state not in ("running", "read_only", "closed"):
            # Recovery moves the positions while it scans for the log's end: they are no facts yet.
            return replace(snapshot, positions=LogPositions(), behind=Behind())
        return snapshot

    def recovery(self) -> StartReport | None:
        """The report of this process's start, live while it runs; None before the store is opened."""
        if self._store is None:
            return None
        if self._store.report.state == "running":
            return self._without_directories(report_of(self._store.report.as_dict()))
        # What is over is told over and over again while a page shows it.
        if self._recovery is None or time.monotonic() > self._recovery_until:
            self._recovery, self._recovery_until = (
                self._without_directories(report_of(self._store.report.as_dict())),
                time.monotonic() + TOLD_SECONDS,
            )
        return self._recovery

    # -- the store

    def store_files(self, *kinds: str) -> list[StoreFile]:
        """Files of some kinds (commitlog, consumequeue, index), or of all."""
        return self._parts.store.status.files(*kinds)

    async def file_map(self, *kinds: str, topic: str | None = None) -> list[StoreFile]:
        """Files of some kinds (commitlog, consumequeue, index), or of all; of one topic those of its queues
        alone. Those that were deleted and are still held come last. From the files alone when the store could
        not be opened."""
        directory, store = self.directory(), self._store
        if store.state in ("running", "read_only"):
            found = (
                store.status.files(*others)
                if topic is None
                and (others := [kind for kind in ("commitlog", "index") if not kinds or kind in kinds])
                else []
            )
            if not kinds or "consumequeue" in kinds:
                queues = (
                    store.queues()
                    if topic is None
                    else [(topic, queue_id) for queue_id in store.queue_ids(topic)]
                )
                async for some in in_turns(queues):
                    for queue in some:
                        found += store.status.queue_files(*queue)
            return found + _of(await self.hung_files(), kinds, topic)
        return await self._in_thread(lambda: _of(directory.files(), kinds, topic))

    async def hung_files(self) -> list[StoreFile]:
        """Files of a running broker's store that were deleted and are still held."""
        return await self._in_thread(self._parts.store.status.hung_files)

    async def with_times(self, files: Sequence[File]) -> list[File]:
        """The files with the store times of what they hold; each costs short reads, so give those that are
        shown."""
        return await self._in_thread(self.directory().with_times, files)

    @property
    def inspects(self) -> bool:
        """Whether this process only looks at its store."""
        return self._store is not None and self._store.settings.inspect

    def directory(self) -> StoreDirectory:
        """The store's files, read by position as from outside; also while it starts. For a thread: each read
        may wait for the disk."""
        if self._store is None:
            raise StoreClosedError(self.state().sentence)
        settings = self._store.settings
        geometry = IndexGeometry(settings.max_hash_slot_num, settings.max_index_num)
        return StoreDirectory(
            settings.store_path_root_dir, log_directory=settings.store_path_commit_log, geometry=geometry
        )

    def knowing(self) -> Knowing:
        """What is known of the store beyond its files: by its broker, or while that starts only what the
        files tell."""
        parts = None if self._process is None else self._process.parts
        return FromFiles(self.directory()) if parts is None else FromBroker(parts, self.call)

    async def look_at(self, place: Place, most: int = MAX_BYTES) -> Look:
        """A stretch of a file of the store with its fields: see broker_store/facts/bytes/look.py."""
        return await self._in_thread(lambda: Viewer(self.directory(), self.knowing(), most).look(place))

    def journey(self, log_offset: int) -> Journey:
        """The stops of one message: see broker_store/facts/journey/. In a thread."""
        return journey(self.directory(), self.knowing(), log_offset)

    async def journey_of(self, log_offset: int) -> Journey:
        return await self._in_thread(self.journey, log_offset)

    async def queue_files(self, search: str, begin: int, count: int) -> tuple[list[QueueFile], int]:
        """The files of `count` queues from the `begin`-th on whose topic has `search` in its name, each with
        its queue's `min_offset` and `max_offset`; and how many queues there are."""
        store = self._parts.store
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

    def store_index(self) -> list[IndexFileFacts]:
        return self._parts.store.index.facts()

    async def explain(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int | None = None, limit: int = 64
    ) -> list[LookupStep]:
        """The steps of a key lookup, see facts/explain.py."""
        end_ms, positions = FOR_EVER_MS if end_ms is None else end_ms, self._parts.store.status.positions()
        return await self._in_thread(
            explain, self.directory(), topic, key, begin_ms, end_ms, limit, positions
        )

    async def index_slots(self, name: str) -> HeatMap:
        """The slots of an index file, folded into cells, see facts/slots.py."""
        return await self._in_thread(heat_map, self.directory(), name)

    async def index_chains(self, name: str) -> Chains:
        """The chains of an index file by length, see facts/chains.py."""
        return await self._in_thread(self.watched_chains, name)

    def watched_chains(self, name: str) -> Chains:
        """index_chains, counted again only when something was added, and then once for all who ask. In a
        thread."""
        directory = self.call(self.directory)
        return self._chain_looks.of(name, lambda: chains(directory, name), mark=header_of(directory, name))

    def watched_slots(self, name: str) -> WatchedSlots:
        """What index_slots gives, with the cells that changed in place of all of them. In a thread."""
        return self._slot_watch.look(self.call(self.directory), name)

    def rebuild_index(self) -> dict:
        """Have the engine's own worker build the index anew; the same as rebuild_state."""
        return self._parts.store.rebuilding.begin()

    def rebuild_state(self) -> dict:
        return self._parts.store.rebuilding.progress()

    def cancel_rebuild(self) -> dict:
        return self._parts.store.rebuilding.cancel()

    def race(self) -> Race:
        """How far each step behind the log's end has come (broker_store/facts/dispatch.py); unknown
        positions while it starts."""
        return dispatch.of(self._store) if self._is_open else dispatch.race(LogPositions(), {})

    def flush(self) -> Flushing:
        return dispatch.flush(self._parts.store)

    def write_path(self) -> PathOfSends:
        """Where the time of sends goes (broker_store/facts/write_path.py), and what was refused, by cause.
        Any thread."""
        parts, refused, loop = self.call(
            lambda: (self._parts, self.refusals(), self._parts.pauses.document())
        )
        facts = write_path.facts(parts.store.write_path, parts.store.settings.flush_disk_type, parts.clock())
        refusals = [Refused(**case) for case in sorted(refused, key=lambda case: case["cause"])]
        return PathOfSends(**fields_of(facts), loop=loop, refusals=refusals)

    def longest_pause_s(self) -> float | None:
        """The longest time of late that the event loop did not turn, in seconds; None before it is
        measured."""
        pause = self._parts.pauses.longest()
        return None if pause is None else pause.seconds

    def exposure(self) -> Exposure:
        """What a crash now would take, and what the start after it would do
        (broker_store/facts/exposure.py). For a thread: it reads files."""
        store = self.call(lambda: self._parts.store)
        directory = self.directory()
        if self._scan_rate is None:
            self._scan_rate = exposure.scan_rate(exposure.reports(recoveries.directory()))
        if store.settings.inspect:
            return exposure.of_files(directory, self._scan_rate)
        return exposure.of(directory, self.call(self.store), self._scan_rate)

    def cache(self) -> cache.CachePicture:
        """What of the store's files is in memory, and who reads what is not
        (mqadmin/views/store/cache/facts.py). For a thread."""
        return self._cache_looks.look()

    def reading_facts(self) -> cache.ReadingFacts:
        """What the loop knows of readers, for a look from a thread."""
        return cache.facts_of(self._parts)

    async def layout(
        self, topic: str | None, group: str | None, from_ms: int | None = None, from_offset: int | None = None
    ) -> LayoutOfTopics | LayoutOfEach:
        """How topics lie in the log and what a replay reads (mqadmin/views/store/layout/facts.py)."""
        if from_ms is None and from_offset is None:
            return await asyncio.to_thread(self._layout_looks.look, topic, group)
        return await layout.of_running(self, layout.look, topic, group, from_ms, from_offset)

    async def layout_of_both(
        self, topic: str | None, group: str | None, from_ms: int | None, from_offset: int | None
    ) -> layout.Both:
        """The same from a start of the asker's, of what was chosen and of each topic."""
        return await layout.of_running(self, layout.look_at_both, topic, group, from_ms, from_offset)

    def watched_layout(self, topic: str | None, group: str | None) -> layout.Both:
        """layout_of_both without a start, one look for all who ask. In a thread."""
        return self._layout_looks.look_at_both(topic, group)

    # -- everything at a glance

    def refusals(self) -> list[dict]:
        """What was refused since the start, by cause, each with its last case; the latest first."""
        return [
            refused | {"said": names.sentence_in_words(refused["said"])}
            for refused in self._parts.statistics.refusals.facts()
        ]

    def refuse(self, cause: str, **case) -> None:
        """Count what REST refused: `value`, `limit`, `who` and `said` as broker_store/broker/flow.py keeps
        them."""
        self._parts.statistics.refuse(cause, **case)

    def condition(self) -> dict:
        """How the broker is, of all signs: {"severity", "sentence", "notices"} of mqadmin/condition.py. For a
        thread."""
        if not self.call(lambda: self._is_open):
            state = self.call(self.state)
            return condition.judge_state(int(time.time() * 1000), state.state, state.sentence).document()
        return self._condition_looks.of(
            "condition", lambda: condition.judge(signs.of(self, self.children)).document()
        )

    def facts_for_signs(self) -> tuple:
        """(parts, store's facts, state, what was refused of late, what of it were sends) as the loop has
        them."""
        refusals = self._parts.statistics.refusals
        return self._parts, self.store(), self.state(), refusals.recent(), refusals.recent_sends()

    def overview(self) -> Overview:
        parts, store = self._parts, self.store()
        put, got = parts.statistics.put.rates(1_000), parts.statistics.got.rates(1_000)
        producers = {
            client.client_id for clients in parts.clients.producer_groups().values() for client in clients
        }
        consumers = {
            member.client_id for group in parts.clients.consumer_groups() for member in group.members.values()
        }
        return Overview(
            at_ms=store.at_ms,
            **fields_of(self.state()),
            broker=Broker(
                name=parts.broker_name,
                cluster=parts.cluster,
                id=parts.settings.broker_id,
                address=parts.endpoint.address,
                started_ms=parts.started_ms,
                version=RUNNING_VERSION,
            ),
            positions=store.positions,
            behind=store.behind,
            flags=store.flags,
            flush=store.flush,
            totals=store.totals,
            disk=store.disk,
            rates=Rates(in_per_s=put[0], out_per_s=got[0], in_bytes_per_s=put[1], out_bytes_per_s=got[1]),
            counts=Counts(
                topics=parts.topics.names.count("normal"),
                groups=parts.groups.names.count("normal"),
                producers=len(producers),
                consumers=len(consumers),
            ),
            worst_lag=self._listings.worst_lag(),
            top_topics=self._listings.top_topics(),
        )

    # -- topics

    def topic_counts(self) -> dict[str, int]:
        """How many topics there are of each kind."""
        return self._listings.topic_counts()

    def offered_topics(self) -> list[str]:
        """The names that a form offers: some hundred, of topics that are not the broker's own."""
        return self._listings.offered_topics()

    def topics(self, wanted: Iterable[str]) -> list[Topic]:
        """These topics, in this order, as far as they are there. Some hundred at once: each costs a look at
        its queues."""
        topics = self._parts.topics
        return [self._topic(config) for name in wanted if (config := topics.get(name)) is not None]

    async def topics_page(
        self, kind: str = "all", search: str = "", sort: str = "name", begin: int = 0, count: int = MAX_LIMIT
    ) -> tuple[list[Topic], int]:
        """A page of the topics of a kind whose names hold `search`, in lower case, and how many they are: by
        name, messages, in or out."""
        names, total = await self._listings.topic_names(kind, search, sort, begin, count)
        return self.topics(names), total

    def topics_after(self, name: str | None, count: int, kind: str | None = None) -> list[Topic]:
        """The first `count` topics after a name."""
        return self.topics(self._parts.topics.names.after(name, count, kind))

    def topic_names(self) -> Sequence[str]:
        """All names of topics in order."""
        return self._parts.topics.names.all()

    async def every_topic(self) -> list[Topic]:
        """All topics."""
        return await self._topics_in_turns(self._parts.topics.names.all())

    async def busiest_topics(self, limit: int) -> list[Topic]:
        """The topics that most comes into, then those that hold most."""
        return await self._topics_in_turns(await self._listings.busiest_topics(limit))

    async def _topics_in_turns(self, names: Sequence[str]) -> list[Topic]:
        rows: list[Topic] = []
        async for some in in_turns(names, ROWS_PER_PIECE):
            rows += self.topics(some)
        return rows

    def topic(self, name: str) -> TopicDetail:
        """One topic with its queues and readers. NotFoundError."""
        parts, config = self._parts, self._topic_config(name)
        groups = sorted({*parts.offsets.groups_of_topic(name), *parts.clients.groups_of_topic(name)})
        queues = [self._queue(name, queue_id) for queue_id in self._queue_ids(config)]
        store_times = [queue.last_store_ms for queue in queues if queue.last_store_ms is not None]
        return TopicDetail(
            **fields_of(self._topic(config)) | {"groups": len(groups)},
            attributes=dict(config.attributes),
            is_writable=config.writable,
            withheld=write_routes.remedy(parts) if write_routes.is_topic_withheld(parts, config) else None,
            last_store_ms=max(store_times, default=None),
            queues=queues,
            readers=[
                Reader(group=group, lag=self._lag(group, name), clients=len(parts.clients.consumers(group)))
                for group in groups
            ],
        )

    def _queue(self, topic: str, queue_id: int) -> Queue:
        store = self._parts.store
        low, high = store.reads.min_offset(topic, queue_id), store.reads.max_offset(topic, queue_id)
        return Queue(
            queue_id=queue_id,
            min_offset=low,
            max_offset=high,
            messages=high - low,
            earliest_store_ms=_time(store.reads.times.earliest_store_time(topic, queue_id))
            if high > low
            else None,
            last_store_ms=store.reads.times.last_store_time(topic, queue_id),
        )

    def create_topic(self, name: str, read_queues: int, write_queues: int, perm: int, order: bool) -> None:
        self._own_topic(name)
        self._parts.topics.put(
            TopicConfig(names.check_topic(name), read_queues, write_queues, perm, order=order)
        )

    def update_topic(self, name: str, **changes: Any) -> None:
        """Change read_queues, write_queues, perm or order; the rest stays."""
        self._own_topic(name)
        self._parts.topics.put(replace(self._topic_config(name), **changes))

    def delete_topic(self, name: str) -> None:
        self._own_topic(name)
        self._topic_config(name)
        forget_topic(self._parts, name)
        if (registration := self._process.broker.registration) is not None:
            registration.delete_topic(name)

    def _own_topic(self, name: str) -> None:
        if self._parts.topics.is_system(name):
            raise Problem("forbidden", f"{name} is a topic of the broker's own", BROKERS_OWN_HINT)

    def _topic_config(self, name: str) -> TopicConfig:
        config = self._parts.topics.get(name)
        if config is None:
            raise NotFoundError(f"topic {name} does not exist")
        return config

    def _queue_ids(self, config: TopicConfig) -> list[int]:
        """The queues it should have and those that hold something, should it have had more once."""
        return sorted({*range(config.queues), *self._parts.store.queue_ids(config.name)})

    def _topic(self, config: TopicConfig) -> Topic:
        parts, store = self._parts, self._parts.store
        return Topic(
            name=config.name,
            kind=parts.topics.kind(config.name),
            read_queues=config.read_queues,
            write_queues=config.write_queues,
            perm=config.perm,
            order=config.order,
            messages=sum(
                store.reads.max_offset(config.name, q) - store.reads.min_offset(config.name, q)
                for q in store.queue_ids(config.name)
            ),
            in_per_s=parts.statistics.put_rate(config.name),
            out_per_s=parts.statistics.out_rate(config.name),
            groups=len(parts.offsets.groups_of_topic(config.name)),
        )

    # -- groups

    def group_counts(self) -> dict[str, int]:
        """How many groups there are of each kind."""
        return self._listings.group_counts()

    def groups(self, wanted: Iterable[str]) -> list[Group]:
        """These groups, in this order, as far as they are there. Some hundred at once: each costs a look at
        the queues it reads."""
        names = self._parts.groups.names
        return [self._group(name) for name in wanted if name in names]

    async def groups_page(
        self, kind: str = "all", search: str = "", sort: str = "name", begin: int = 0, count: int = MAX_LIMIT
    ) -> tuple[list[Group], int]:
        """A page of the groups, and how many they are: by name, lag (at most some seconds old) or clients."""
        names, total = await self._listings.group_names(kind, search, sort, begin, count)
        return self.groups(names), total

    def groups_after(self, name: str | None, count: int) -> list[Group]:
        """The first `count` groups after a name."""
        return self.groups(self._parts.groups.names.after(name, count))

    def group_names(self) -> Sequence[str]:
        """All names of groups in order."""
        return self._parts.groups.names.all()

    async def every_group(self) -> list[Group]:
        """All groups."""
        return await self._groups_in_turns(self._parts.groups.names.all())

    async def most_behind(self, limit: int) -> list[Group]:
        """The groups with the largest lags."""
        return await self._groups_in_turns(await self._listings.most_behind(limit))

    async def _groups_in_turns(self, names: Sequence[str]) -> list[Group]:
        rows: list[Group] = []
        async for some in in_turns(names, ROWS_PER_PIECE):
            rows += self.groups(some)
        return rows

    def group(self, name: str) -> GroupDetail:
        """One group with its lag in each queue, and its clients. NotFoundError."""
        parts, now_ms = self._parts, int(time.time() * 1000)
        if name not in parts.groups.names:
            raise NotFoundError(f"group {name} does not exist")
        online = parts.clients.consumer_group(name)
        row = self._group(name)
        queues: list[GroupQueue] = []
        for topic in row.topics:
            config = parts.topics.get(topic)
            for queue_id in range(config.read_queues) if config else []:
                queues.append(
                    self._group_queue(name, topic, queue_id, now_ms, timed=len(queues) < TIMED_QUEUES)
                )
        retries, letters = names.retry_topic(name), names.dead_letter_topic(name)
        return GroupDetail(
            **fields_of(row),
            lag_ms=max((queue.lag_ms for queue in queues if queue.lag_ms is not None), default=None),
            largest_lag=max((queue.lag for queue in queues if queue.lag is not None), default=None),
            queues=queues,
            retrying=Retrying(topic=retries, messages=self._kept(retries), lag=self._lag_in_retries(name)),
            dead=Dead(
                topic=letters, messages=self._kept(letters), last_store_ms=self._last_store_ms(letters)
            ),
            members=[
                Member(
                    client_id=member.client_id,
                    address=member.channel.remote,
                    language=member.language,
                    version=RUNNING_VERSION if member.version == VERSION else f"version {member.version}",
                    heartbeat_ms=member.seen_ms,
                )
                for member in (online.members.values() if online else ())
            ],
            subscriptions=[
                Subscription(topic=wanted.topic, expression=wanted.expression, clients=len(online.members))
                for wanted in (online.subscriptions.values() if online else ())
            ],
        )

    def _group_queue(self, group: str, topic: str, queue_id: int, now_ms: int, timed: bool) -> GroupQueue:
        parts, store = self._parts, self._parts.store
        low, high = store.reads.min_offset(topic, queue_id), store.reads.max_offset(topic, queue_id)
        at = parts.offsets.query(group, topic, queue_id)
        lag = None if at is None else max(0, high - at)
        lag_ms = consumed_ms = None
        if timed and at is not None:
            consumed_ms = (
                _time(store.reads.times.store_time_at(topic, queue_id, at - 1)) if at > low else None
            )
            waits_since_ms = (
                _time(store.reads.times.store_time_at(topic, queue_id, max(at, low))) if lag else None
            )
            lag_ms = 0 if lag == 0 else None if waits_since_ms is None else max(0, now_ms - waits_since_ms)
        return GroupQueue(
            topic=topic,
            queue_id=queue_id,
            min_offset=low,
            max_offset=high,
            consumer_offset=at,
            lag=lag,
            lag_ms=lag_ms,
            last_consumed_ms=consumed_ms,
            client_id=self._reader_of(group, topic, queue_id, now_ms),
        )

    def _reader_of(self, group: str, topic: str, queue_id: int, now_ms: int) -> str | None:
        """Who reads a queue, as far as it shows: who holds its lock, who is alone, or who was seen waiting on
        it and is still there.

        Clients share the queues out among themselves and tell the broker nothing of it.
        """
        parts = self._parts
        owner = parts.locks.owner(group, (topic, queue_id), now_ms)
        online = parts.clients.consumer_group(group)
        if owner is not None or online is None or online.broadcasting:
            return owner
        if len(online.members) == 1 and topic in online.subscriptions:
            return next(iter(online.members.values())).client_id
        place = (group, topic, queue_id)
        for parked in parts.parked.waiting_on((topic, queue_id)):
            if parked.channel in online.members and parked.pull.header.consumer_group == group:
                self._readers[place] = parked.channel
        seen = online.members.get(self._readers.get(place))
        if seen is None:
            self._readers.pop(place, None)
        return None if seen is None else seen.client_id

    def _kept(self, topic: str) -> int:
        """How many messages a topic of a group's own holds: one that does not exist holds none."""
        store = self._parts.store
        return sum(
            store.reads.max_offset(topic, queue_id) - store.reads.min_offset(topic, queue_id)
            for queue_id in store.queue_ids(topic)
        )

    def _lag_in_retries(self, group: str) -> int | None:
        """What came back and was not taken again yet; unknown when the group has no position there and
        something came."""
        topic = names.retry_topic(group)
        lag = self._lag(group, topic)
        return 0 if lag is None and not self._kept(topic) else lag

    def _last_store_ms(self, topic: str) -> int | None:
        store = self._parts.store
        times = [
            time_ms
            for queue_id in store.queue_ids(topic)
            if (time_ms := _time(store.reads.times.last_store_time(topic, queue_id))) is not None
        ]
        return max(times, default=None)

    def create_group(self, name: str, **settings: Any) -> None:
        self._own_group(name)
        self._parts.groups.put(SubscriptionGroup(names.check_group(name), **_group_fields(settings)))

    def update_group(self, name: str, **changes: Any) -> None:
        self._own_group(name)
        known = self._parts.groups.get(name) or SubscriptionGroup(name)
        self._parts.groups.put(replace(known, **_group_fields(changes)))

    def delete_group(self, name: str) -> None:
        """The group and its positions; what it sent back or gave up stays in its retry and dead letter
        topics."""
        self._own_group(name)
        forget_group(self._parts, name, clean_offset=True)

    def dead_letters(
        self, group: str, to: str, limit: int, left_out: Mapping[int, Sequence[Range]]
    ) -> ResendPlan:
        """Return what sending a group's dead letters again would do; `left_out` is what earlier runs left
        out. Raises NotFoundError. For a thread: it reads records."""

        def places() -> tuple:
            if group not in self._parts.groups.names:
                raise NotFoundError(f"group {group} does not exist")
            parts, topic = self._parts, names.dead_letter_topic(group)
            found = {
                queue_id: parts.offsets.query(dead_letters.RESENDER, topic, queue_id)
                for queue_id in parts.store.queue_ids(topic)
            }
            return parts.store, found, parts.topics

        def is_taken(topic: str) -> bool:
            config = topics.get(topic)
            return config is not None and bool(config.perm & PERM_WRITE) and topic not in FORBIDDEN_TO_SEND

        store, found, topics = self.call(places)
        return dead_letters.plan(store, found, group, to, limit, topics.names, is_taken, left_out)

    def reset_offset(
        self,
        group: str,
        topic: str,
        to: str,
        value: int | None = None,
        queue_id: int | None = None,
        dry_run: bool = True,
    ) -> list[OffsetMove]:
        """The moves of a reset `to` earliest, latest, time (value in ms) or offset; made unless `dry_run`."""
        parts, config = self._parts, self._topic_config(topic)
        store = parts.store
        if queue_id is not None and not 0 <= queue_id < config.read_queues:
            raise NotFoundError(f"topic {topic} has no queue {queue_id}")
        moves = []
        for number in range(config.read_queues) if queue_id is None else [queue_id]:
            low, high = store.reads.min_offset(topic, number), store.reads.max_offset(topic, number)
            if to in ("earliest", "latest"):
                after = low if to == "earliest" else high
            elif to == "time":
                after = store.reads.times.offset_by_time(topic, number, value)
            elif low <= value <= high:
                after = value
            else:
                raise Problem(
                    "invalid",
                    f"queue {number} of {topic} holds offsets {low} to {high}, {value} is not among them",
                )
            moves.append(
                OffsetMove(
                    queue_id=number,
                    before=parts.offsets.query(group, topic, number),
                    after=max(low, min(after, high)),
                )
            )
        if not dry_run:
            for move in moves:
                parts.offsets.reset(group, topic, move.queue_id, move.after)
            self._process.broker.reset_pulls(group, topic, [move.queue_id for move in moves])
        return moves

    def _own_group(self, name: str) -> None:
        if self._parts.groups.is_system(name):
            raise Problem("forbidden", f"{name} is a group of the broker's own", BROKERS_OWN_HINT)

    def _group_kind(self, name: str) -> str:
        return "system" if self._parts.groups.is_system(name) else "normal"

    def _group(self, name: str) -> Group:
        parts = self._parts
        config = parts.groups.get(name) or SubscriptionGroup(name)
        online = parts.clients.consumer_group(name)
        return Group(
            name=name,
            kind=self._group_kind(name),
            consume_enable=config.consume_enable,
            broadcast=config.consume_broadcast_enable,
            orderly=config.consume_message_orderly,
            retry_queues=config.retry_queue_nums,
            retry_max_times=config.retry_max_times,
            clients=len(online.members) if online else 0,
            model=online.message_model.lower() if online else None,
            topics=sorted({*parts.offsets.topics_of(name), *(online.subscriptions if online else ())}),
            lag=self._lag(name),
            out_per_s=parts.statistics.got_rate(name),
        )

    def _lag(self, group: str, topic: str | None = None) -> int | None:
        return self._listings.lag(group, topic)

    @property
    def _listings(self) -> Listings:
        if self._lists is None or self._lists.parts is not self._parts:
            self._lists = Listings(self._parts)
        return self._lists

    # -- the disk and offsets over time: in a thread, since files are read

    def disk(self) -> DiskFacts:
        return self._forecasts.disk()

    def disk_forecast(self, retention_hours: int | None = None) -> DiskForecast:
        return self._forecasts.disk_forecast(retention_hours)

    def timeline(self, group: str, hours: int = 6) -> GroupTimeline:
        if not self.call(lambda: group in self._parts.groups.names):
            raise NotFoundError(f"group {group} does not exist")
        return self._forecasts.timeline(group, hours)

    @property
    def _forecasts(self) -> Forecasts:
        if self._looks is None or self._looks.parts is not self._parts:
            self._looks = Forecasts(self._parts)
        return self._looks

    # -- what waits

    def waiting(self) -> dict:
        return waiting.picture(self._parts)

    def fate(self, stored: StoredMessage) -> waiting.MessageFate | None:
        return waiting.fate(self._parts, stored)

    async def halves(self, limit: int = SHOWN_HALVES) -> dict:
        offsets = self._parts.transactions.waiting_offsets(limit + 1)
        return await self._in_thread(waiting.halves, self._parts.store, offsets, limit)

    def retries(self, group: str) -> dict:
        """In a thread: it reads what waits in the delay levels."""
        store, levels = self.call(lambda: (self._parts.store, self._parts.delay.facts()))
        return waiting.retries(store, levels, group)

    # -- finding messages: what reads files runs in a few threads of its own

    async def messages_at(self, topic: str, queue_id: int, offset: int, limit: int) -> Found:
        """Messages of a queue from `offset` on."""
        store, config = self._parts.store, self._topic_config(topic)
        if queue_id not in self._queue_ids(config):
            raise NotFoundError(
                f"topic {topic} has no queue {queue_id}; it has {len(self._queue_ids(config))}"
            )
        low, high = store.reads.min_offset(topic, queue_id), store.reads.max_offset(topic, queue_id)
        begin = max(offset, low)
        messages, next_offset = await self._in_thread(
            self._read_queue, topic, queue_id, begin, min(limit, MAX_LIMIT)
        )
        return Found(messages, next_offset=next_offset, min_offset=low, max_offset=high)

    def _read_queue(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        limit: int,
        end_ms: int = FOR_EVER_MS,
        budget: _Budget | None = None,
    ) -> tuple[list[StoredMessage], int]:
        """Up to `limit` messages stored before `end_ms`, and the offset behind them. In a thread."""
        store, messages, taken = self._process.store, [], 0
        while len(messages) < limit and (taken < MAX_ANSWER_BYTES if budget is None else not budget.is_spent):
            result = store.reads.get_blocking(
                GetRequest(topic, queue_id, offset, limit - len(messages), READ_BYTES)
            )
            if result.status is GetStatus.MESSAGE_DAMAGED:
                if budget is None:
                    if messages:
                        break  # who asks on from there is told
                    raise Problem(
                        "damaged",
                        f"the message at offset {offset} of {topic}/{queue_id} is not as it was stored",
                    )
                budget.left_out += 1
                offset += 1
                continue
            if result.status is not GetStatus.FOUND:
                if result.next_offset <= offset or result.next_offset >= result.max_offset:
                    break
                # A hole at the queue's beginning, or files that were cleaned away meanwhile
                offset = result.next_offset
                continue
            taken += len(result.body)
            if budget is not None:
                budget.bytes_left -= len(result.body)
            for stored in record.decode_all(result.body, check_crc=False):
                if stored.store_timestamp > end_ms:
                    return messages, offset
                messages.append(stored)
                offset = stored.queue_offset + 1
            offset = max(offset, result.next_offset)
        return messages, offset

    async def find_by_time(
        self, topic: str, begin_ms: int | None, end_ms: int, limit: int, budget: int = SCAN_BUDGET_BYTES
    ) -> Found:
        """Messages of a topic stored from `begin_ms` to `end_ms`, oldest first; without a beginning the last
        ones, newest first.

        `budget` bounds the bytes read.
        """
        queue_ids = self._queue_ids(self._topic_config(topic))
        limit, left = min(limit, MAX_LIMIT), _Budget(budget)
        if begin_ms is None:
            return await self._in_thread(self._scan_back, topic, queue_ids, end_ms, limit, left)
        return await self._in_thread(self._scan, topic, queue_ids, begin_ms, end_ms, limit, left)

    def _scan_back(
        self, topic: str, queue_ids: Iterable[int], end_ms: int, limit: int, budget: _Budget
    ) -> Found:
        store, found, older = self._process.store, [], False
        end_ms = min(end_ms, FOR_EVER_MS - 1)
        for queue_id in queue_ids:
            for low, behind in store.reads.times.offset_ranges(topic, queue_id, 0, end_ms):
                begin = max(low, behind - limit)
                older = older or begin > low
                messages, _ = self._read_queue(topic, queue_id, begin, behind - begin, end_ms, budget)
                found += messages
        found.sort(key=lambda stored: (stored.store_timestamp, stored.log_offset), reverse=True)
        if (fitting := _fitting(found[:limit])) is not None:
            return fitting
        if budget.is_spent:
            return Found(found[:limit], False, _SPENT)
        if budget.left_out:
            return Found(found[:limit], False, budget.omission)
        if older or len(found) > limit:
            return Found(
                found[:limit],
                False,
                f"the newest {len(found[:limit])} are shown; ask for more, or give a time to begin at",
            )
        return self._in_time(found, topic, queue_ids, end_ms + 1)

    def _scan(
        self, topic: str, queue_ids: Iterable[int], begin_ms: int, end_ms: int, limit: int, budget: _Budget
    ) -> Found:
        found: list[StoredMessage] = []
        for queue_id in queue_ids:
            for begin, behind in self._process.store.reads.times.offset_ranges(
                topic, queue_id, begin_ms, min(end_ms, FOR_EVER_MS - 1)
            ):
                # One more than wanted of each queue: so it is known whether something was left out.
                messages, _ = self._read_queue(
                    topic, queue_id, begin, min(limit + 1, behind - begin), end_ms, budget
                )
                found += [stored for stored in messages if stored.store_timestamp >= begin_ms]
        found.sort(key=lambda stored: (stored.store_timestamp, stored.log_offset))
        if (fitting := _fitting(found[:limit])) is not None:
            return fitting
        if budget.is_spent:
            return Found(found[:limit], False, _SPENT)
        if budget.left_out:
            return Found(found[:limit], False, budget.omission)
        if len(found) > limit:
            return Found(
                found[:limit], False, f"the first {limit} are shown; ask for more, or narrow the time"
            )
        return self._in_time(found, topic, queue_ids, begin_ms, min(end_ms, FOR_EVER_MS - 1) + 1)

    def _in_time(
        self, found: list[StoredMessage], topic: str, queue_ids: Iterable[int], *times_ms: int
    ) -> Found:
        """All that a search by time found, with what makes it uncertain. In a thread."""
        orders = [
            order
            for queue_id in queue_ids
            if (order := self._process.store.reads.times.time_order(topic, queue_id, *times_ms)) is not None
        ]
        unknown = next((order for order in orders if order.unknown_below), None)
        if unknown is not None:
            return Found(found, False, str(unknown))
        return Found(found, True, str(orders[0]) if orders else "")

    async def offset_by_time(self, topic: str, queue_id: int, time_ms: int) -> int:
        """The first offset of a queue whose message was stored at or after a time."""
        if queue_id not in self._queue_ids(self._topic_config(topic)):
            raise NotFoundError(f"topic {topic} has no queue {queue_id}")
        return await self._in_thread(self._parts.store.reads.times.offset_by_time, topic, queue_id, time_ms)

    async def time_doubt(self, topic: str, time_ms: int, queue_id: int | None = None) -> str | None:
        """Why a search of a queue (None: of each queue) for a time is uncertain; None when it is not."""
        queue_ids = sorted(self._queue_ids(self._topic_config(topic))) if queue_id is None else [queue_id]

        def ask() -> str | None:
            orders = (
                (number, self._process.store.reads.times.time_order(topic, number, time_ms))
                for number in queue_ids
            )
            return next((f"queue {number}: {order}" for number, order in orders if order is not None), None)

        return await self._in_thread(ask)

    async def damage_at(self, log_offset: int) -> str | None:
        """How the record at a log offset is damaged; None when it is not."""
        return await self._in_thread(self._parts.store.reads.records.damage_at, log_offset)

    async def find_by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, limit: int) -> Found:
        """Messages of a topic with `key` among its keys or as its message id. Hashes that only look alike are
        left out."""
        self._topic_config(topic)
        return await self._by_key(topic, key, begin_ms, end_ms, limit)

    async def _by_key(self, topic: str, key: str, begin_ms: int, end_ms: int, limit: int) -> Found:
        store = self._parts.store
        asked = min(limit, MAX_LIMIT)
        walk = store.index.walk(topic, key, asked, begin_ms, end_ms)

        def look_up() -> tuple[int, list[StoredMessage], list[DamagedRecord], bool]:
            offsets, _, _ = walk.find()
            messages, damaged, taken = [], [], 0
            for offset in sorted(offsets):
                if taken >= MAX_ANSWER_BYTES:
                    return len(offsets), messages, damaged, True
                raw, damage = store.reads.records.record_of_entry(offset, walk.hashed)
                if damage is not None:
                    damaged.append(DamagedRecord(offset, damage))
                stored = _as_far_as_readable(raw)
                if (
                    stored is not None
                    and stored.topic == topic
                    and (key in stored.keys or key == stored.unique_key)
                ):
                    messages.append(stored)
                    taken += len(raw)
            return len(offsets), messages, damaged, False

        entries, messages, damaged, is_full = await self._in_thread(look_up)
        positions, reasons = store.status.positions(), []
        if damaged:
            reasons.append(damage_doubt(damaged))
        if is_full:
            reasons.append(_FULL)
        elif positions.dispatched < positions.confirmed:
            reasons.append(
                f"the index is being filled and has come to position {positions.dispatched:,} of "
                f"{positions.confirmed:,}"
            )
        elif entries >= asked:
            reasons.append(f"the index gave as many entries as were asked for ({asked})")
        reasons += filter(None, (store.index_doubt, store.reads.times.key_times_doubt(begin_ms, end_ms)))
        return Found(messages, not reasons, "; ".join(reasons), damaged=tuple(damaged))

    async def traces_of(self, message_id: str) -> Traces:
        """What its clients wrote about a message, if they write traces (msgTraceTopicName)."""
        topic = self._parts.settings.msg_trace_topic_name
        if self._parts.topics.get(topic) is None:
            return Traces(topic)
        found = await self._by_key(topic, message_id, 0, FOR_EVER_MS, MAX_LIMIT)

        def read() -> list[TraceEvent]:
            bodies = (inflate(stored.body, stored.sys_flag) or b"" for stored in found.messages)
            return traces.in_order(
                [event for body in bodies for event in traces.decode(body) if event.message_id == message_id]
            )

        return Traces(topic, await self._in_thread(read), found.complete, found.reason)

    async def find_by_id(self, id: str, topic: str | None = None) -> Found:
        """The message of an offset message id; or of a message id, which the index knows only together with
        its topic."""
        store, id = self._parts.store, id.strip()
        if not id:
            return Found()
        try:
            _, log_offset = message_id.decode_offset_id(id)
        except FormatError:
            log_offset = -1
        positions, reasons, damaged = store.status.positions(), [], []
        if positions.min <= log_offset < positions.confirmed:
            raw, damage = await self._in_thread(
                lambda: (
                    store.reads.records.record_at(log_offset, False),
                    store.reads.records.damage_at(log_offset),
                )
            )
            stored = _as_far_as_readable(raw)
            if stored is not None and stored.offset_id == id.upper():
                return Found(
                    [stored], damaged=(DamagedRecord(log_offset, damage),) if damage is not None else ()
                )
            if raw is None:
                reasons.append(f"no record that can be read begins at {log_offset:,} of the log")
            elif stored is None:
                damaged.append(DamagedRecord(log_offset, damage or "it cannot be read"))
        topics = [topic] if topic else sorted({name for name, _ in store.queues()})
        for name in topics[:TOPICS_OF_AN_ID]:
            found = await self._by_key(name, id, 0, FOR_EVER_MS, MAX_IDS)
            if matching := [stored for stored in found.messages if stored.unique_key == id]:
                return replace(found, messages=matching)
            damaged += found.damaged
            await asyncio.sleep(0)
        if damaged:
            reasons.append(damage_doubt(damaged))
        if len(topics) > TOPICS_OF_AN_ID:
            reasons.append(f"{TOPICS_OF_AN_ID} of {len(topics)} topics were looked through; name the topic")
        reasons += filter(None, (store.index_doubt,))
        return Found([], not reasons, "; ".join(reasons), damaged=tuple(damaged))

    async def message(self, log_offset: int) -> tuple[StoredMessage, bytes]:
        """The message whose record begins at a place of the log, and its bytes; its CRC may be wrong.

        NotFoundError without a record, a Problem where its parts cannot be told apart.
        """
        store = self._parts.store
        raw = await self._in_thread(store.reads.records.record_at, log_offset, False)
        if raw is None:
            raise NotFoundError(f"no record that can be read begins at {log_offset:,} of the log")
        try:
            return record.decode(raw, check_crc=False), raw
        except FormatError as error:
            raise Problem(
                "damaged", f"the record at {log_offset:,} of the log cannot be read: {error}"
            ) from None

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    # -- sending and pulling

    async def send(
        self,
        topic: str,
        body: bytes,
        tag: str = "",
        keys: Iterable[str] = (),
        properties: dict[str, str] | None = None,
        queue_id: int | None = None,
    ) -> dict:
        """Store one message; its receipt, or the Problem raised."""
        [receipt] = await self.send_batch(
            topic, [NewMessage(body, tag, tuple(keys), properties or {}, queue_id)]
        )
        if "problem" in receipt:
            raise Problem(
                receipt["problem"]["code"], receipt["problem"]["detail"], receipt["problem"].get("hint")
            )
        return receipt

    async def send_batch(self, topic: str, messages: list[NewMessage]) -> list[dict]:
        """Store messages in order; a receipt each, or {"problem"} for what was not stored. Refused topics
        raise.

        A topic that is missing stays missing: to make one needs another role, and leaves an audit record
        (decision 43).
        """
        parts = self._parts
        config = self._topic_config(topic)
        if parts.topics.is_system(topic) or topic in FORBIDDEN_TO_SEND:
            raise Problem(
                "not_writable",
                f"topic {topic} belongs to the broker: REST and pages send nothing to it",
                "send to a topic of your own",
            )
        if (
            not config.writable
            or not parts.settings.broker_permission & PERM_WRITE
            or config.write_queues < 1
        ):
            raise Problem("not_writable", f"topic {topic} takes no messages")
        now_ms = parts.clock()
        answers: list[dict | asyncio.Future] = []
        for new in messages:
            try:
                message, unique_key = self._message(config, new, now_ms)
            except Problem as problem:
                answers.append({"problem": problem.document()})
                continue
            queue = (message.topic, message.queue_id, unique_key)
            answers.append(asyncio.ensure_future(self._store_one(message, queue)))
        await asyncio.gather(*(answer for answer in answers if isinstance(answer, asyncio.Future)))
        return [answer.result() if isinstance(answer, asyncio.Future) else answer for answer in answers]

    async def _store_one(self, message: Message, place: tuple[str, int, str]) -> dict:
        topic, queue_id, unique_key = place
        result = await self._parts.sends.put(message)
        if result.status not in SENT:
            return {
                "problem": problem_of_put(
                    result.status, message, self._parts.store_settings.max_message_size
                ).document()
            }
        store_host = self._parts.endpoint.store_host
        return {
            "status": result.status.name,
            "topic": topic,
            "queue_id": queue_id,
            "queue_offset": str(result.queue_offset),
            "log_offset": str(result.log_offset),
            "message_id": unique_key,
            "offset_message_id": message_id.encode_offset_id(store_host, result.log_offset),
            "store_time_ms": str(result.store_timestamp),
        }

    def _message(self, config: TopicConfig, new: NewMessage, now_ms: int) -> tuple[Message, str]:
        parts = self._parts
        if not new.body:
            raise Problem("invalid", "the body is empty")
        if new.queue_id is not None and new.queue_id >= config.write_queues:
            raise Problem(
                "queue_not_found",
                f"topic {config.name} has {config.write_queues} queues to write to, {new.queue_id} "
                f"is none of them",
            )
        for name in NOT_BY_REST & new.properties.keys():
            raise Problem("invalid", f"property {name} is not for messages sent by REST")
        unique_key = new.properties.get(properties.UNIQUE_KEY) or self._unique_id(now_ms)
        pairs = {
            **new.properties,
            properties.UNIQUE_KEY: unique_key,
            properties.TAGS: new.tag or None,
            properties.KEYS: properties.join_keys(new.keys) or None,
            properties.WAIT: "true",
            properties.MESSAGE_REGION: parts.settings.region_id,
            properties.CLUSTER: parts.cluster,
        }
        queue_id = next(self._queue_turn) % config.write_queues if new.queue_id is None else new.queue_id
        message = Message(
            config.name,
            queue_id,
            new.body,
            properties.encode(pairs),
            new.flag,
            0,
            now_ms,
            LOOPBACK_HOST,
            parts.endpoint.store_host,
        )
        level = new.properties.get(properties.DELAY, "")
        if level.isascii() and level.isdigit() and 0 < int(level[:9]):
            parts.delay.schedule(message, int(level[:9]))
        return message, unique_key

    def _unique_id(self, now_ms: int) -> str:
        address = self._parts.endpoint.store_host[0]
        return message_id.encode_unique_id(
            message_id.UniqueId(
                address, os.getpid(), self._loader, now_ms % (31 * 86_400_000), next(self._ids)
            )
        )

    async def pull(self, topic: str, queue_id: int, offset: int | None, limit: int, wait_ms: int) -> Found:
        """As messages_at, waiting up to `wait_ms` for the first; `offset` None is the lowest there is."""
        store, config = self._parts.store, self._topic_config(topic)
        if not config.readable:
            raise Problem("not_readable", f"topic {topic} may not be read")
        if queue_id not in self._queue_ids(config):
            raise NotFoundError(f"topic {topic} has no queue {queue_id}")
        if offset is None:
            offset = store.reads.min_offset(topic, queue_id)
        if wait_ms > 0 and offset >= store.reads.max_offset(topic, queue_id):
            await self._arrival(topic, queue_id, offset, wait_ms / 1000)
        return await self.messages_at(topic, queue_id, offset, limit)

    async def _arrival(self, topic: str, queue_id: int, offset: int, seconds: float) -> None:
        """Until the queue has a message at `offset`, or the time is over."""
        store, queue, event = self._parts.store, (topic, queue_id), asyncio.Event()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        self._listen()
        waiting = self._arrivals.setdefault(queue, set())
        waiting.add(event)
        try:
            while store.reads.max_offset(topic, queue_id) <= offset and (left := deadline - loop.time()) > 0:
                # The last parked pull of a client that goes takes the watch away with it, so it is set anew
                # each second.
                store.confirmation.watch(topic, queue_id)
                event.clear()
                try:
                    await asyncio.wait_for(event.wait(), min(left, 1.0))
                except TimeoutError:
                    pass
        finally:
            waiting.discard(event)
            if not waiting:
                self._arrivals.pop(queue, None)
                if not self._parts.parked.waiting_on(queue):
                    store.confirmation.unwatch(topic, queue_id)

    def _listen(self) -> None:
        """Hear of arrivals beside the parked pulls' listener, which stays the first to be told."""
        store = self._parts.store
        if store.confirmation.arrival_listener is self._listened_to and self._listened_to is not None:
            return
        first = store.confirmation.arrival_listener

        def arrived(queues: list[tuple[str, int]]) -> None:
            if first is not None:
                first(queues)
            for queue in queues:
                for event in self._arrivals.get(queue, ()):
                    event.set()

        self._listened_to = store.confirmation.arrival_listener = arrived

    # -- inside

    @property
    def _store(self):
        return None if self._process is None else self._process.store

    @property
    def _is_open(self) -> bool:
        return self._state().state in ("running", "read_only")

    @property
    def _parts(self):
        parts = None if self._process is None else self._process.parts
        if parts is None or self._process.store.state in ("closed", "failed"):
            raise StoreClosedError(self.state().sentence)
        return parts


def _as_far_as_readable(raw: bytes | None) -> StoredMessage | None:
    """The message of a record that may be damaged, None when its parts cannot be told apart."""
    try:
        return None if raw is None else record.decode(raw, check_crc=False)
    except FormatError:
        return None


_FULL = f"the answer is full: its records have {MAX_ANSWER_BYTES >> 20} MiB or more; narrow the time"
_SPENT = (
    f"the search stopped after {SCAN_SECONDS:g} s or {SCAN_BUDGET_BYTES >> 20} MiB of reading; narrow "
    f"the time"
)


def _fitting(found: list[StoredMessage]) -> Found | None:
    """Those that fit into one answer, where not all do."""
    taken = 0
    for at, stored in enumerate(found):
        if taken >= MAX_ANSWER_BYTES:
            return Found(found[:at], False, _FULL)
        taken += stored.size
    return None


class _Budget:
    """What a search may still read and how long it may still take."""

    def __init__(self, bytes_left: int):
        self.bytes_left = bytes_left
        self.left_out = 0  # messages that are not as they were stored
        self._until = time.monotonic() + SCAN_SECONDS

    @property
    def omission(self) -> str:
        return (
            f"{self.left_out} messages are left out that are not as they were stored; see the flags of "
            f"the store"
        )

    @property
    def is_spent(self) -> bool:
        return self.bytes_left <= 0 or time.monotonic() > self._until


def _time(time_ms: int | None) -> int | None:
    """The engine's -1 and 0 are "not known"."""
    return time_ms if time_ms is not None and time_ms > 0 else None


_GROUP_FIELDS = {
    "consume_enable": "consume_enable",
    "broadcast": "consume_broadcast_enable",
    "orderly": "consume_message_orderly",
    "retry_queues": "retry_queue_nums",
    "retry_max_times": "retry_max_times",
}


def _group_fields(settings: dict[str, Any]) -> dict[str, Any]:
    return {_GROUP_FIELDS[name]: value for name, value in settings.items()}


def _of(files: list[StoreFile], kinds: Collection[str], topic: str | None) -> list[StoreFile]:
    """The files of some kinds, or of all, and of one topic if it is named."""
    return [file for file in files if (not kinds or file.kind in kinds) and topic in (None, file.topic)]
