"""The base of every client: an identity, connections by address, routes by topic, and a heartbeat.

Producer, consumers and Admin each own a session.

- It opens a link to a server when the link is first needed, and again after it ended.
- It asks the name servers one after another until one answers, and uses that one from then on.
- It fetches the routes in use again every 30 s, and after a broker could not be reached.
- It sends a heartbeat to all brokers of those routes every 30 s, and at once to a new broker.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from broker_store.access.signatures import Credentials, signed
from broker_store.client.errors import AnswerError, ClientError, ConnectionLost, NoRouteError
from broker_store.client.link import Link, open_link, split_address
from broker_store.errors import BrokerStoreError, MisuseError
from broker_store.protocol import client_bodies, route_bodies
from broker_store.protocol.client_bodies import Heartbeat
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import VERSION, Command
from broker_store.protocol.headers import write_header
from broker_store.protocol.route_bodies import MASTER_ID, BrokerData, TopicRoute

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 3.0
CONNECT_TIMEOUT_S = 3.0
ROUTE_INTERVAL_S = 30.0
HEARTBEAT_INTERVAL_S = 30.0

# Answers a request of a broker, at once or later; None is no answer.
RequestHandler = Callable[[Command], Command | None | Coroutine[Any, Any, Command | None]]
_Result = TypeVar("_Result")
_numbers = itertools.count(1)


def parse_nameservers(nameservers: str | Iterable[str]) -> tuple[str, ...]:
    """Return the addresses in `host:port;host:port`, or of a sequence. Raises MisuseError."""
    if isinstance(nameservers, str):
        nameservers = nameservers.replace(",", ";").split(";")
    addresses = tuple(address.strip() for address in nameservers if address.strip())
    if not addresses:
        raise MisuseError("no name server is given, expected host:port;host:port")
    for address in addresses:
        try:
            split_address(address)
        except ConnectionLost as error:
            raise MisuseError(f"name server {error}") from None
    return addresses


def make_client_id() -> str:
    """Return an id that is unique among the clients of a cluster: host, process, and a number of the client
    in this process."""
    return f"{local_address()}@{os.getpid()}#{next(_numbers)}{time.time_ns() % 1_000_000_000:09d}"


def local_address() -> str:
    """Return this host's address on its default route; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            address: str = probe.getsockname()[0]
            return address
        except OSError:
            return "127.0.0.1"


