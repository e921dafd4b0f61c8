"""The sync state set of a master in controller mode: the brokers that have each confirmed message.

    members     as the controller knows the set; it elects the next master among them
    asked       what this master has asked the controller to make of it, and has no answer to
    joining     slaves that follow closely, before the controller is asked to take them in
    counted     all three: what is confirmed must be at all of them, whatever the controller has decided

A slave joins when it has all that is confirmed, and the log up to this master's epoch. Under load a master
alone confirms on and on, and no report reaches that. So a slave that follows closely is counted first: what
is confirmed waits for it, and its next report has it. A slave leaves at once when its connection ends, and
when it has lacked something for haMaxTimeSlaveNotCatchup. Only the controller's answer changes `members`: a
broker that it may elect is never left out before.

Source: Apache's `AutoSwitchHAService`. It acknowledges by default what inSyncReplicas brokers have; here all
of the set must, as with its allAckInSyncStateSet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from broker_store.protocol.controller_bodies import SyncStateSet
from broker_store.replication.feeder import Slave

CLOSE_S = 1.0  # a slave follows closely that had all of the log so long ago
JOIN_S = 2.0  # sends wait at most so long for a slave that joins
JOIN_AGAIN_S = 10.0  # until one that did not join in time is counted again


class InSync:
    """Loop's thread. `note` comes before `counted` and `wanted`."""

    def __init__(
        self,
        number: int,
        given: SyncStateSet,
        max_behind_s: float,
        seconds: Callable[[], float] = time.monotonic,
    ):
        """`number` is this broker's id, `given` what the controller said when it elected it."""
        self._number, self._max_behind_s, self._seconds = number, max_behind_s, seconds
        self._began_s = seconds()
        self._was_there: set[int] = set()  # slaves that have been connected since
        self.given = given
        self._asked: frozenset[int] = frozenset()
        self._joining: dict[int, float] = {}  # since when
        self._late: dict[int, float] = {}  # when one did not join in time

    @property
    def members(self) -> frozenset[int]:
        return self.given.members | {self._number}

    @property
    def counted(self) -> frozenset[int]:
        """The ids that have each confirmed message."""
        return self.members | self._asked | self._joining.keys()

    def take(self, given: SyncStateSet) -> bool:
        """Take over the controller's set; return False if it is not newer than the known one."""
        if given.epoch <= self.given.epoch:
            return False
        self.given, self._asked = given, frozenset()
        return True

    def ask(self, members: frozenset[int]) -> None:
        """Note that the controller is asked for `members`. Until it answers both sets are counted."""
        self._asked |= members

    def refused(self) -> None:
        """Note that the controller has refused what it was asked last."""
        self._asked = frozenset()

    def held_by_all(self, slaves: Iterable[Slave], written: int) -> int | None:
        """Return the log offset up to which all counted brokers have the log; None while one is not
        connected or has not reported."""
        reported = {number: slave.reported for number, slave in _by_number(slaves).items()}
        ends = [reported.get(number) for number in self.counted - {self._number}]
        return None if None in ends else min((end for end in ends if end is not None), default=written)

    @property
    def has_joining(self) -> bool:
        """True while a slave is counted that the controller is not asked about yet."""
        return bool(self._joining)

    def note(self, slaves: Iterable[Slave], epoch_begin: int) -> None:
        """Take note of who is connected, and of who follows closely."""
        now_s = self._seconds()
        connected = _by_number(slaves)
        self._was_there |= connected.keys()
        if now_s - self._began_s > self._max_behind_s:
            self._was_there |= self.members
        for number, since_s in list(self._joining.items()):
            if now_s - since_s > JOIN_S:
                self._late[number] = now_s
            if number in self.members or number not in connected or now_s - since_s > JOIN_S:
                del self._joining[number]
        for number, slave in connected.items():
            is_new = number not in self.members and number not in self._joining and not slave.is_learner
            is_close = slave.caught_up_s is not None and now_s - slave.caught_up_s <= CLOSE_S
            is_late = now_s - self._late.get(number, -JOIN_AGAIN_S) < JOIN_AGAIN_S
            if is_new and is_close and not is_late and (slave.reported or 0) >= epoch_begin:
                self._joining[number] = now_s

    def wanted(self, slaves: Iterable[Slave], confirmed: int, epoch_begin: int) -> frozenset[int] | None:
        """Return the set that the controller should know now; None if it is the known one."""
        now_s = self._seconds()
        connected = _by_number(slaves)
        found = {self._number}
        for number, slave in connected.items():
            if slave.reported is None or slave.is_learner:
                continue
            if number in self.members:
                since_s = max(slave.caught_up_s or 0.0, slave.connected_s)
                if now_s - since_s <= self._max_behind_s:
                    found.add(number)
            elif slave.reported >= max(confirmed, epoch_begin):
                found.add(number)
        # Members that have not connected to this master yet
        found |= self.members - self._was_there
        # A member that has connected and not reported yet stays for as long.
        found |= {
            number
            for number in self.members & connected.keys()
            if connected[number].reported is None
            and now_s - connected[number].connected_s <= self._max_behind_s
        }
        return None if found == self.members else frozenset(found)


def _by_number(slaves: Iterable[Slave]) -> dict[int, Slave]:
    """Return the slaves that have greeted by their id; of two connections of one slave the newer."""
    return {slave.number: slave for slave in slaves if slave.number is not None}
