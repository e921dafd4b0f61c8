"""Requests in controller mode: the epochs of the log, and the notice that the master has changed."""

from __future__ import annotations

from broker_store.protocol import controller_bodies
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.server.channel import Channel
from broker_store.server.handler import Handlers
from broker_store.server.parts import BrokerParts

NOT_THERE = "this request only for controllerMode "  # Apache's text


class ControllerAdmin:
    """The handlers of a member of a set whose master a controller elects."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts

    def handlers(self) -> Handlers:
        return {R.GET_BROKER_EPOCH_CACHE: self.epochs, R.NOTIFY_BROKER_ROLE_CHANGED: self.role_changed}

    def epochs(self, command: Command, channel: Channel) -> Command:
        """Return the epochs of this broker's log."""
        parts, membership = self._parts, self._parts.replication.membership
        if membership is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, NOT_THERE)
        body = controller_bodies.write_epochs(
            parts.cluster,
            parts.broker_name,
            parts.settings.broker_id,
            membership.history.entries,
            parts.store.log.wrote,
        )
        return command.answer(0, None, None, body)

    def role_changed(self, command: Command, channel: Channel) -> Command:
        """Ask the controllers of the settings who the master is. What the notice says is not used: any client
        that reaches the port could send one."""
        if (membership := self._parts.replication.membership) is not None:
            membership.on_notice()
        return command.answer()
