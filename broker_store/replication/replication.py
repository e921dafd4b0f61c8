"""The role of a broker in replication: a master feeds slaves, a slave follows its master.

ASYNC_MASTER   a feeder if haListenPort is set
SYNC_MASTER    a feeder; what enough slaves reported is confirmed
SLAVE          a follower, from `follow` on

In controller mode the role is SYNC_MASTER or SLAVE, as the controller said before the store was opened, and
`membership` has the rest. What a master confirms depends on its sync state set then.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol

from broker_store.config.replication import SLAVE, SYNC_MASTER
from broker_store.config.store import StoreSettings
from broker_store.engine.store_protocol import Store
from broker_store.engine.worker import Worker
from broker_store.formats.epochs import Epoch
from broker_store.protocol.controller_bodies import Assignment, SyncStateSet
from broker_store.replication.epoch_follower import EpochFollower
from broker_store.replication.feeder import Feeder
from broker_store.replication.follower import Follower, MasterAddress, MasterQuestions
from broker_store.replication.links import HaTls
from broker_store.replication.membership import Membership
from broker_store.replication.positions import SlavePosition, held_by, positions_of
from broker_store.replication.sync_state_set import InSync
from broker_store.replication.wires import EpochWire

log = logging.getLogger(__name__)


class MasterTables(Protocol):
    """What takes over a master's tables."""

    error: str | None  # why they are not taken over
    taken_ms: int | None  # when they last were


async def _nothing() -> None:
    pass


