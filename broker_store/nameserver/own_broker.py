"""The broker of the name server's own process: no other connection may register, unregister or send
heartbeats in its name.

A name server on its own accepts each registration, as Apache's does, since it cannot verify the sender. A
name server in a broker's process does know that broker. Without this check any client that reaches the port
could send that broker's clients to another address, or remove the broker from every route.

Other names are not checked: a second broker, ours or Apache's, registers as usual. A slave of the own broker
is taken only if that broker feeds slaves, and from where slaves may connect: it gets reads of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from broker_store.excerpts import excerpt
from broker_store.nameserver.channel import Channel
from broker_store.nameserver.routes import Registrant, RegistrationRefused


class OwnBrokerClaimed(RegistrationRefused):
    """Another connection used the own broker's name; nothing was changed."""

    cause = "name of another broker"


@dataclass(frozen=True)
class OwnBroker:
    """The identity of this process's broker. `address` is empty until its port is open.

    `is_connection_of(channel)` is True for a connection that this broker itself opened: a broker that got
    this name server's address by namesrvAddr registers over TCP as well. `may_have_slave_at(channel)` is True
    where a slave of this broker may be.
    """

    cluster: str
    name: str
    broker_id: int
    address: str = ""
    is_connection_of: Callable[[Channel], bool] = lambda channel: False
    may_have_slave_at: Callable[[Channel], bool] = lambda channel: False

    def check(self, who: Registrant, channel: Channel | None) -> None:
        """Raise OwnBrokerClaimed if `who` is the own broker and `channel` is another's; None as channel is
        this process."""
        if channel is None or not self._is_claimed_by(who) or self.is_connection_of(channel):
            return
        if self._is_slave(who) and self.may_have_slave_at(channel):
            return
        # Answers are cut at 200 characters, so the advice comes before the case.
        raise OwnBrokerClaimed(
            "set a brokerName, brokerIP1 and listenPort of its own: this name and address are those "
            "of the broker in this name "
            f"server's process; refused: {excerpt(who.broker_name, 20)} id {who.broker_id} at "
            f"{excerpt(who.address, 30)}"
        )

    def check_topic(self, broker_names: Iterable[str], channel: Channel | None) -> None:
        """Raise OwnBrokerClaimed if a route that another connection registers (code 217) has queues of the
        own broker."""
        if channel is not None and self.name in broker_names and not self.is_connection_of(channel):
            raise OwnBrokerClaimed(
                f"change the topic at the broker, it registers its queues itself: "
                f"{excerpt(self.name, 20)} is the broker in this name server's process"
            )

    def _is_slave(self, who: Registrant) -> bool:
        """Return True if `who` states to be a slave of this broker."""
        is_of_it = (who.cluster, who.broker_name) == (self.cluster, self.name)
        return is_of_it and self.broker_id == 0 < who.broker_id and who.address != self.address

    def _is_claimed_by(self, who: Registrant) -> bool:
        if self.address and who.address == self.address:
            return True  # the tables note heartbeats by a broker's address
        if who.broker_name != self.name:
            return False
        # In the tables a name belongs to one cluster: the same name in another cluster would move the own
        # broker there.
        return self.broker_id == 0 or who.broker_id == self.broker_id or who.cluster != self.cluster
