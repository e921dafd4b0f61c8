"""Facts of the store that only the running broker has, not the files (broker_store/facts/store_facts.py)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from broker_store.engine.status.store_state import LogPositions
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.store_facts import GroupInQueue
from broker_store.formats.pop_records import PopKey
from broker_store.formats.record import StoredMessage
from broker_store.server.parts import BrokerParts
from mqadmin.cluster.embedded.waiting import fate_of
from mqadmin.facts.waiting import MessageFate


class BrokerFacts:
    """The facts for one scan, read in a thread. `call` runs a function on the loop; positions are read
    once."""

    source = "measured in the running broker"

    def __init__(self, parts: BrokerParts, call: Callable[..., Any]):
        self._parts, self._call = parts, call
        self.trace_topic = parts.settings.msg_trace_topic_name
        self.is_dry_run = parts.store_settings.inspect
        if self.is_dry_run:
            self.source = "read from the store's files, and from what a start made of them in memory"

    @property
    def has_group_offsets(self) -> bool:
        store = self._parts.store
        return (
            not self.is_dry_run
            or StoreDirectory(store.root, log_directory=store.log.directory).has_group_offsets()
        )

    def positions(self) -> LogPositions:
        return self._positions

    @functools.cached_property
    def _positions(self) -> LogPositions:
        return self._call(self._parts.store.status.positions)

    def queue_span(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        store = self._parts.store
        return self._call(
            lambda: (
                (store.reads.min_offset(topic, queue_id), store.reads.max_offset(topic, queue_id))
                if queue_id in store.queue_ids(topic)
                else None
            )
        )

    def group_names(self, topic: str) -> list[str]:
        parts = self._parts
        return self._call(
            lambda: sorted({*parts.offsets.groups_of_topic(topic), *parts.clients.groups_of_topic(topic)})
        )

    def groups(self, topic: str, queue_id: int) -> list[GroupInQueue]:
        return self._call(self._groups, topic, queue_id)

    def _groups(self, topic: str, queue_id: int) -> list[GroupInQueue]:
        offsets, clients, in_flight = self._parts.offsets, self._parts.clients, self._parts.in_flight
        found = []
        for group in sorted({*offsets.groups_of_topic(topic), *clients.groups_of_topic(topic)}):
            online = clients.consumer_group(group)
            wanted = clients.subscription(group, topic)
            offset = offsets.query(group, topic, queue_id)
            if offset is None:
                offset = offsets.of_broadcast(group).get(topic, {}).get(queue_id)
            pops = in_flight.counts(group).popped > 0 or in_flight.invisible_of(group, topic) > 0
            is_known = pops or not in_flight.doubt(group, self._parts.clock())
            found.append(
                GroupInQueue(
                    group=group,
                    offset=offset,
                    clients=len(online.members) if online else 0,
                    expression=wanted.expression if wanted else None,
                    tags=sorted(wanted.tags) if wanted and wanted.tags else None,
                    pops=pops if is_known else None,
                )
            )
        return found

    def fate(self, stored: StoredMessage) -> MessageFate | None:
        return self._call(fate_of, self._parts, stored)

    def is_invisible(self, key: PopKey, queue_offset: int) -> bool | None:
        return self._call(self._is_invisible, key, queue_offset)

    def _is_invisible(self, key: PopKey, queue_offset: int) -> bool | None:
        parts = self._parts
        for pop in parts.in_flight.pops_in(key.topic, key.queue_id):
            if pop.checkpoint.key == key:
                return queue_offset in pop.offsets()
        return None if self.is_dry_run or parts.in_flight.doubt(key.group, parts.clock()) else False
