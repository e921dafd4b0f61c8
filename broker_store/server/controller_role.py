"""The role that a controller gives this broker, over several runs of its store.

    open store ──► begin: id, register, who is the master? ──► role ──► serve
                                                                ▲         │ another role, or a cut
                                                                └─────────┘ of the log: `again`

    again      the ports close, the store is closed, cut if it has to be, and opened with the new role

A change of the role is a start: what only a master does (delayed and timed messages, transactions, pops) is
begun by the same steps as in a new process, and the log is recovered as after a stop in order. The connection
to the controllers stays open meanwhile. What this broker has not confirmed as a master is not acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from broker_store.config.broker import BrokerSettings
from broker_store.config.live import give_role
from broker_store.config.replication import SLAVE, SYNC_MASTER
from broker_store.config.store import StoreSettings
from broker_store.engine.start.log_cut import note_cut
from broker_store.engine.store_protocol import Store
from broker_store.errors import BrokerStoreError
from broker_store.formats.epochs import Epoch
from broker_store.replication.epochs import EpochHistory
from broker_store.replication.membership import Membership
from broker_store.replication.replication import Replication
from broker_store.server.certificate import context_to_servers
from broker_store.server.controllers import Controllers
from broker_store.server.member import Member, Position
from broker_store.server.parts import inner_credentials

log = logging.getLogger(__name__)

Again = Callable[[Callable[[], None]], Awaitable[None]]
FIRST_ROLE_S = 10.0  # how long a start waits for the controller's first answer
RETRY_S = 5.0


class ControllerRole:
    """Loop's thread."""

    def __init__(
        self, settings: StoreSettings, broker: BrokerSettings, clock: Callable[[], int], again: Again
    ):
        """`again(prepare)` ends serving, closes the store, calls `prepare` in a thread, and opens the store
        and serves again."""
        self._settings, self._broker, self._clock, self._again = settings, broker, clock, again
        self.member: Member | None = None  # from `begin` on
        self.history: EpochHistory | None = None
        self._store: Store | None = None  # the one that is open
        self._served: tuple[str, int] | None = None  # role and id of the running broker
        self._replication: Replication | None = None
        self._cut: int | None = None  # where the log has to be cut
        self._wake = asyncio.Event()
        self._is_stopped = False
        self._task: asyncio.Task[None] | None = None
        give_role(settings, broker, SLAVE, 1)

    async def begin(self, store: Store) -> None:
        """Ask the controllers for a role, after the store was opened for the first time. Raises StoreError
        for files that cannot be read."""
        settings, broker = self._settings, self._broker
        self._store = store
        self.history = EpochHistory(store.disk, store.root)
        self.member = Member(
            settings,
            Controllers(
                settings.controllers,
                inner_credentials(broker),
                context_to_servers(broker) if broker.tls_enable else None,
            ),
            store.disk,
            store.root,
            cluster=broker.broker_cluster_name,
            name=broker.broker_name,
            address=f"{broker.broker_ip1}:{broker.listen_port}",
            clock=self._clock,
            position=self._position,
            on_assignment=self._wake.set,
        )
        await self.member.start(FIRST_ROLE_S)

    def give(self, store: Store) -> Membership:
        """Give the opened store, which is not started, its role. Raises StoreError."""
        assert self.member is not None and self.history is not None  # it has begun
        self._store, member, history = store, self.member, self.history
        role, number = self._role()
        self._served = role, number
        give_role(self._settings, self._broker, role, 0 if role == SYNC_MASTER else max(number, 1))
        history.drop_before(store.log.minimum)
        if role == SYNC_MASTER and member.assignment is not None:
            begin = store.log.wrote if history.entries else store.log.minimum
            if member.assignment.epoch > history.last:
                history.begin(Epoch(member.assignment.epoch, begin))
        return Membership(
            number, history, member.assignment, self._cut_at, member.change_set_soon, member.look_soon, member
        )

    def serves(self, replication: Replication) -> None:
        """Take note that the broker serves with the role that was given."""
        assert self.member is not None  # it has begun
        self._replication = self.member.replication = replication
        self._wake.set()  # the controller may have said something else meanwhile
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End, after a change of the role that is under way."""
        self._is_stopped = True
        self._wake.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        if self.member is not None:
            await self.member.stop()

    def _role(self) -> tuple[str, int]:
        """Return the role that this broker has to have, and its id, 0 if it has no role yet."""
        assert self.member is not None  # it has begun
        number, assignment = self.member.number, self.member.assignment
        if assignment is None:
            return SLAVE, 0
        return (SYNC_MASTER if assignment.master == number else SLAVE), number

    def _position(self) -> Position:
        assert self._store is not None and self.history is not None  # it has begun
        return Position(self.history.last, self._store.log.wrote, self._store.confirmed)

    def _cut_at(self, log_offset: int) -> None:
        self._cut = log_offset
        self._wake.set()

    def _prepare(self) -> None:
        """Before the store is opened again: note the cut, the epochs first. A crash in between leaves a log
        that the next connection to the master cuts."""
        if self._cut is not None and self._store is not None and self.history is not None:
            self.history.cut(self._cut)
            note_cut(self._store.disk, self._store.root, self._cut)
            self._cut = None

    async def _run(self) -> None:
        limit_s: float | None = None
        while True:
            try:
                async with asyncio.timeout(limit_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            if self._is_stopped:
                return
            limit_s = None
            try:
                await self._follow()
            except (BrokerStoreError, OSError) as error:
                log.error("this broker does not serve in its role, and tries again: %s", error)
                self._served, limit_s = None, RETRY_S

    async def _follow(self) -> None:
        """Do what the controller said last. Raises StoreError, OSError."""
        replication, member = self._replication, self.member
        if member is None or member.assignment is None:
            return
        if self._cut is None and self._role() == self._served and replication is not None:
            replication.assigned(member.assignment)
            return
        role, _ = self._role()
        what = "master" if role == SYNC_MASTER else f"slave of {member.assignment.address}"
        log.info("this broker becomes %s, epoch %d", what, member.assignment.epoch)
        if role == SLAVE and self._store is not None and replication is not None:
            self._store.set_flag("slave", "the controller has elected another master")
        self._replication = member.replication = None
        await self._again(self._prepare)
