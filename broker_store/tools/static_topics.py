"""Commands about static topics: create one, give it more queues, move its queues to other brokers.

A command reads the mappings of all masters, makes new ones, and writes them to the brokers with a new epoch.
A queue is moved in steps, so that its offsets only grow:

    1  the next leader gets the row with the new part; it takes sends, without logical offsets
    2  the old leader gets the row, and takes no more sends: its end is final
    3  the new part begins at a multiple of 10,000 after that end
    4  the next leader gets the decided row, and gives the messages to consumers

A command that ended between these steps is run again: it reads from the brokers which moves are not decided.

Source: Apache's `MQAdminUtils` and `TopicQueueMappingUtils`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from broker_store.errors import FormatError, MisuseError, NotFoundError, PeerError
from broker_store.formats.static_topics import (
    MAX_ITEMS,
    MAX_LOGICAL_QUEUES,
    UNDECIDED,
    MappingItem,
    Row,
    TopicMapping,
)
from broker_store.formats.topics import AUTO_CREATE_TOPIC
from broker_store.protocol import fastjson
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.members import loads_object
from broker_store.protocol.message_queue import MessageQueue
from broker_store.protocol.offset_bodies import QueueOffsets, decode_topic_stats
from broker_store.protocol.route_bodies import MASTER_ID
from broker_store.protocol.topic_bodies import TopicConfig
from broker_store.tools import layout
from broker_store.tools.command import Line, Options, command, needed, option
from broker_store.tools.servers import Servers
from broker_store.tools.topics import TOPIC

BLOCK = 10_000  # of Apache's tool: logical offsets from the begin of one part to that of the next
EPOCH_STEP = 1_000
BROKERS_OR_CLUSTERS = (
    option("b", "brokers", "names of brokers, comma separated"),
    option("c", "clusters", "names of clusters, comma separated: all their brokers"),
)
OPTIONS = (
    TOPIC,
    option("mf", "mapFile", "refused: the mapping is read from the brokers"),
    option("fr", "forceReplace", "whether brokers take rows that do not follow theirs", "true", "false"),
)


@dataclass
class Part:
    """What one broker has of a static topic: its number of queues, and its rows by logical queue."""

    address: str
    config: TopicConfig
    epoch: int = 0
    total_queues: int = 0
    rows: dict[int, Row] = field(default_factory=dict)

    def add_queue(self) -> int:
        """Add a physical queue and return its id."""
        queue_id = self.config.write_queue_nums
        self.config = replace(self.config, read_queue_nums=queue_id + 1, write_queue_nums=queue_id + 1)
        return queue_id


class StaticTopic:
    """A static topic at all masters of the cluster, and the requests that change it there."""

    def __init__(self, servers: Servers, name: str, parts: dict[str, Part], *, force: bool):
        self.name, self.parts = name, parts
        self._servers, self._force = servers, force
        self.total_queues = max((part.total_queues for part in parts.values()), default=0)
        known = max((part.epoch for part in parts.values()), default=0)
        self.epoch = max(known + EPOCH_STEP, int(time.time() * 1000))

    @property
    def is_settled(self) -> bool:
        """Return whether all brokers have it with one epoch and one number of queues."""
        return len({(part.epoch, part.total_queues) for part in self.parts.values()}) == 1

    @property
    def rows(self) -> dict[int, Row]:
        """Return the newest row of each logical queue; of equal ones that of its leader, which alone removes
        parts whose messages are deleted."""
        newest: dict[int, tuple[tuple[int, bool, bool], Row]] = {}
        for name, part in self.parts.items():
            for number, row in part.rows.items():
                if not row:
                    continue
                age = (row[-1].gen, row[-1].is_decided, row[-1].broker == name)
                if number not in newest or age > newest[number][0]:
                    newest[number] = age, row
        return {number: row for number, (_, row) in sorted(newest.items())}

    def missing(self) -> list[int]:
        """Return the logical queues of which no broker has a row."""
        return sorted(set(range(self.total_queues)) - self.rows.keys())

    def create(self, total_queues: int, targets: Sequence[str]) -> None:
        """Give each logical queue without a row to the target that leads the fewest."""
        self.total_queues = total_queues
        leaders = [row[-1].broker for row in self.rows.values()]
        leads = {name: leaders.count(name) for name in targets}
        for number in self.missing():
            name = min(leads, key=lambda each: (leads[each], each))
            leads[name] += 1
            self.parts[name].rows[number] = (MappingItem(0, self.parts[name].add_queue(), name, 0),)

    def move(self, targets: Sequence[str]) -> None:
        """Give the queues evenly to the targets; a queue that is at one of them stays, where that is even."""
        for number, name in moves(self.rows, targets).items():
            row = self.rows[number]
            if len(row) >= MAX_ITEMS:
                raise PeerError(
                    f"queue {number} has {len(row)} parts already: move it once the oldest are deleted"
                )
            item = MappingItem(row[-1].gen + 1, self.parts[name].add_queue(), name, UNDECIDED)
            self._put_row(number, (*row, item))

    def _put_row(self, number: int, row: Row) -> None:
        """Give a row to the leader of the queue and to the one before it. Raises NotFoundError."""
        for item in row[-2:]:
            if item.broker not in self.parts:
                raise NotFoundError(
                    f"queue {number} has a part at broker {item.broker}, which is not registered: start it"
                )
            self.parts[item.broker].rows[number] = row

    async def write(self, names: Iterable[str] | None = None) -> None:
        """Write the rows of the named brokers, or of all. Raises ClientError."""
        for name in sorted(self.parts if names is None else names):
            part = self.parts[name]
            await self._servers.ask(
                part.address,
                RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
                fastjson.dumps(
                    TopicMapping(self.name, self.total_queues, name, self.epoch, part.rows).to_json()
                ),
                topic=self.name,
                default_topic=AUTO_CREATE_TOPIC,
                read_queue_nums=part.config.read_queue_nums,
                write_queue_nums=part.config.write_queue_nums,
                perm=part.config.perm,
                topic_filter_type=part.config.topic_filter_type,
                topic_sys_flag=part.config.topic_sys_flag,
                force=self._force,
            )

    async def decide(self) -> list[int]:
        """Write and decide the last part of each queue whose part is undecided, in the steps above. Return
        the numbers of the queues. Raises ClientError, NotFoundError, PeerError."""
        moving = {number: row for number, row in self.rows.items() if not row[-1].is_decided}
        if not moving:
            return []
        for number, row in moving.items():
            if len(row) < 2:
                raise PeerError(f"queue {number} has one part, whose begin is not decided")
            self._put_row(number, row)
        await self.write({row[-1].broker for row in moving.values()})
        olds = {row[-2].broker for row in moving.values()}
        await self.write(olds)
        ends: dict[MessageQueue, QueueOffsets] = {}
        for name in sorted(olds):
            answer = await self._servers.ask(
                self.parts[name].address, RequestCode.GET_TOPIC_STATS_INFO, topic=self.name
            )
            ends |= decode_topic_stats(answer.body)
        for number, row in moving.items():
            old, new = row[-2:]
            found = ends.get(MessageQueue(self.name, old.broker, old.queue_id))
            if found is None or found.max_offset < old.start_offset:
                raise PeerError(
                    f"queue {number} moves from queue {old.queue_id} of broker {old.broker}, which shows no "
                    f"end of it: {found}"
                )
            begin = next_block(old.logical(found.max_offset))
            self._put_row(number, (*row[:-1], new._replace(logic_offset=begin)))
        await self.write({row[-1].broker for row in moving.values()})
        self.epoch += EPOCH_STEP  # with one epoch a queue has one leader
        return list(moving)

    def lines(self) -> list[Line]:
        """Return a table with the leader of each logical queue."""
        text = "%-5s  %-32s  %-11s  %s"
        lines = [Line(layout.line(text, "#QID", "#Broker Name", "#Broker QID", "#Begin Offset"))]
        for number, row in self.rows.items():
            last = row[-1]
            shown = (number, last.broker, last.queue_id, last.logic_offset)
            fact = dict(zip(("queue", "brokerName", "queueId", "logicOffset"), shown, strict=True))
            lines.append(Line(layout.line(text, *shown), fact))
        return lines


def next_block(offset: int) -> int:
    """Return the multiple of BLOCK at which a part begins: the next one, or the one after it if less than
    half a block is left. Source: `TopicQueueMappingUtils.blockSeqRoundUp`."""
    return (offset // BLOCK + (1 if offset % BLOCK < BLOCK // 2 else 2)) * BLOCK


def moves(rows: Mapping[int, Row], targets: Sequence[str]) -> dict[int, str]:
    """Return the next broker of each queue that moves, so that the targets lead as many queues each, or one
    more: those that lead the most now."""
    staying: dict[str, list[int]] = {name: [] for name in targets}
    moving: list[int] = []
    for number, row in sorted(rows.items()):
        staying.get(row[-1].broker, moving).append(number)
    each, more = divmod(len(rows), len(targets))
    room = {}
    for place, name in enumerate(sorted(targets, key=lambda name: (-len(staying[name]), name))):
        quota = each + (place < more)
        moving += staying[name][quota:]
        room[name] = quota - len(staying[name][:quota])
    places = (name for name, count in room.items() for _ in range(count))
    return dict(zip(sorted(moving), places, strict=True))


async def _topic_and_targets(servers: Servers, options: Options) -> tuple[StaticTopic, list[str]]:
    """Return the topic as all masters have it, and the names of the brokers that the options choose. Raises
    MisuseError, NotFoundError, PeerError, ClientError."""
    if "mapFile" in options:
        raise MisuseError("--mapFile: the mapping is read from the brokers; run the command without it")
    info = await servers.cluster_info()
    addresses = {
        name: broker.addresses[MASTER_ID]
        for name, broker in sorted(info.brokers.items())
        if MASTER_ID in broker.addresses
    }
    targets = options.words("brokers")
    for cluster in options.words("clusters"):
        targets += [broker.broker_name for broker in await servers.brokers_of(cluster)]
    targets = list(dict.fromkeys(targets))
    if not targets:
        raise MisuseError("no broker is named")
    for name in targets:
        if name not in addresses:
            raise NotFoundError(f"no master of broker {name} is registered")
    topic = options.text("topic")
    parts = {name: await _part(servers, topic, name, address) for name, address in addresses.items()}
    return StaticTopic(servers, topic, parts, force=options.yes("forceReplace")), targets


def _without_leader(topic: StaticTopic) -> str:
    return f"no broker has queue {topic.missing()[0]}, of {topic.total_queues}: start the one that had it."


async def _part(servers: Servers, topic: str, name: str, address: str) -> Part:
    """Return what a broker has of the topic; a part without queues if it has none of it."""
    accept = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
    answer = await servers.ask(address, RequestCode.GET_TOPIC_CONFIG, accept=accept, topic=topic, lo=True)
    if answer.code != ResponseCode.SUCCESS:
        return Part(address, TopicConfig(topic, 0, 0))
    members = loads_object(answer.body)
    if not members.get("mappingDetail"):
        raise PeerError(f"topic {topic} of broker {name} is not static: choose another name")
    try:
        mapping = TopicMapping.from_json(members["mappingDetail"])
    except FormatError as error:
        raise PeerError(f"broker {name}: {error}") from None
    config = TopicConfig.from_json(members)
    return Part(address, config, mapping.epoch, mapping.total_queues, dict(mapping.rows))


@command(
    "updateStaticTopic",
    "Update or create static topic, which has fixed number of queues.",
    *OPTIONS,
    needed("qn", "totalQueueNum", "number of logical queues"),
    one_of=(BROKERS_OR_CLUSTERS,),
)
async def update_static_topic(servers: Servers, options: Options) -> AsyncIterator[Line]:
    total = options.number("totalQueueNum", 0)
    if not 0 < total <= MAX_LOGICAL_QUEUES:
        raise MisuseError(f"--totalQueueNum {total}: expected 1 to {MAX_LOGICAL_QUEUES}")
    topic, targets = await _topic_and_targets(servers, options)
    if total < topic.total_queues:
        raise MisuseError(f"Cannot decrease the queue num for static topic {total} < {topic.total_queues}")
    missing = topic.missing()
    if missing and not options.yes("forceReplace"):
        raise NotFoundError(
            f"{_without_leader(topic)} If the topic was being created, --forceReplace true makes it "
            "again, from offset 0."
        )
    decided = await topic.decide()
    if total == topic.total_queues and topic.is_settled and not missing and not decided:
        yield Line("The topic queue num is equal the existed queue num, do nothing")
    else:
        topic.create(total, targets)
        await topic.write()
        yield Line(f"static topic {topic.name} has {total} queues.")
    for line in topic.lines():
        yield line


@command("remappingStaticTopic", "Remapping static topic.", *OPTIONS, one_of=(BROKERS_OR_CLUSTERS,))
async def remap_static_topic(servers: Servers, options: Options) -> AsyncIterator[Line]:
    topic, targets = await _topic_and_targets(servers, options)
    if not topic.total_queues:
        raise NotFoundError("No topic route to do the remapping")
    if topic.missing():
        raise NotFoundError(_without_leader(topic))
    moved = set(await topic.decide())
    topic.move(targets)
    moved |= set(await topic.decide())
    if moved or not topic.is_settled:
        await topic.write()
    yield Line(f"{len(moved)} queues of static topic {topic.name} were moved.")
    for line in topic.lines():
        yield line
