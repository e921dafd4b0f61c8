"""A cluster in which everything that a client may write is one of the payloads, wherever a page shows
it."""

from __future__ import annotations

import time
from dataclasses import replace

from broker_store.access.denied import Denied
from broker_store.access.policies import read_policies
from broker_store.access.state import ChangeRefused, check_user
from broker_store.access.users import User
from broker_store.engine.status.store_state import Flag
from broker_store.facts.chains import Chains
from broker_store.facts.explain import LookupStep
from broker_store.facts.starts import StartFinding, StartReport
from broker_store.formats import properties, record
from broker_store.messages import Message
from mqadmin.facts.groups import GroupDetail, Member, Subscription
from mqadmin.facts.overview import State
from mqadmin.facts.pops import InvisibleMessages
from mqadmin.facts.topics import TopicDetail
from mqadmin.facts.waiting import Halves, MessageFate
from tests.support.fake_cluster import (
    BORN_HOST,
    STORE_HOST,
    FakeAccess,
    FakeCluster,
    FakeGroups,
    FakeIndex,
    FakePops,
    FakeStore,
    FakeTopics,
    FakeWaiting,
)
from tests.support.payloads import PAYLOADS

AT_ONCE = 24  # payloads in the properties of one message


class HostileTopics(FakeTopics):
    def detail(self, name: str) -> TopicDetail:
        return replace(super().detail(name), attributes={text: text for text in self._cluster.payloads})


class HostileGroups(FakeGroups):
    def detail(self, name: str) -> GroupDetail:
        group = super().detail(name)
        queues = [
            replace(queue, client_id=self._cluster.payloads[n % len(self._cluster.payloads)])
            for n, queue in enumerate(group.queues)
        ]
        return replace(
            group,
            queues=queues,
            members=[
                Member(client_id=text, address="10.0.3.14:5122", language=text, version=text, heartbeat_ms=1)
                for text in self._cluster.payloads
            ],
            subscriptions=[
                Subscription(topic="orders", expression=text, clients=1) for text in self._cluster.payloads
            ],
        )


class HostileWaiting(FakeWaiting):
    async def halves(self, limit=50) -> Halves:
        (half, *_) = (await super().halves()).items
        return Halves(
            items=[replace(half, message_id=text, group=text) for text in self._cluster.payloads],
            complete=True,
        )

    def fate(self, stored) -> MessageFate:
        """Its producer's group is what a client wrote; topics and groups that lead somewhere were checked."""
        return MessageFate(
            kind="prepared",
            waits=True,
            due_ms=None,
            topic="payments",
            queue_id=3,
            checks=1,
            group=self._cluster.payloads[stored.queue_offset % len(self._cluster.payloads)],
        )


class HostilePops(FakePops):
    def invisible(self, group, after=None, limit=40) -> InvisibleMessages:
        found = super().invisible("billing", after, limit)
        messages = [
            replace(message, topic=text, of_topic=text, client=text, message_id=text)
            for text, message in zip(self._cluster.payloads, found.messages, strict=False)
        ]
        return replace(
            found,
            messages=messages,
            counts=replace(found.counts, complete=False, reason=self._cluster.payloads[0]),
        )


class HostileStore(FakeStore):
    def recovery(self) -> StartReport:
        report = super().recovery()
        findings = [
            StartFinding(severity="notice", file=text, offset=1, what=text) for text in self._cluster.payloads
        ]
        steps = [
            replace(step, file=self._cluster.payloads[n], detail=self._cluster.payloads[-n])
            for n, step in enumerate(report.steps)
        ]
        return replace(report, findings=findings, steps=steps, error=" ".join(self._cluster.payloads))


class HostileIndex(FakeIndex):
    async def explain(self, topic, key, begin_ms=0, end_ms=None, limit=64) -> list[LookupStep]:
        """The payloads in every text of the steps."""
        steps = zip(self._cluster.payloads, await super().explain(topic, key), strict=False)
        return [
            replace(step, **{name: text for name in ("why", "key", "message_id") if hasattr(step, name)})
            for text, step in steps
        ]

    async def chains(self, name) -> Chains:
        told = await super().chains(name)
        longest = [
            replace(chain, keys=[replace(key, topic=text, key=text) for key in chain.keys])
            for text, chain in zip(self._cluster.payloads, told.longest, strict=False)
        ]
        return replace(told, longest=longest, findings=list(self._cluster.payloads))


class HostileAccess(FakeAccess):
    """Users whose names are payloads, rules on topics with such names, and refusals with such texts."""

    def __init__(self, cluster: HostileCluster):
        super().__init__(cluster)
        control = self.control
        assert control is not None
        state = control.state
        for text in filter(may_be_a_name, cluster.payloads):
            state = state.with_user(User(text, "the-secret-of-all"))
            entries = [{"resource": f"Topic:{text}", "actions": ["Pub"], "decision": "Deny"}]
            for name in (text, "billing"):
                state = state.with_policies(name, read_policies([{"entries": entries}]))
        control.replace(state)
        for text in cluster.payloads:
            control.note(Denied(text, text), f"{text}:1")
            control.note(Denied(text, "billing"), f"{text}:1")


def may_be_a_name(text: str) -> bool:
    try:
        check_user(User(text, "a-secret"))
    except ChangeRefused:
        return False
    return True


class HostileCluster(FakeCluster):
    """Message n of any queue carries payload n as body, tag, key and id, and those after it as properties."""

    def __init__(self, payloads: tuple[str, ...] = PAYLOADS, clock=time.time):
        super().__init__(clock)
        self.payloads = payloads
        self.flags = [Flag(name="sync_failed", cause=" ".join(payloads), since_ms=1)]
        self.topics = HostileTopics(self)
        self.groups = HostileGroups(self)
        self.waiting = HostileWaiting(self)
        self.pops = HostilePops(self)
        self.store = HostileStore(self)
        self.index = HostileIndex(self)
        self.access = HostileAccess(self)

    def raw(self, topic, queue_id, queue_offset, log_offset) -> bytes:
        payload = self.payloads[queue_offset % len(self.payloads)]
        following = [self.payloads[(queue_offset + n) % len(self.payloads)] for n in range(AT_ONCE)]
        pairs = {text: text for text in following} | {"TAGS": payload, "KEYS": payload, "UNIQ_KEY": payload}
        message = Message(
            topic,
            queue_id,
            payload.encode(),
            properties.encode(pairs),
            born_timestamp=1,
            born_host=BORN_HOST,
            store_host=STORE_HOST,
        )
        return record.encode(message, queue_offset, log_offset, 2)

    def state(self) -> State:
        return replace(super().state(), sentence=" ".join(self.payloads))
