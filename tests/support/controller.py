"""A controller for tests, as Apache's looks to a member: ids, registrations, elections, sync state sets.

It elects when a test says so, and takes a broker for dead when its connection ends.
"""

import asyncio

from broker_store.protocol import controller_bodies
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode as C
from broker_store.protocol.command import Command
from broker_store.server.channel import connect
from broker_store.server.listener import bind_for, listen


class Controller:
    """One broker name. `members` is the sync state set, `master` the id of the master, 0 without one."""

    def __init__(self):
        self.codes = {}  # id -> check code
        self.addresses = {}  # id -> address of the broker
        self.beats = {}  # id -> fields of the last heartbeat
        self.channels = {}
        self.members, self.set_epoch = set(), 0
        self.master, self.epoch = 0, 0
        self.asked = []  # codes, in order
        self.mute = set()  # codes that are not answered
        self.refuses_sets = None  # a response code for 1001
        self.leads = True

    async def __aenter__(self):
        self.listener = await listen(
            self.handle, bind_for("127.0.0.1", 0, "controller"), max_connections=50, on_closed=self._closed
        )
        self.address = f"127.0.0.1:{self.listener.port}"
        return self

    async def __aexit__(self, *_):
        await self.listener.close(1.0)

    def _closed(self, channel):
        for number, known in list(self.channels.items()):
            if known is channel:
                del self.channels[number]
                if number == self.master and self.elects_by_itself:
                    self.elect(next((one for one in self.members if one in self.channels), 0))

    elects_by_itself = True

    def elect(self, number):
        """Make `number` the master of the next epoch, alone in the set, and notify the living brokers."""
        self.master = number
        if number:
            self.epoch += 1
            self.set_epoch += 1
            self.members = {number}
        for address in [self.addresses[one] for one in self.channels if one in self.addresses]:
            asyncio.get_running_loop().create_task(self._notify(address))

    async def _notify(self, address):
        host, _, port = address.rpartition(":")
        try:
            channel = await connect(host, int(port), 1.0)
        except (OSError, TimeoutError):
            return
        fields = {"masterBrokerId": str(self.master), "masterEpoch": str(self.epoch)}
        await channel.request(Command.request(int(R.NOTIFY_BROKER_ROLE_CHANGED), fields), 1.0)
        channel.close()

    def handle(self, command, channel):
        self.asked.append(command.code)
        if command.code in self.mute:
            return None
        fields = command.fields or {}
        if command.code == R.CONTROLLER_GET_METADATA_INFO:
            return command.answer(0, None, {"controllerLeaderAddress": self.address if self.leads else ""})
        if not self.leads:
            return command.answer(C.CONTROLLER_NOT_LEADER, "the controller is not leader")
        number = int(fields.get("brokerId", 0))
        if command.code == R.CONTROLLER_GET_NEXT_BROKER_ID:
            return command.answer(0, None, {"nextBrokerId": str(max(self.codes, default=0) + 1)})
        if command.code == R.CONTROLLER_APPLY_BROKER_ID:
            wanted = int(fields["appliedBrokerId"])
            if self.codes.setdefault(wanted, fields["registerCheckCode"]) != fields["registerCheckCode"]:
                return command.answer(C.CONTROLLER_BROKER_ID_INVALID, "Fail to apply brokerId")
            return command.answer(0)
        if command.code == R.BROKER_HEARTBEAT:
            self.beats[number], self.channels[number] = fields, channel
            return command.answer(0, "Heart beat success")
        if command.code == R.CONTROLLER_REGISTER_BROKER:
            if number not in self.codes:
                return command.answer(C.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "hasn't been registered")
            self.addresses[number] = fields["brokerAddress"]
            return self._answer(command, 0)
        if command.code == R.CONTROLLER_GET_REPLICA_INFO:
            return self._answer(command, 0 if self.codes else C.CONTROLLER_BROKER_METADATA_NOT_EXIST)
        if command.code == R.CONTROLLER_ELECT_MASTER:
            if self.master in self.channels:
                return self._answer(command, C.CONTROLLER_MASTER_STILL_EXIST)
            if self.members and number not in self.members:
                return command.answer(C.CONTROLLER_ELECT_MASTER_FAILED, "no master")
            self.elect(number)
            return self._answer(command, 0)
        assert command.code == R.CONTROLLER_ALTER_SYNC_STATE_SET
        return self._alter(command, fields)

    def _answer(self, command, code):
        body = controller_bodies.write_set(self.members, self.set_epoch)
        if self.master not in self.channels:
            return command.answer(code, None, {"masterEpoch": str(self.epoch)}, body)
        found = {
            "masterBrokerId": str(self.master),
            "masterAddress": self.addresses[self.master],
            "masterEpoch": str(self.epoch),
            "syncStateSetEpoch": str(self.set_epoch),
        }
        return command.answer(code, None, found, body)

    def _alter(self, command, fields):
        given = controller_bodies.read_set(command.body)
        if self.refuses_sets is not None:
            return command.answer(self.refuses_sets, "refused")
        if int(fields["masterBrokerId"]) != self.master:
            return command.answer(C.CONTROLLER_INVALID_MASTER, "not the master")
        if int(fields["masterEpoch"]) != self.epoch:
            return command.answer(C.CONTROLLER_FENCED_MASTER_EPOCH, "old epoch")
        if given.epoch != self.set_epoch:
            return command.answer(C.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, "old set")
        if not given.members <= self.channels.keys():
            return command.answer(C.CONTROLLER_BROKER_NOT_ALIVE, "not alive")
        self.members, self.set_epoch = set(given.members), self.set_epoch + 1
        fields = {"newSyncStateSetEpoch": str(self.set_epoch)}
        return command.answer(0, None, fields, controller_bodies.write_set(self.members, self.set_epoch))
