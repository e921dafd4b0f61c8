"""The name servers and brokers that a command asks."""

from __future__ import annotations

import ssl
from collections.abc import Container
from typing import Any, Protocol

from broker_store.client import Admin, Credentials, Producer, PullConsumer
from broker_store.client.errors import AnswerError
from broker_store.errors import MisuseError, NotFoundError
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import write_header
from broker_store.protocol.members import loads_object
from broker_store.protocol.route_bodies import MASTER_ID, BrokerData, ClusterInfo


class Targets(Protocol):
    """Options that name a broker or a cluster."""

    def get(self, name: str) -> str | None: ...


class Servers:
    """What a command may ask. The name servers are asked only by commands that need them, so a command with
    the address of a broker works without one."""

    def __init__(
        self,
        admin: Admin,
        nameservers: tuple[str, ...],
        timeout: float,
        credentials: Credentials | None,
        tls: ssl.SSLContext | None,
    ):
        self.admin, self.nameservers = admin, nameservers
        self._timeout, self._credentials, self._tls = timeout, credentials, tls

    def producer(self) -> Producer:
        """Return a producer that sends as this command does; it is started by `async with`."""
        return Producer(self.nameservers, timeout=self._timeout, credentials=self._credentials, tls=self._tls)

    def reader(self, group: str) -> PullConsumer:
        """Return a consumer that reads queues for a group; it is started by `async with`."""
        return PullConsumer(
            group, self.nameservers, timeout=self._timeout, credentials=self._credentials, tls=self._tls
        )

    async def ask(
        self,
        address: str,
        code: RequestCode,
        body: bytes = b"",
        accept: Container[int] = (ResponseCode.SUCCESS,),
        **header: Any,
    ) -> Command:
        """Send a request with the fields of its header, and return the answer. Raises ClientError."""
        fields = write_header(code, **header) if header else None
        try:
            return await self.admin.ask(address, code, fields, body)
        except AnswerError as error:
            if error.code not in accept:
                raise
            return Command(error.code, remark=error.remark)

    async def ask_json(self, address: str, code: RequestCode, **header: Any) -> dict[Any, Any]:
        """Send a request, and return the JSON object of the answer. Raises ClientError, FieldError."""
        return loads_object((await self.ask(address, code, **header)).body)

    async def cluster_info(self) -> ClusterInfo:
        return await self.admin.cluster_info()

    async def clusters(self, wanted: str | None) -> list[str]:
        """Return the names of all clusters, or the wanted one. Raises NotFoundError."""
        return _names_in(await self.cluster_info(), wanted)

    async def brokers_of(self, cluster: str) -> list[BrokerData]:
        """Return the brokers of a cluster, by name. Raises NotFoundError."""
        info = await self.cluster_info()
        (name,) = _names_in(info, cluster)
        return [info.brokers[each] for each in sorted(info.clusters[name]) if each in info.brokers]

    async def masters_of(self, cluster: str) -> list[str]:
        """Return the addresses of the masters of a cluster. Raises NotFoundError."""
        found = [
            broker.addresses[MASTER_ID]
            for broker in await self.brokers_of(cluster)
            if MASTER_ID in broker.addresses
        ]
        if not found:
            raise NotFoundError(f"no master of cluster {cluster} is registered")
        return found

    async def chosen(self, options: Targets) -> list[str]:
        """Return the address of --brokerAddr, or those of the masters of --clusterName. Raises MisuseError,
        NotFoundError."""
        if address := options.get("brokerAddr"):
            return [address.strip()]
        if name := options.get("clusterName"):
            return await self.masters_of(name.strip())
        raise MisuseError("--brokerAddr or --clusterName is needed")

    async def masters_of_topic(self, topic: str) -> list[tuple[str, str]]:
        """Return (name, address) of the masters that have a topic. Raises NoRouteError, ClientError."""
        route = await self.admin.route(topic)
        return [
            (broker.broker_name, broker.addresses[MASTER_ID])
            for broker in route.brokers
            if MASTER_ID in broker.addresses
        ]

    async def address_of(self, topic: str, broker_name: str) -> str:
        """Return the address of a broker of a topic. Raises NotFoundError, NoRouteError."""
        for name, address in await self.masters_of_topic(topic):
            if name == broker_name:
                return address
        raise NotFoundError(f"no master of broker {broker_name} has topic {topic}")


def _names_in(info: ClusterInfo, wanted: str | None) -> list[str]:
    if wanted is None:
        return sorted(info.clusters)
    if wanted not in info.clusters:
        raise NotFoundError(f"no cluster {wanted}; there are {', '.join(info.clusters) or 'none'}")
    return [wanted]
