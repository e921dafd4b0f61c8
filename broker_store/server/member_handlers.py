"""Requests of name servers and masters about who of this name lives: 905, 906 (docs/spec/remoting.md).

Source: Apache's `AdminBrokerProcessor.notifyMinBrokerIdChange`, `updateBrokerHaInfo`.
"""

from __future__ import annotations

import logging

from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_header
from broker_store.server.channel import Channel
from broker_store.server.handler import Handlers, Refusal
from broker_store.server.parts import BrokerParts

log = logging.getLogger(__name__)


class MemberHandlers:
    """The handlers. Only a broker with enableSlaveActingMaster acts on them."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts

    def handlers(self) -> Handlers:
        return {
            RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: self.changed,
            RequestCode.EXCHANGE_BROKER_HA_INFO: self.exchange,
        }

    def changed(self, command: Command, channel: Channel) -> Command:
        """Request from the name servers who lives. What the request states is not used: any client may send
        it."""
        read_header(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, command.fields)
        self._parts.replication.on_members_changed()
        return command.answer()

    async def exchange(self, command: Command, channel: Channel) -> Command:
        """Take the addresses of a master that comes again, or answer those of this one. An acting slave
        answers when it sends nothing more to other masters."""
        header = read_header(RequestCode.EXCHANGE_BROKER_HA_INFO, command.fields)
        parts = self._parts
        if header.master_ha_address is None:
            if parts.replication.is_slave or not parts.ha_address:
                return command.answer(0, None, {})
            fields = {
                "masterHaAddress": parts.ha_address,
                "masterFlushOffset": str(parts.store.log.minimum),
                "masterAddress": parts.endpoint.address,
            }
            return command.answer(0, None, fields)
        if parts.replication.is_slave and parts.settings.enable_slave_acting_master:
            stated = header.master_ha_address.rpartition(":")[0].strip("[]")
            if stated != channel.remote.rpartition(":")[0].strip("[]"):
                raise Refusal(
                    ResponseCode.NO_PERMISSION,
                    f"the master at {header.master_ha_address:.60} must send this itself; a slave copies "
                    f"from the address that sends it, or that a name server states",
                    "address of another master",
                )
            parts.replication.master_found(header.master_ha_address, header.master_address)
            await parts.replication.on_master_comes()
        return command.answer(0, None, {})
