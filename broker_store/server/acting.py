"""What a slave does while it acts for a master that is gone, and what a master does before it comes again.

    slave    acts ──► what is due, and halves without an end ──► another master (`escapes.py`)
    master   starts ──► its slave sends nothing more (906) ──► offsets, positions of delay levels and of the
             timer of its slave, if these are newer ──► registers

Reads, commits of offsets and locks of queues need nothing more: a slave serves them to each client, and
name servers with supportActingMaster send clients to it. Messages are given to pops when another master has
stored the records (`pop_escapes.py`). What was popped and not acknowledged comes again there.

Source: Apache's `BrokerController.changeSpecialServiceStatus` and `BrokerPreOnlineService`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from broker_store.access.signatures import signed
from broker_store.broker.offsets import RECENT_SAVES
from broker_store.errors import BrokerStoreError, PeerError
from broker_store.formats import timer_check
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import VERSION, Command
from broker_store.protocol.route_bodies import MASTER_ID
from broker_store.server.certificate import context_to_servers
from broker_store.server.channel import Channel, connect_to
from broker_store.server.escapes import Escapes
from broker_store.server.master_link import MasterLink, follow_master
from broker_store.server.members import Members
from broker_store.server.other_brokers import OtherBrokers
from broker_store.server.parts import BrokerParts, inner_credentials
from broker_store.server.reads_at_others import ReadsAtOthers
from broker_store.server.registration import Registration
from broker_store.server.static_topic_cleaning import StaticTopicCleaning

log = logging.getLogger(__name__)

TIMEOUT_S = 3.0
ATTEMPTS = 3
RETRY_S = 1.0
# Between the notice of a master that comes again and its registration
PAUSE_S = 10.0
# After a master has registered, until its slave gives no messages to pops
SLAVE_ENDS_MS = 60_000


class Role:
    """What a broker does as a master or a slave among others of its name. Loop's thread."""

    def __init__(self, parts: BrokerParts, registration: Registration):
        self._parts, self.brokers = parts, OtherBrokers(parts, registration)
        self._reads_at_others = ReadsAtOthers(self.brokers)
        parts.pops_of_others.fetch = self._reads_at_others.fetch
        parts.pops_of_others.on_given_up = self._reads_at_others.given_up
        self._acting = (
            Acting(parts, registration, self.brokers) if parts.settings.enable_slave_acting_master else None
        )
        self._link: MasterLink | None = None  # of a slave
        self._cleaning: asyncio.Task[None] | None = None  # of static topics

    async def prepare(self) -> None:
        """Prepare to be seen: before this broker registers, and delivers what waits."""
        settings = self._parts.settings
        if self._acting is not None and not self._parts.replication.is_slave and not settings.skip_pre_online:
            await self._acting.take_over()

    def start(self) -> None:
        """Begin to copy if this broker is a slave, and to watch who else lives."""
        self._link = follow_master(self._parts)
        if not self._parts.replication.is_slave and not self._parts.store_settings.inspect:
            cleaning = StaticTopicCleaning(self._parts, self.brokers)
            self._cleaning = asyncio.get_running_loop().create_task(cleaning.run())
        if self._acting is not None:
            self._parts.replication.on_members_changed = self._acting.members.refresh
            self._acting.start()

    async def stop(self) -> None:
        if self._acting is not None:
            await self._acting.stop()
        if self._link is not None:
            await self._link.stop()
        if self._cleaning is not None:
            self._cleaning.cancel()
            await asyncio.gather(self._cleaning, return_exceptions=True)
        self._parts.pops_of_others.fetch = None
        self._reads_at_others.stop()
        self.brokers.close()


