"""Requests of an administrator to name servers and brokers.

    async with Admin("127.0.0.1:9876") as admin:
        await admin.create_topic("Orders", read_queues=8, write_queues=8)
        print(await admin.topic_stats("Orders"))

A question about a topic or group goes to all masters that have it, and the result has all answers. A topic or
group is created on all masters of a cluster, or on one broker. The first broker that refuses ends the call.
Others may have made the change by then; the call can be repeated without harm.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterable, Mapping
from typing import Any, Self

from broker_store.access.signatures import Credentials
from broker_store.client.errors import AnswerError, NoRouteError
from broker_store.client.message import ReceivedMessage, decode_messages
from broker_store.client.session import Session
from broker_store.errors import FieldError, NotFoundError
from broker_store.formats.message_id import decode_offset_id
from broker_store.formats.names import check_group, check_topic, retry_topic
from broker_store.formats.topics import AUTO_CREATE_TOPIC
from broker_store.protocol import fastjson, offset_bodies, route_bodies, table_bodies, topic_bodies
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import write_header
from broker_store.protocol.message_queue import MessageQueue
from broker_store.protocol.offset_bodies import ConsumeOffsets, QueueOffsets
from broker_store.protocol.route_bodies import MASTER_ID, ClusterInfo, TopicRoute
from broker_store.protocol.topic_bodies import TopicConfig

ADMIN_TIMEOUT_S = 10.0
MAX_QUERY_COUNT = 64
LAST_TIMESTAMP = (1 << 63) - 1


class Admin:
    """`timeout` (seconds) bounds each request. With `credentials` each request is signed; with `tls`
    (`tls_context`) each connection has TLS."""

    def __init__(
        self,
        nameservers: str | Iterable[str],
        *,
        timeout: float = ADMIN_TIMEOUT_S,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ):
        self._session = Session(nameservers, timeout=timeout, credentials=credentials, tls=tls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connections. Idempotent."""
        await self._session.close()

    # The cluster

    async def cluster_info(self) -> ClusterInfo:
        """Return all brokers and clusters of the name server."""
        answer = await self._session.ask_nameserver(RequestCode.GET_BROKER_CLUSTER_INFO)
        return route_bodies.decode_cluster_info(answer.body)

    async def broker_runtime_info(self, address: str) -> dict[str, str]:
        """Return the runtime information of a broker, by Apache's names."""
        answer = await self._session.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return table_bodies.decode_table(answer.body)

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return the settings of a broker by Apache's names."""
        answer = await self._session.ask(address, RequestCode.GET_BROKER_CONFIG)
        return table_bodies.decode_properties(answer.body)

    async def ask(
        self, address: str, code: int, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> Command:
        """Send any request to any server and return its answer, for requests that have no method here. Raises
        ClientError."""
        return await self._session.ask(address, code, fields, body)

    # Topics

    async def topics(self) -> list[str]:
        """Return the topics of the name server."""
        answer = await self._session.ask_nameserver(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(topic_bodies.decode_topic_list(answer.body))

    async def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic from the name server, not from memory. Raises NoRouteError."""
        return await self._session.fetch_route(topic)

    async def create_topic(
        self,
        topic: str,
        *,
        read_queues: int = 8,
        write_queues: int = 8,
        perm: int = 6,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        broker_name: str | None = None,
    ) -> None:
        """Create or change a topic on one broker, on a cluster's masters, or on all masters."""
        fields = write_header(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            topic=check_topic(topic),
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=read_queues,
            write_queue_nums=write_queues,
            perm=perm,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=order,
            attributes=",".join(f"+{name}={value}" for name, value in (attributes or {}).items()),
        )
        for address in await self._masters(cluster, broker_name):
            await self._session.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with all its messages on a cluster's masters, or on all, and at the name servers."""
        fields = write_header(RequestCode.DELETE_TOPIC_IN_BROKER, topic=check_topic(topic))
        for address in await self._masters(cluster, None):
            await self._session.ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, fields)
        fields = write_header(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic=topic, cluster_name=cluster)
        for nameserver in self._session.nameservers:
            await self._session.ask(nameserver, RequestCode.DELETE_TOPIC_IN_NAMESRV, fields)
        self._session.routes.pop(topic, None)

    async def topic_configs(self, address: str) -> dict[str, TopicConfig]:
        """Return all topics of one broker."""
        answer = await self._session.ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        return topic_bodies.decode_topic_table(answer.body)[1]

    async def topic_stats(self, topic: str) -> dict[MessageQueue, QueueOffsets]:
        """Return the lowest and highest offset of each queue of a topic."""
        fields = write_header(RequestCode.GET_TOPIC_STATS_INFO, topic=topic)
        stats: dict[MessageQueue, QueueOffsets] = {}
        for address in await self._masters_of(topic):
            answer = await self._session.ask(address, RequestCode.GET_TOPIC_STATS_INFO, fields)
            stats |= offset_bodies.decode_topic_stats(answer.body)
        return dict(sorted(stats.items()))

    async def groups_of_topic(self, topic: str, route: TopicRoute | None = None) -> list[str]:
        """Return the groups that consume or consumed a topic. Its `route` is fetched if it is not given."""
        fields = write_header(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic=topic)
        groups: set[str] = set()
        masters = await self._masters_of(topic) if route is None else _masters_in(route)
        for address in masters:
            answer = await self._session.ask(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, fields)
            groups |= set(_json_object(answer.body).get("groupList", []))
        return sorted(groups)

    # Groups

    async def create_group(
        self, /, group: str, *, cluster: str | None = None, broker_name: str | None = None, **settings: object
    ) -> None:
        """Create or change a subscription group; `settings` by Apache's names, e.g. retryMaxTimes=3."""
        body = fastjson.dumps({"groupName": check_group(group)} | settings)
        for address in await self._masters(cluster, broker_name):
            await self._session.ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)

    async def delete_group(
        self, group: str, *, clean_offsets: bool = True, cluster: str | None = None
    ) -> None:
        """Delete a group, with its offsets unless they are to be kept."""
        fields = write_header(
            RequestCode.DELETE_SUBSCRIPTIONGROUP, group_name=check_group(group), clean_offset=clean_offsets
        )
        for address in await self._masters(cluster, None):
            await self._session.ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)

    async def group_configs(self, address: str) -> dict[str, dict[str, Any]]:
        """Return all subscription groups of one broker, with their settings by Apache's names."""
        answer = await self._session.ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table: dict[str, dict[str, Any]] = _json_object(answer.body).get("subscriptionGroupTable", {})
        return table

    async def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, ConsumeOffsets]:
        """Return how far a group is in each queue."""
        fields = write_header(RequestCode.GET_CONSUME_STATS, consumer_group=group, topic=topic)
        stats: dict[MessageQueue, ConsumeOffsets] = {}
        for address in await self._masters_of_group(group, topic):
            answer = await self._session.ask(address, RequestCode.GET_CONSUME_STATS, fields)
            stats |= offset_bodies.decode_consume_stats(answer.body)
        return dict(sorted(stats.items()))

    async def consumer_connections(self, group: str, address: str) -> dict[str, Any] | None:
        """Return the consumers of a group at one broker in Apache's JSON, None when no consumer is online."""
        fields = write_header(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumer_group=group)
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        accept = (ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE)
        answer = await self._session.ask(address, code, fields, accept=accept)
        return _json_object(answer.body) if answer.code == ResponseCode.SUCCESS else None

    async def reset_offset(
        self,
        group: str,
        topic: str,
        timestamp_ms: int,
        *,
        queue_id: int | None = None,
        offset: int | None = None,
    ) -> dict[MessageQueue, int]:
        """Set a group's place by time (-1: the end), or one queue's to an offset. Returns the new places."""
        fields = write_header(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            group=group,
            topic=topic,
            timestamp=timestamp_ms,
            is_force=True,
            queue_id=queue_id,
            offset=offset,
        )
        places: dict[MessageQueue, int] = {}
        for address in await self._masters_of(topic):
            answer = await self._session.ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
            places |= offset_bodies.decode_offset_table(answer.body)
        return dict(sorted(places.items()))

    # Messages

    async def view_message(self, offset_message_id: str) -> ReceivedMessage:
        """Return the message with an offset message id, from the broker that the id names. Raises
        NotFoundError, FormatError."""
        (host, port), log_offset = decode_offset_id(offset_message_id)
        ip = ipaddress.ip_address(host)
        address = f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"
        fields = write_header(RequestCode.VIEW_MESSAGE_BY_ID, offset=log_offset)
        try:
            answer = await self._session.ask(address, RequestCode.VIEW_MESSAGE_BY_ID, fields)
        except AnswerError as error:
            raise NotFoundError(str(error)) from None
        info = await self.cluster_info()
        names = [name for name, broker in info.brokers.items() if address in broker.addresses.values()]
        return decode_messages(answer.body, names[0] if names else "")[0]

    async def query_messages(
        self,
        topic: str,
        key: str,
        *,
        max_count: int = MAX_QUERY_COUNT,
        begin_ms: int = 0,
        end_ms: int = LAST_TIMESTAMP,
        unique: bool = False,
    ) -> list[ReceivedMessage]:
        """Return the messages of a topic with a key, or, with `unique`, a message id, stored in a span of
        time, oldest first."""
        fields = write_header(
            RequestCode.QUERY_MESSAGE,
            topic=topic,
            key=key,
            max_num=max_count,
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
            unique_key_query=unique or None,
        )
        found: list[ReceivedMessage] = []
        route = await self._session.fetch_route(topic)
        for broker in route.brokers:
            if MASTER_ID in broker.addresses:
                accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
                address = broker.addresses[MASTER_ID]
                answer = await self._session.ask(address, RequestCode.QUERY_MESSAGE, fields, accept=accept)
                if answer.code == ResponseCode.SUCCESS:
                    found += decode_messages(answer.body, broker.broker_name)
        # The index compares hashes, so the broker may return messages with other keys.
        matching = [
            message for message in found if key in (message.keys if not unique else (message.message_id,))
        ]
        return sorted(matching, key=lambda message: message.store_timestamp)

    # Key-value configuration of the name servers

    async def put_config(self, namespace: str, key: str, value: str) -> None:
        """Set a value on every name server: name servers do not copy it from each other."""
        fields = write_header(RequestCode.PUT_KV_CONFIG, namespace=namespace, key=key, value=value)
        for nameserver in self._session.nameservers:
            await self._session.ask(nameserver, RequestCode.PUT_KV_CONFIG, fields)

    async def get_config(self, namespace: str, key: str) -> str | None:
        """Return the value of a key at the name servers, None when there is none. Raises ClientError."""
        fields = write_header(RequestCode.GET_KV_CONFIG, namespace=namespace, key=key)
        accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        answer = await self._session.ask_nameserver(RequestCode.GET_KV_CONFIG, fields, accept=accept)
        return (answer.fields or {}).get("value") if answer.code == ResponseCode.SUCCESS else None

    async def delete_config(self, namespace: str, key: str) -> None:
        """Delete a value on every name server. Raises ClientError."""
        fields = write_header(RequestCode.DELETE_KV_CONFIG, namespace=namespace, key=key)
        for nameserver in self._session.nameservers:
            await self._session.ask(nameserver, RequestCode.DELETE_KV_CONFIG, fields)

    # Which brokers

    async def _masters(self, cluster: str | None, broker_name: str | None) -> list[str]:
        info = await self.cluster_info()
        if cluster is not None and cluster not in info.clusters:
            raise NotFoundError(f"no cluster {cluster}; there are {', '.join(info.clusters) or 'none'}")
        names = info.clusters[cluster] if cluster is not None else info.brokers
        if broker_name is not None:
            names = [name for name in names if name == broker_name]
        addresses = [info.brokers[name].addresses.get(MASTER_ID) for name in names if name in info.brokers]
        found = [address for address in addresses if address is not None]
        if not found:
            raise NotFoundError(f"no master of {broker_name or cluster or 'any broker'} is registered")
        return found

    async def _masters_of(self, topic: str) -> list[str]:
        return _masters_in(await self._session.fetch_route(topic))

    async def _masters_of_group(self, group: str, topic: str | None) -> list[str]:
        try:
            return await self._masters_of(topic or retry_topic(group))
        except NoRouteError:
            return await self._masters(None, None)


def _masters_in(route: TopicRoute) -> list[str]:
    return [broker.addresses[MASTER_ID] for broker in route.brokers if MASTER_ID in broker.addresses]


def _json_object(body: bytes) -> dict[str, Any]:
    value = fastjson.loads(body)
    if not isinstance(value, dict):
        raise FieldError("body", body[:50], "an object")
    return value
