"""The anonymous parts of a broker's memory that grow, each with its bound (`facts/memory.py`).

A part that is not counted is a number of entries, times what one takes. What an entry takes was measured with
names of usual length: of queues, maps and connections by the growth of RssAnon over thousands of them, of the
others by tracemalloc (`tests/test_memory_parts.py` holds each to within a third).

`of` returns the parts of a broker; it is called when a part is measured, so bounds are known without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from broker_store.broker.loaded_slots import MAX_LOADED
from broker_store.broker.pop.in_flight import MAX_POPS
from broker_store.broker.pop.revive import MAX_IN_HAND
from broker_store.config.broker import BrokerSettings
from broker_store.config.load import Settings
from broker_store.engine.disk.system import mapped_files, max_maps
from broker_store.engine.queue.consume_queues import ConsumeQueues
from broker_store.engine.queue.queue_maps import default_limit
from broker_store.engine.read import cold
from broker_store.facts.memory import COUNTED, ESTIMATED, Growing, bounds_warning
from broker_store.memory_limit import MemoryLimit
from broker_store.server.consume import MAX_PULL_BYTES
from broker_store.server.grpc.port import GrpcListener
from broker_store.server.listener import Listener
from broker_store.server.parts import BrokerParts

PROGRAM = 122 << 20  # anonymous memory of the program at its start, where it is not measured
PER_QUEUE = 1_800  # its object, row, entries of tables and of the record of ends
PER_MAP = 1_100  # the region, its path, the entry of the handler of SIGBUS
PER_TOPIC = 1_200
PER_GROUP = 1_600
PER_PARKED_PULL = 1_700
PER_PARKED_POP = 2_300
PER_POP = 760
PER_REVIVED = 760
PER_TIMED = 270
PER_OFFSETS = 800  # of a group in a topic of four queues
PER_CONNECTION = 2_000  # after its first request, without what a heartbeat registers
PER_COLD_READ = cold.MAX_SPAN_BYTES + MAX_PULL_BYTES  # while a thread reads

Of = Callable[[], BrokerParts]


def growing_parts(
    parts: BrokerParts,
    queues: ConsumeQueues,
    listeners: dict[str, Listener[Any]],
    grpc: GrpcListener | None = None,
) -> list[Growing]:
    """Return the parts of a broker that has opened its ports; `listeners` are those, by name."""
    found = [
        Growing("queues", lambda: len(queues) * PER_QUEUE, ESTIMATED, None, None, None),
        _maps(queues.maps.limit),
        *_broker(parts.settings, lambda: parts),
    ]
    for name, listener in listeners.items():
        found += _of_port(
            name,
            listener.max_connections,
            listener.shares.unfinished_bytes,
            lambda one=listener: one,  # type: ignore[misc]  # a lambda with a default
        )
    if grpc is not None:
        found += _of_grpc_port(grpc.max_connections, grpc.shares.unfinished_bytes, lambda: grpc)
    return found


def warning_of(settings: Settings, limit: MemoryLimit, ports: Iterable[str]) -> str | None:
    """Return why the bounds of these settings are too much for a limit, before a start; None where they are
    not. `ports` are the names of the ports that it opens."""
    broker = settings.broker
    found = [_maps(settings.store.max_mapped_files or default_limit(limit.bytes)), *_broker(broker, _none)]
    for name in ports:
        found += _of_port(name, broker.max_connections, broker.max_unfinished_bytes, _none)
    if broker.grpc_server_port:
        found += _of_grpc_port(broker.max_connections, broker.max_unfinished_bytes, _none)
    return bounds_warning(PROGRAM + sum(one.bound_bytes or 0 for one in found), limit, found)


def _none() -> Any:
    raise AssertionError("there are bounds alone: nothing can be measured")


def _maps(limit: int) -> Growing:
    return Growing(
        "maps of files",
        lambda: mapped_files() * PER_MAP,
        ESTIMATED,
        min(limit, max_maps()) * PER_MAP,
        "maxMappedFiles",
        "files of idle queues are unmapped",
    )


def _broker(settings: BrokerSettings, of: Of) -> Iterator[Growing]:
    for name, count, each, most, bound, at_bound in (
        (
            "topics",
            lambda: len(of().topics),
            PER_TOPIC,
            settings.max_topics,
            "maxTopics",
            "no further topic is created",
        ),
        (
            "groups",
            lambda: len(of().groups),
            PER_GROUP,
            settings.max_groups,
            "maxGroups",
            "no further group is created",
        ),
        (
            "offsets of groups",
            lambda: len(of().offsets),
            PER_OFFSETS,
            settings.max_offsets,
            "maxOffsets",
            "offsets of further pairs of a group and a topic are refused",
        ),
        (
            "parked pulls",
            lambda: of().parked.count,
            PER_PARKED_PULL,
            settings.max_parked_pulls,
            "maxParkedPulls",
            "a further pull is answered SYSTEM_BUSY",
        ),
        (
            "parked pops",
            lambda: of().parked_pops.count,
            PER_PARKED_POP,
            settings.max_pop_polling_size,
            "maxPopPollingSize",
            "a further pop is answered POLLING_FULL",
        ),
        (
            "pops with invisible messages",
            lambda: of().in_flight.kept,
            PER_POP,
            MAX_POPS,
            "MAX_POPS",
            "further pops are not shown; they come again all the same",
        ),
        (
            "pops that are revived",
            lambda: of().revive.in_hand,
            PER_REVIVED,
            MAX_IN_HAND * settings.revive_queue_num,
            "MAX_IN_HAND",
            "the revive log is read later",
        ),
        (
            "timed messages in memory",
            lambda: of().timer.slots.loaded,
            PER_TIMED,
            MAX_LOADED,
            "MAX_LOADED",
            "later seconds stay in their files; those of one second are all loaded",
        ),
        (
            "cold reads",
            lambda: min(of().store.reads.cold_in_flight, cold.THREADS),
            PER_COLD_READ,
            cold.THREADS,
            "THREADS of cold reads",
            "further ones wait; each group has at most 16",
        ),
    ):
        yield Growing(
            name,
            lambda count=count, each=each: count() * each,  # type: ignore[misc]  # a lambda with a default
            ESTIMATED,
            most * each,
            bound,
            at_bound,
        )


def _of_port(
    name: str, max_connections: int, max_bytes: int, of: Callable[[], Listener[Any]]
) -> Iterator[Growing]:
    yield Growing(
        f"connections, {name}",
        lambda: len(of().channels) * PER_CONNECTION,
        ESTIMATED,
        max_connections * PER_CONNECTION,
        "maxConnections",
        "further ones are closed",
    )
    yield Growing(
        f"unfinished requests, {name}",
        lambda: of().kept_bytes,
        COUNTED,
        max_bytes,
        "maxUnfinishedBytes",
        "the connection with most of them ends",
    )
    yield Growing(
        f"answers that are not sent, {name}",
        lambda: sum(channel.unsent for channel in list(of().channels)),
        COUNTED,
        None,
        "maxUnfinishedBytes",  # with unfinished requests, so it is in the bound of these
        "the connection with most of them ends",
    )


def _of_grpc_port(max_connections: int, max_bytes: int, of: Callable[[], GrpcListener]) -> Iterator[Growing]:
    yield from _of_port("gRPC", max_connections, max_bytes, of)
    yield Growing(
        "answers that wait for windows, gRPC",
        lambda: of().queued_bytes,
        COUNTED,
        max_bytes,
        "maxUnfinishedBytes",
        "the connection with most of them ends",
    )