class Acting:
    """Loop's thread."""

    def __init__(self, parts: BrokerParts, registration: Registration, brokers: OtherBrokers):
        self._parts = parts
        self.members = Members(parts, registration, self._changed)
        self.escapes = Escapes(parts, brokers) if parts.settings.enable_remote_escape else None
        self._pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self.members.start()
        if self._parts.replication.is_slave:
            self._keep_versions(True)
            self._parts.replication.on_master_comes = self.pause
        elif self.escapes is not None:
            self._parts.revive_log.had_slave(self.escapes.pops, self._parts.clock() + SLAVE_ENDS_MS)

    async def stop(self) -> None:
        await self.members.stop()
        if self.escapes is not None:
            await self.escapes.stop()

    def _keep_versions(self, keeps: bool) -> None:
        """Let the tables of a slave have the versions of its master's, until it changes them itself."""
        self._parts.offsets.keeps_version = self._parts.delay.keeps_version = keeps

    def _changed(self, acts: bool) -> None:
        self._keep_versions(not acts)
        if acts:
            # What it changes now is newer than what its master had.
            for table in (self._parts.offsets, self._parts.delay):
                version = table.data_version
                table.data_version = replace(version, counter=version.counter + RECENT_SAVES)
        self._parts.replication.is_acting = acts
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self.escapes is not None:
            self.escapes.set_on(acts)

    async def pause(self) -> None:
        """Send nothing more to other masters: the master comes again, and takes over what was sent. Without
        it in PAUSE_S this slave goes on."""
        if self.escapes is None or not self.members.is_acting:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._pause = asyncio.get_running_loop().call_later(PAUSE_S, self.escapes.set_on, True)
        await self.escapes.set_on(False)

    # Before a master comes again

    async def take_over(self) -> None:
        """Take over what the slave of this master has newer, before clients come: it may have acted."""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(RETRY_S)
            found = await self.members.ask()
            if found is None:
                continue
            others = {number: address for number, address in found.items() if number != MASTER_ID}
            if not others:
                return
            try:
                await self._take_from(others)
            except (OSError, TimeoutError, BrokerStoreError) as error:
                log.warning("offsets of slave %d are not taken over: %s", min(others), error)
            else:
                return
        log.warning("this master registers without what its slaves may have newer: none answered in time")

    async def _take_from(self, slaves: dict[int, str]) -> None:
        parts, lowest = self._parts, min(slaves)
        for number, address in sorted(slaves.items()):
            tls = context_to_servers(parts.settings) if parts.settings.tls_enable else None
            channel = await connect_to(address, TIMEOUT_S, tls=tls)
            try:
                # So a slave of Apache's that has closed its connection copies again
                ours = {
                    "masterHaAddress": parts.ha_address,
                    "masterFlushOffset": str(parts.store.log.minimum),
                    "masterAddress": parts.endpoint.address,
                }
                await self._ask(
                    channel, RequestCode.EXCHANGE_BROKER_HA_INFO, ours if parts.ha_address else {}
                )
                if number == lowest:
                    await self._take_tables(channel, address)
            finally:
                channel.close()

    async def _take_tables(self, channel: Channel, address: str) -> None:
        parts = self._parts
        for code, table in (
            (RequestCode.GET_ALL_CONSUMER_OFFSET, parts.offsets),
            (RequestCode.GET_ALL_DELAY_OFFSET, parts.delay),
        ):
            text = (await self._ask(channel, code, {})).body.decode("utf-8", "replace")
            if table.take_newer(text):
                log.info("%s of the slave at %s are newer, and taken over", code.name, address)
        parts.delay.start()
        parts.transactions.start()
        if parts.timer.enabled:
            answer = await self._ask(channel, RequestCode.GET_TIMER_CHECK_POINT, {}, may_fail=True)
            if answer.code != ResponseCode.SUCCESS:
                log.info("the slave at %s has no timer: %.120s", address, answer.remark or answer.code)
            elif parts.timer.role.take_newer(timer_check.decode(answer.body)):
                log.info("what the slave at %s has delivered of timer messages is left out", address)

    async def _ask(
        self, channel: Channel, code: RequestCode, fields: dict[str, str], *, may_fail: bool = False
    ) -> Command:
        credentials = inner_credentials(self._parts.settings)
        if credentials is not None:
            fields = signed(fields, b"", credentials, VERSION)
        answer = await channel.request(Command.request(int(code), fields), TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS and not may_fail:
            raise PeerError(f"it answered {code.name} with {answer.code} {answer.remark or '':.120}")
        return answer