class Session:
    """A session with name servers and brokers.

    With `credentials` each request is signed; with `tls` (`tls_context`) each connection has TLS.
    `heartbeat` returns the heartbeat for brokers; None: none is sent. `handlers` answer requests of brokers,
    by code.
    """

    def __init__(
        self,
        nameservers: str | Iterable[str],
        *,
        client_id: str | None = None,
        timeout: float = REQUEST_TIMEOUT_S,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
        heartbeat: Callable[[], Heartbeat] | None = None,
        handlers: Mapping[int, RequestHandler] | None = None,
    ):
        self.nameservers = parse_nameservers(nameservers)
        self.client_id = client_id or make_client_id()
        self.timeout = timeout
        self.credentials = credentials
        self.tls = tls
        self.routes: dict[str, TopicRoute] = {}
        self._heartbeat = heartbeat
        self._handlers = dict(handlers or {})
        self._links: dict[str, Link] = {}
        self._connecting: dict[str, asyncio.Lock] = {}
        self._lookups: dict[str, asyncio.Future[TopicRoute]] = {}
        self._nameserver = 0
        self._beaten: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._started = False
        self._closed = False

    # Life

    def start(self) -> None:
        """Begin to refresh routes and to send heartbeats; needs the running loop."""
        if self._closed:
            raise MisuseError("this client was closed; make a new one")
        if not self._started:
            self._started = True
            self.spawn(self._repeat(self._refresh_routes, ROUTE_INTERVAL_S))
            if self._heartbeat is not None:
                self.spawn(self._repeat(self.beat, HEARTBEAT_INTERVAL_S))

    def spawn(self, coroutine: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        """Start a task, which `close` cancels if it still runs."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _repeat(self, step: Callable[[], Awaitable[None]], interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await step()
            except ClientError as error:
                log.info("%s: %s", self.client_id, error)

    async def unregister(self, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        """Unregister at all brokers that got a heartbeat. A broker that is not reached unregisters the client
        when its connection ends."""
        header = dict(client_id=self.client_id, producer_group=producer_group, consumer_group=consumer_group)
        fields = write_header(RequestCode.UNREGISTER_CLIENT, **header)
        asked = (
            self.ask(address, RequestCode.UNREGISTER_CLIENT, fields, timeout=1.0) for address in self._beaten
        )
        await asyncio.gather(*asked, return_exceptions=True)

    async def close(self) -> None:
        """End tasks and connections. Idempotent."""
        self._closed = True
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        links = list(self._links.values())
        self._links.clear()
        await asyncio.gather(*(link.close() for link in links))

    # Requests

    async def link(self, address: str) -> Link:
        """Return the open connection to a server; open one if there is none. Raises ConnectionLost."""
        link = self._links.get(address)
        if link is not None and not link.closed:
            return link
        async with self._connecting.setdefault(address, asyncio.Lock()):
            link = self._links.get(address)
            if link is None or link.closed:
                if self._closed:
                    raise ConnectionLost("this client was closed")
                link = await open_link(address, self._answer_request, CONNECT_TIMEOUT_S, self.tls)
                self._links[address] = link
                if address in self._beaten:
                    # The server may have restarted since it got the last heartbeat.
                    self._beaten.discard(address)
                    self.spawn(self.beat())
        return link

    async def ask(
        self,
        address: str,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout: float | None = None,
        accept: Container[int] = (ResponseCode.SUCCESS,),
    ) -> Command:
        """Send a request and return the answer, if its code is one of `accept`. Raises ClientError."""
        link = await self.link(address)
        answer = await link.request(self._request(code, fields, body), timeout or self.timeout)
        if answer.code not in accept:
            raise AnswerError(code, answer.code, answer.remark, address)
        return answer

    async def send_oneway(
        self, address: str, code: int, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> None:
        """Send a oneway request. Raises ConnectionLost."""
        link = await self.link(address)
        await link.drained()
        link.write(self._request(code, fields, body, oneway=True))

    def _request(
        self, code: int, fields: dict[str, str] | None, body: bytes, *, oneway: bool = False
    ) -> Command:
        """Return a request, signed if there are credentials."""
        if self.credentials is not None:
            fields = signed(fields, body, self.credentials, VERSION)
        return Command.request(code, fields, body, oneway=oneway)

    async def ask_nameserver(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        *,
        timeout: float | None = None,
        accept: Container[int] = (ResponseCode.SUCCESS,),
    ) -> Command:
        """Send a request to a name server that can be reached, and return the answer. Raises ClientError."""
        failure: ClientError = ConnectionLost("no name server is given")
        for _ in self.nameservers:
            address = self.nameservers[self._nameserver]
            try:
                return await self.ask(address, code, fields, timeout=timeout, accept=accept)
            except AnswerError:
                raise
            except ClientError as error:
                failure = error
                self._nameserver = (self._nameserver + 1) % len(self.nameservers)
        raise failure

    def _answer_request(self, command: Command, link: Link) -> None:
        """Answer a request of a broker."""
        handler = self._handlers.get(command.code)
        if handler is None:
            remark = f" request type {command.code} not supported"
            _write_answer(command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark), command, link)
            return
        try:
            answer = handler(command)
        except BrokerStoreError as error:
            answer = command.answer(ResponseCode.SYSTEM_ERROR, str(error))
        if isinstance(answer, Coroutine):
            self.spawn(self._answer_later(answer, command, link))
        else:
            _write_answer(answer, command, link)

    async def _answer_later(
        self, coroutine: Coroutine[Any, Any, Command | None], command: Command, link: Link
    ) -> None:
        try:
            answer = await coroutine
        except BrokerStoreError as error:
            answer = command.answer(ResponseCode.SYSTEM_ERROR, str(error))
        _write_answer(answer, command, link)

    # Routes

    async def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic, from memory or a name server. Raises NoRouteError, ClientError."""
        known = self.routes.get(topic)
        return known if known is not None else await self.fetch_route(topic)

    async def fetch_route(self, topic: str) -> TopicRoute:
        """Fetch the route of a topic; concurrent callers share one request. Raises NoRouteError,
        ClientError."""
        lookup = self._lookups.get(topic)
        if lookup is None:
            lookup = self._lookups[topic] = self.spawn(self._look_up(topic))
            lookup.add_done_callback(lambda done: self._looked_up(topic, done))
        # If one caller is cancelled, the lookup continues for the others.
        return await asyncio.shield(lookup)

    def _looked_up(self, topic: str, lookup: asyncio.Future[TopicRoute]) -> None:
        self._lookups.pop(topic, None)
        if not lookup.cancelled():
            lookup.exception()  # seen, even when every caller was cancelled

    async def _look_up(self, topic: str) -> TopicRoute:
        fields = write_header(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic, accept_standard_json_only=True)
        accept = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
        answer = await self.ask_nameserver(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, accept=accept)
        if answer.code != ResponseCode.SUCCESS:
            self.routes.pop(topic, None)
            raise NoRouteError(f"no name server knows topic {topic}")
        route = self.routes[topic] = route_bodies.decode_route(answer.body)
        if self._started and self._heartbeat is not None and not set(self.masters()) <= self._beaten:
            self.spawn(self.beat())
        return route

    async def _refresh_routes(self) -> None:
        for topic in list(self.routes):
            try:
                await self.fetch_route(topic)
            except NoRouteError:
                log.info("topic %s has no route any more", topic)

    def masters(self) -> list[str]:
        """Return the addresses of the masters in all routes in use."""
        found: dict[str, None] = {}  # each once, in order
        for route in self.routes.values():
            for broker in route.brokers:
                if MASTER_ID in broker.addresses:
                    found[broker.addresses[MASTER_ID]] = None
        return list(found)

    def broker_address(self, route: TopicRoute, broker_name: str) -> str:
        """Return the address of the master of a broker name, or of its lowest slave. Raises NoRouteError."""
        for broker in route.brokers:
            if broker.broker_name == broker_name and broker.addresses:
                return lowest_address(broker)
        raise NoRouteError(f"no broker {broker_name} is in the route")

    async def be_known(self) -> None:
        """Send a heartbeat now unless every broker in use got one."""
        if not set(self.masters()) <= self._beaten:
            await self.beat()

    async def beat(self) -> None:
        """Send a heartbeat to the brokers in use."""
        if self._heartbeat is None:
            return
        body = client_bodies.encode_heartbeat(self._heartbeat())
        addresses = self.masters()
        self._beaten &= set(addresses)
        await asyncio.gather(*(self._beat_one(address, body) for address in addresses))

    async def _beat_one(self, address: str, body: bytes) -> None:
        try:
            await self.ask(address, RequestCode.HEART_BEAT, None, body)
            self._beaten.add(address)
        except ClientError as error:
            log.info("heartbeat of %s: %s", self.client_id, error)


def _write_answer(answer: Command | None, request: Command, link: Link) -> None:
    if answer is not None and not request.is_oneway and not link.closed:
        link.write(answer)


def lowest_address(broker: BrokerData) -> str:
    return broker.addresses[min(broker.addresses)]