class Replication:
    """Loop's thread, but for what a feeder calls."""

    def __init__(
        self,
        settings: StoreSettings,
        store: Store,
        wake: Callable[[Callable[[], None]], None],
        membership: Membership | None = None,
    ):
        """`wake` calls a function on the loop. `membership` is of controller mode."""
        self._settings, self._store, self._wake = settings, store, wake
        self.membership = membership
        self.assignment = membership.assignment if membership is not None else None
        self.in_sync: InSync | None = None  # of a master in controller mode
        self._fixed_needed = settings.in_sync_replicas - 1 if settings.broker_role == SYNC_MASTER else 0
        self._worker: Worker | None = None
        self.feeder: Feeder | None = None
        self.follower: Follower | None = None
        self.port = 0  # of the feeder
        self.tables: MasterTables | None = None  # of a slave
        self.found_master: MasterAddress | None = None  # by the answers of name servers
        self.on_lost_master: Callable[[], None] = lambda: None  # of a slave, after each failed attempt
        self.on_new_epoch: Callable[[], None] = lambda: None  # of a master that was elected again
        self.is_acting = False  # a slave that acts for its master, which is gone (server/acting.py)
        self.on_members_changed: Callable[[], None] = lambda: None  # a name server reports it
        self.on_master_comes: Callable[[], Awaitable[None]] = _nothing  # before it takes over and registers

    @property
    def needed(self) -> int:
        """The number of slaves that must have a message before it is acknowledged."""
        if self.membership is None:
            return self._fixed_needed
        return 0 if self.in_sync is None else len(self.in_sync.counted) - 1

    @property
    def registers(self) -> bool:
        """False while the role of this broker is not known: clients must not find it then."""
        return self.membership is None or self.membership.is_known

    @property
    def is_slave(self) -> bool:
        return self._settings.broker_role == SLAVE

    @property
    def wanted_port(self) -> int | None:
        """The HA port to open; 0 for one above the broker port, None for none."""
        settings = self._settings
        if settings.inspect or self.is_slave:
            return None
        return settings.ha_listen_port or (0 if settings.broker_role == SYNC_MASTER else None)

    # A master

    def feed(self, listening: socket.socket, tls: HaTls | None = None) -> None:
        """Take slaves at this socket; with `tls` also by TLS."""
        wire = None
        if (own := self.membership) is not None and self.assignment is not None:
            wire = EpochWire(own.history, lambda: self._store.confirmed)
            behind_s = self._settings.ha_max_time_slave_not_catchup / 1000
            self.in_sync = InSync(own.number, self.assignment.members, behind_s)
        feeder = self.feeder = Feeder(
            self._settings,
            self._store.disk,
            self._store.log,
            on_report=self._reported,
            wire=wire,
            tls=tls,
        )
        feeder.open(listening)
        self.port = listening.getsockname()[1]
        self._store.confirmation.wake_feeder = feeder.wake
        self._worker = Worker("ha-feeder", feeder.step, 0.1, self._feeder_failed)
        self._worker.start()
        self._take_reports()

    def _reported(self) -> None:
        """Feeder's thread."""
        self._wake(self._take_reports)

    def _take_reports(self) -> None:
        """Confirm what enough slaves have, and refuse sends while too few are in step."""
        if self.in_sync is not None:
            return self._settle(self.in_sync)
        if not self.needed or self.feeder is None:
            return
        slaves = self.feeder.slaves
        self._store.confirmation.copied(held_by(slaves, self.needed))
        in_step = sum(position.is_in_step for position in self.positions())
        if in_step >= self.needed:
            self._store.clear_flag("slaves_missing")
        else:
            self._store.set_flag(
                "slaves_missing",
                f"{in_step} slaves are in step, and inSyncReplicas={self.needed + 1} requires "
                f"{self.needed}: no send is taken",
            )

    # A master in controller mode

    def _settle(self, in_sync: InSync) -> None:
        """Confirm what all of the sync state set have, refuse sends while it is too small, and have the
        controller asked for another set where it should be one."""
        if self.feeder is None or self.membership is None:
            return
        confirmation, written = self._store.confirmation, self._store.log.wrote
        in_sync.note(self.feeder.slaves, self.membership.history.entries[-1].begin)
        if in_sync.counted == {self.membership.number}:
            if confirmation.needs_slaves:
                confirmation.need_no_slaves(written)
                self._store.appender.confirm_at_once()
        else:
            if not confirmation.needs_slaves:
                confirmation.need_slaves(self._settings.slave_timeout)
                self._store.appender.confirm_later()
            held = in_sync.held_by_all(self.feeder.slaves, written)
            if held is not None:
                confirmation.copied(held)
        least = self._settings.min_in_sync_replicas
        if len(in_sync.members) >= least:
            self._store.clear_flag("slaves_missing")
        else:
            self._store.set_flag(
                "slaves_missing",
                f"the sync state set is {sorted(in_sync.members)}, and minInSyncReplicas={least}: no send is "
                f"taken",
            )
        if self.wanted_set() is not None:
            self.membership.on_other_set()

    def check_set(self) -> bool:
        """Check who is in sync, also without a report; return True if it should be checked again soon."""
        if self.in_sync is None:
            return False
        self._settle(self.in_sync)
        return self.in_sync.has_joining

    def wanted_set(self) -> frozenset[int] | None:
        """Return the sync state set that the controller should know; None if it knows it, or for a slave."""
        if self.in_sync is None or self.feeder is None or self.membership is None:
            return None
        return self.in_sync.wanted(
            self.feeder.slaves, self._store.confirmed, self.membership.history.entries[-1].begin
        )

    def ask_for_set(self, members: frozenset[int]) -> None:
        """Note that the controller is asked for a set, before it is."""
        if self.in_sync is not None:
            self.in_sync.ask(members)
            self._settle(self.in_sync)

    def set_refused(self) -> None:
        """Note that the controller has refused the set that it was asked for."""
        if self.in_sync is not None:
            self.in_sync.refused()
            self._settle(self.in_sync)

    def take_set(self, given: SyncStateSet) -> None:
        """Take over the controller's set if it is newer."""
        if self.in_sync is not None and self.in_sync.take(given):
            log.info("the sync state set is %s (epoch %d)", sorted(self.in_sync.members), given.epoch)
            self._settle(self.in_sync)

    def assigned(self, assignment: Assignment) -> None:
        """Take over what the controller says, where the role stays the same: another set, another epoch of
        the same master, another master of a slave."""
        before, self.assignment = self.assignment, assignment
        if self.membership is None:
            return
        if self.in_sync is not None:
            if assignment.epoch > self.membership.history.last:
                self.membership.history.begin(Epoch(assignment.epoch, self._store.log.wrote))
                self.on_new_epoch()
            self.take_set(assignment.members)
        elif isinstance(self.follower, EpochFollower) and (
            before is None or before.address != assignment.address
        ):
            self.follower.connect_again()
            self.on_lost_master()

    def _feeder_failed(self, name: str, error: BaseException) -> None:
        log.error("%s has ended: slaves get nothing any more", name, exc_info=error)

    def takes_slave(self, remote: str) -> bool:
        """Return True if a slave may connect from `ip:port`."""
        return self.feeder is not None and self.feeder.takes(remote.rpartition(":")[0].strip("[]"))

    def positions(self) -> list[SlavePosition]:
        """Return the slaves of this master."""
        if self.feeder is None:
            return []
        found = positions_of(self.feeder.slaves, self._store.log.wrote, self._settings.ha_max_gap_not_in_sync)
        if self.in_sync is None:
            return found
        members = self.in_sync.members
        return [position._replace(is_in_step=position.number in members) for position in found]

    @property
    def serves_reads(self) -> bool:
        """False for a slave that serves no pulls: by its settings, or in controller mode before its log was
        compared with a master's. It may have records that were never confirmed, and are cut then."""
        if not self.is_slave:
            return True
        is_fit = self.membership is None or (
            isinstance(self.follower, EpochFollower) and self.follower.has_fitted
        )
        return self._settings.slave_read_enable and is_fit

    @property
    def advises_reads(self) -> bool:
        """True if a pull may be better served by another broker of this name."""
        return self.follower is not None or bool(self.feeder is not None and self.feeder.slaves)

    @property
    def has_master(self) -> bool:
        """True for a slave that is connected to its master."""
        return self.follower is not None and self.follower.master is not None

    # A slave

    def follow(self, ask: MasterQuestions, tls: ssl.SSLContext | None = None) -> None:
        """Begin to copy the master's log, by TLS if its context is given."""
        assert self._store.copy is not None  # the store of a slave that has started
        if self.membership is not None:
            self.follower = EpochFollower(
                self._settings,
                self._store,
                self._store.copy,
                number=self.membership.number,
                history=self.membership.history,
                find_master=lambda: self.master,
                ask=ask,
                on_cut=self.membership.on_cut,
                on_lost=lambda: self.on_lost_master(),
                tls=tls,
            )
        else:
            self.follower = Follower(
                self._settings,
                self._store,
                self._store.copy,
                find_master=lambda: self.master,
                ask=ask,
                on_lost=lambda: self.on_lost_master(),
                tls=tls,
            )
        self.follower.start()

    def master_found(self, ha_address: str | None, address: str | None) -> None:
        """Take over what a name server answered to a registration; empty without a master."""
        if ha_address and address:
            self.found_master = MasterAddress(ha_address, address)

    @property
    def master(self) -> MasterAddress | None:
        """The master that a slave copies; None if none is known."""
        found, given = self.found_master, self._settings.ha_master_address
        if self.membership is not None:
            # A name server may state the one before until the new one has registered
            current = None if self.assignment is None else self.assignment.address
            return found if found is not None and found.broker == current else None
        if given:
            return MasterAddress(given, found.broker if found else None)
        return found

    async def stop(self) -> None:
        """Close all connections."""
        if self.follower is not None:
            await self.follower.stop()
        if self._worker is not None and self.feeder is not None:
            self._store.confirmation.wake_feeder = lambda: None
            self._worker.stop()
            self._worker = None
            self.feeder.close()
