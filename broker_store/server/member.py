"""This broker as a member of its set, to Apache's controllers.

    id          file brokerIdentity; without it 1012, brokerIdentity-temp, 1013, and then the file
    register    1003, each time that a controller does not know this broker
    look        1004 each syncBrokerMetadataPeriod, and when a controller notifies a change (1008);
                without a living master 1002: elect
    heartbeat   904 each brokerHeartbeatInterval, to every controller
    set         1001 when a slave joins or leaves the sync state set of this master

What a notice says is not used: any client that reaches the broker port could send one. This broker then asks
the controllers that its settings name.

Source: Apache's `ReplicasManager`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from broker_store.config.store import StoreSettings
from broker_store.engine.disk.disk import Disk
from broker_store.errors import BrokerStoreError, DamagedStoreError, FormatError, PeerError
from broker_store.formats import broker_identity
from broker_store.formats.broker_identity import FILE_NAME, TEMPORARY_NAME, BrokerIdentity
from broker_store.protocol import controller_bodies
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.controller_bodies import Assignment
from broker_store.protocol.headers import read_long, write_header
from broker_store.replication.replication import Replication
from broker_store.server.controllers import Controllers

log = logging.getLogger(__name__)

RETRY_S = 1.0
_JOIN_CHECK_S = 0.5
_NOT_THIS_MASTER = (
    ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
    ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
    ResponseCode.CONTROLLER_INVALID_MASTER,
)


class Position(NamedTuple):
    """How far the log is, for an election."""

    epoch: int
    end: int
    confirmed: int


class Member:
    """Loop's thread. `assignment` is what the controller said last; `on_assignment` is called when it has
    changed."""

    def __init__(
        self,
        settings: StoreSettings,
        controllers: Controllers,
        disk: Disk,
        root: Path,
        *,
        cluster: str,
        name: str,
        address: str,
        clock: Callable[[], int],
        position: Callable[[], Position],
        on_assignment: Callable[[], None],
    ):
        """`address` is this broker's for clients. Raises DamagedStoreError for a file of an id that is not
        one of this broker."""
        self._settings, self._controllers = settings, controllers
        self._disk, self._root = disk, root
        self._cluster, self._name, self._address = cluster, name, address
        self._clock, self._position, self._on_assignment = clock, position, on_assignment
        identity = self._read(FILE_NAME)
        self.number = 0 if identity is None else identity.number  # this broker's id, 0 before it has one
        self.assignment: Assignment | None = None
        self.error: str | None = "no controller has answered yet"
        self.replication: Replication | None = None  # of the running broker
        self._is_registered = False
        self._look_now, self._set_now = asyncio.Event(), asyncio.Event()
        self._first = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, limit_s: float) -> None:
        """Begin, and wait at most `limit_s` until the controller has said who the master is."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(run()) for run in (self._run, self._beat, self._keep_set, self._lead)]
        try:
            async with asyncio.timeout(limit_s):
                await self._first.wait()
        except TimeoutError:
            log.warning("this broker has no role yet: %s", self.error)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._controllers.close()

    @property
    def leader(self) -> str | None:
        """The address of the leading controller; None while none is known."""
        return self._controllers.leader

    def look_soon(self) -> None:
        """Ask the controller who the master is, now."""
        self._look_now.set()

    def change_set_soon(self) -> None:
        """Ask the controller for another sync state set, if it should be one."""
        self._set_now.set()

    # Its role

    async def _run(self) -> None:
        while True:
            pause_s = self._settings.sync_broker_metadata_period / 1000
            self._look_now.clear()
            try:
                if not self.number:
                    await self._get_number()
                if not self._is_registered:
                    await self._register()
                await self._look()
                self.error = None
            except (OSError, TimeoutError, BrokerStoreError) as error:
                why = str(error) or type(error).__name__
                if self.error != why:
                    log.warning("the controller gives this broker no role now: %s", why)
                self.error, pause_s = why, min(pause_s, RETRY_S)
            await _either(self._look_now, pause_s)

    async def _get_number(self) -> None:
        """Get an id, and keep it in the file. Raises PeerError and what a request raises, StoreError."""
        identity = self._read(TEMPORARY_NAME)
        if identity is None:
            answer = await self._ask(
                RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, cluster_name=self._cluster, broker_name=self._name
            )
            number = read_long("nextBrokerId", (answer.fields or {}).get("nextBrokerId"))
            identity = BrokerIdentity(self._cluster, self._name, number, f"{self._address};{self._clock()}")
            self._disk.replace_file(self._root / TEMPORARY_NAME, broker_identity.encode(identity))
        answer = await self._controllers.of_leader(
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            cluster_name=self._cluster,
            broker_name=self._name,
            applied_broker_id=identity.number,
            register_check_code=identity.check_code,
        )
        if answer.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
            # Another broker got this id: begin with the next one.
            self._disk.unlink(self._root / TEMPORARY_NAME, missing_ok=True)
        _require(answer)
        kept = identity._replace(check_code="")
        self._disk.replace_file(self._root / FILE_NAME, broker_identity.encode(kept))
        self._disk.unlink(self._root / TEMPORARY_NAME, missing_ok=True)
        self.number = identity.number
        log.info("the controller gave this broker the id %d of %s", self.number, self._name)

    def _read(self, name: str) -> BrokerIdentity | None:
        raw = self._disk.read_file(self._root / name)
        if raw is None:
            return None
        try:
            identity = broker_identity.decode(raw, is_temporary=name == TEMPORARY_NAME)
        except FormatError as error:
            raise DamagedStoreError(
                str(error),
                file=str(self._root / name),
                advice="Put the file back, or remove it for a new id.",
            ) from None
        if (identity.cluster, identity.name) != (self._cluster, self._name):
            raise DamagedStoreError(
                f"is the id of {identity.cluster}/{identity.name}, and this broker is "
                f"{self._cluster}/{self._name}",
                file=str(self._root / name),
                advice="Set brokerClusterName and brokerName as they were, or start with an empty store.",
            )
        return identity

    async def _register(self) -> None:
        answer = await self._ask(
            RequestCode.CONTROLLER_REGISTER_BROKER,
            cluster_name=self._cluster,
            broker_name=self._name,
            broker_id=self.number,
            broker_address=self._address,
            invoke_time=self._clock(),
        )
        self._is_registered = True
        # Before an election: only living brokers are elected.
        await self._beat_all()
        self._take(controller_bodies.read_assignment(answer))

    async def _look(self) -> None:
        answer = await self._controllers.of_leader(
            RequestCode.CONTROLLER_GET_REPLICA_INFO, broker_name=self._name
        )
        if answer.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
            self._is_registered = False
        _require(answer)
        found = controller_bodies.read_assignment(answer)
        if found.master is None:
            found = await self._elect()
        self._take(found)

    async def _elect(self) -> Assignment:
        answer = await self._controllers.of_leader(
            RequestCode.CONTROLLER_ELECT_MASTER,
            cluster_name=self._cluster,
            broker_name=self._name,
            broker_id=self.number,
            designate_elect=False,
            invoke_time=self._clock(),
        )
        if answer.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
            self._is_registered = False
        if answer.code != ResponseCode.CONTROLLER_MASTER_STILL_EXIST:
            _require(answer)
        return controller_bodies.read_assignment(answer)

    def _take(self, found: Assignment) -> None:
        """Take over an assignment that is newer than the known one."""
        known = self.assignment
        if found.master is None:
            return
        if found.epoch < self._position().epoch:
            raise PeerError(
                f"the controller states epoch {found.epoch}, and this log has epoch "
                f"{self._position().epoch}: it is not the controller of this set, or has lost what it knew"
            )
        if known is None or found.epoch > known.epoch:
            log.info(
                "the controller states: master of %s is %d at %s, epoch %d, sync state set %s",
                self._name,
                found.master,
                found.address,
                found.epoch,
                sorted(found.members.members),
            )
        elif found.epoch < known.epoch or found == known:
            return
        self.assignment = found
        self._first.set()
        self._on_assignment()

    # Heartbeats

    async def _beat(self) -> None:
        while True:
            if self.number and self._is_registered:
                await self._beat_all()
            await asyncio.sleep(self._settings.broker_heartbeat_interval / 1000)

    async def _beat_all(self) -> None:
        """Send a heartbeat to each controller; one that does not answer gets the next one."""
        position = self._position()
        fields = write_header(
            RequestCode.BROKER_HEARTBEAT,
            cluster_name=self._cluster,
            broker_addr=self._address,
            broker_name=self._name,
            broker_id=self.number,
            epoch=position.epoch,
            max_offset=position.end,
            confirm_offset=position.confirmed,
            heartbeat_timeout_mills=self._settings.controller_heart_beat_timeout_mills,
            election_priority=self._settings.broker_election_priority,
        )
        limit_s = self._settings.send_heartbeat_timeout_millis / 1000
        await asyncio.gather(
            *(
                self._controllers.request(address, fields, RequestCode.BROKER_HEARTBEAT, timeout_s=limit_s)
                for address in self._controllers.addresses
            ),
            return_exceptions=True,
        )

    async def _lead(self) -> None:
        """Ask from time to time which controller leads."""
        while True:
            await asyncio.sleep(self._settings.sync_controller_metadata_period / 1000)
            try:
                await self._controllers.find_leader()
            except BrokerStoreError as error:
                log.warning("%s", error)

    # The sync state set of a master

    async def _keep_set(self) -> None:
        soon = False
        while True:
            pause_s = self._settings.check_sync_state_set_period / 1000
            await _either(self._set_now, min(pause_s, _JOIN_CHECK_S) if soon else pause_s)
            self._set_now.clear()
            soon = self.replication is not None and self.replication.check_set()
            try:
                await self._change_set()
            except (OSError, TimeoutError, BrokerStoreError) as error:
                log.warning("the sync state set is not changed now: %s", str(error) or type(error).__name__)
                self.look_soon()
                await asyncio.sleep(RETRY_S)

    async def _change_set(self) -> None:
        """Ask the controller for the set that it should know. Without an answer both sets are counted."""
        replication, assignment = self.replication, self.assignment
        if replication is None or assignment is None or replication.in_sync is None:
            return
        wanted = replication.wanted_set()
        if wanted is None:
            return
        replication.ask_for_set(wanted)
        answer = await self._controllers.of_leader(
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            controller_bodies.write_set(wanted, replication.in_sync.given.epoch),
            broker_name=self._name,
            master_broker_id=self.number,
            master_epoch=assignment.epoch,
            invoke_time=self._clock(),
        )
        if answer.code == ResponseCode.SUCCESS:
            replication.take_set(controller_bodies.read_set(answer.body))
            return
        if answer.code not in _NOT_THIS_MASTER:
            replication.set_refused()
        _require(answer)

    async def _ask(self, code: RequestCode, **values: object) -> Command:
        return _require(await self._controllers.of_leader(code, b"", **values))


def _require(answer: Command) -> Command:
    """Return a good answer. Raises PeerError for another one."""
    if answer.code != ResponseCode.SUCCESS:
        raise PeerError(f"the controller answered {answer.code} {answer.remark or '':.200}")
    return answer


async def _either(event: asyncio.Event, limit_s: float) -> None:
    """Wait for an event, at most `limit_s`."""
    try:
        async with asyncio.timeout(limit_s):
            await event.wait()
    except TimeoutError:
        return
