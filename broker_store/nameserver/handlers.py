"""The name server's answer to each request (docs/spec/namesrv.md sections 2 to 6).

The shell that owns the sockets calls `handle` for each request, `channel_closed` for each connection that
ended, and `scan` every 10 s. A broker in the same process calls `handle` too, with None for the channel.

Work over all topics is a generator of steps (`routes.Steps`), so that a broker in the same process can handle
sends meanwhile. A shell with an event loop sets `take_steps`, which takes some steps in each turn of the loop
and answers later. A request without a channel is answered at once. One such work runs at a time, and
registrations and removals that arrive meanwhile are handled after it. So an older registration never
overwrites a newer one.

Only the key-value table outlives the process. `persist` is called with its whole content after each change,
before the answer. When it raises, the change is undone and the answer is an error. Apache's file has the same
layout and is read as it is.

`refuse(cause, value=, limit=, who=, said=)` is called for each refusal; a broker in the same process counts
them with its own.

UPDATE_NAMESRV_CONFIG changes only settings of a list: in Apache's name server it allowed writing files
anywhere (CVE-2023-37582).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any

from broker_store.errors import ConfigError, FieldError, PeerError
from broker_store.nameserver.channel import Channel
from broker_store.nameserver.own_broker import OwnBroker
from broker_store.nameserver.routes import UNIT, UNIT_SUB, LiveBroker, LowestIdChange, Registrant, Routes
from broker_store.protocol import fastjson, registration_body, route_bodies, table_bodies, topic_bodies
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_header
from broker_store.protocol.steps import finish

log = logging.getLogger(__name__)

# Settings by key: the value before and after
Changed = Mapping[str, tuple[object, object]]

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

# Clients from this version on (4.9.4) read strict JSON; older ones get fastjson's form.
_STRICT_JSON_VERSION = 401
# Of every request except a registration, which is read in pieces. The largest is the route of one topic,
# some 200 bytes for each broker.
_MAX_BODY_BYTES = 256 << 10
_MAX_KV_ENTRIES = 10_000
_MAX_KV_CHARACTERS = 4_096
# What may change the tables. A name server authenticates no request.
CHANGES = frozenset(
    {
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.QUERY_DATA_VERSION,  # it counts as a heartbeat
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
    }
)
# Answers for something that does not exist; they are not counted as refusals.
_NOTHING_THERE = frozenset({ResponseCode.TOPIC_NOT_EXIST, ResponseCode.QUERY_NOT_FOUND})


def _host_of(address: str) -> str:
    """Return the host of `ip:port` or `[ip]:port`."""
    return address.rpartition(":")[0].strip("[]").partition("%")[0]


def _log_failure(_result: object, error: Exception | None) -> None:
    if error is not None:
        log.error("brokers that went could not be removed", exc_info=error)


class NameServer:
    """The tables, and a handler for each request code.

    `clock` returns milliseconds. `kv_config` has the key-value tables of the last run (`kv_file.py`);
    `persist(content)` writes them. `config()` is what GET_NAMESRV_CONFIG shows. `change_config(given)`
    changes settings and returns them, or raises ConfigError; None changes none. The five switches are
    Apache's returnOrderTopicConfigToBroker, deleteTopicWithBrokerRegistration, orderMessageEnable,
    supportActingMaster and notifyMinBrokerIdChanged.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        *,
        kv_config: dict[str, dict[str, str]] | None = None,
        persist: Callable[[bytes], None] | None = None,
        config: Callable[[], Mapping[str, object]] = dict,
        change_config: Callable[[Mapping[str, str]], Changed] | None = None,
        return_order_topic_config: bool = True,
        delete_topics_with_registration: bool = False,
        order_topics_in_routes: bool = False,
        acting_masters: bool = False,
        notifies_lowest_id: bool = False,
    ):
        self.routes = Routes(delete_topics_with_registration, acting_masters)
        self.routes.on_lowest_id_changed = self._lowest_id_changed
        self.notifies_lowest_id = notifies_lowest_id
        # Sends NOTIFY_MIN_BROKER_ID_CHANGE to brokers
        self.notify: Callable[[LowestIdChange], None] = lambda change: None
        self.has_order_topics_in_routes = order_topics_in_routes
        self.returns_order_topic_config = return_order_topic_config
        self._clock = clock
        self._persist = persist
        self._config, self._change_config = config, change_config
        self._changed: Changed = {}  # by the request that is handled now
        self._opened: dict[str, object] = {}  # settings whose value is known when the port is open
        self._kv = kv_config or {}
        self.refuse: Callable[..., None] = lambda cause, **case: None
        # Called with each request, its channel, its answer and the state before, to record changes.
        self.answered: Callable[[Command, Channel | None, Command, dict], None] = (
            lambda command, channel, answer, before: None
        )
        # The networks whose requests may change the tables, beside this machine; None: all networks.
        self.changers: Sequence[IPv4Network | IPv6Network] | None = None
        # The broker in whose process this name server runs; None for a name server alone.
        self.own: OwnBroker | None = None
        # (steps, function for their result or their error), for a channel whose answer may be sent later.
        self.take_steps: Callable[[Generator, Callable[[Any, Exception | None], None]], None] | None = None
        self._handlers: dict[int, Callable[[Command, Channel | None], Any]] = {
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._list_kv,
            RequestCode.REGISTER_BROKER: self._register_broker,
            RequestCode.UNREGISTER_BROKER: self._unregister_broker,
            RequestCode.BROKER_HEARTBEAT: self._broker_heartbeat,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._member_group,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_perm,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._all_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._cluster_topics,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._unit_sub_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._unit_sub_ununit_topics,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
        }

    def handle(self, command: Command, channel: Channel | None = None) -> Command | None:
        """Handle a request; return the answer, None for a oneway request."""
        handler = self._handlers.get(command.code)
        who = "" if channel is None else channel.remote
        before = self._before(command)
        if command.code in CHANGES and channel is not None and not self._may_change(channel):
            remark = (
                "this address may not change the name server: nameServerChangeAddresses names those that may"
            )
            self.refuse("address may not change", who=who, said=f"request {command.code}")
            answer = command.answer(ResponseCode.NO_PERMISSION, remark)
        elif handler is None:
            remark = f" request type {command.code} not supported"
            self.refuse("unknown code", value=command.code, who=who, said=remark)
            answer = command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        else:
            try:
                if len(command.body) > _MAX_BODY_BYTES and command.code != RequestCode.REGISTER_BROKER:
                    raise FieldError(
                        "body",
                        len(command.body),
                        f"at most {_MAX_BODY_BYTES} bytes for request {command.code}",
                    )
                is_in_pieces = (
                    command.code == RequestCode.REGISTER_BROKER
                    and len(command.body) > registration_body.MAX_BODY_BYTES_PER_CALL
                )
                if not is_in_pieces and (too_many := fastjson.too_many(command.body)):
                    raise FieldError("body", len(command.body), too_many)
                answer = handler(command, channel)
                if isinstance(answer, Generator):
                    if channel is not None and self.take_steps is not None:
                        self.take_steps(
                            answer,
                            lambda answer, error: self._late_answer(command, channel, before, answer, error),
                        )
                        return None
                    answer = finish(answer)
            except PeerError as error:
                answer = self._failure(command, who, error)
            else:
                self._count(answer, who)
        if self._changed:
            before, self._changed = {"settings": self._changed}, {}
        self.answered(command, channel, answer, before)
        return None if command.is_oneway else answer

    def _may_change(self, channel: Channel) -> bool:
        if self.changers is None:
            return True
        host, own = _host_of(channel.remote), _host_of(channel.local)
        address = ip_address(host)
        return address.is_loopback or host == own or any(address in network for network in self.changers)

    def listens_on(self, port: int) -> None:
        """Set the port that GET_NAMESRV_CONFIG shows to the one that was opened."""
        self._opened["listenPort"] = port

    def _late_answer(
        self,
        command: Command,
        channel: Channel,
        before: dict,
        answer: Command | None,
        error: Exception | None,
    ) -> None:
        if answer is not None:
            self._count(answer, channel.remote)
        elif isinstance(error, PeerError):
            answer = self._failure(command, channel.remote, error)
        else:
            log.error("request %d failed", command.code, exc_info=error)
            answer = command.answer(
                ResponseCode.SYSTEM_ERROR, f"error inside the name server: {type(error).__name__}"
            )
        self.answered(command, channel, answer, before)
        if not command.is_oneway:
            channel.write(answer)

    def _before(self, command: Command) -> dict:
        """Return {"before": ...} for a request that changes a key's value or removes a broker.

        It is the value, or the address of the broker; None if there is none.
        """
        fields = command.fields or {}
        if command.code in (RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG):
            return {"before": self._kv.get(fields.get("namespace", ""), {}).get(fields.get("key", ""))}
        if command.code == RequestCode.UNREGISTER_BROKER:
            address = fields.get("brokerAddr", "")
            broker = self.routes.brokers.get(fields.get("brokerName", ""))
            is_there = (fields.get("clusterName", ""), address) in self.routes.live or (
                broker is not None and address in broker.addresses.values()
            )
            return {"before": address if is_there else None}
        return {}

    def _count(self, answer: Command, who: str) -> None:
        if answer.code and answer.code not in _NOTHING_THERE:
            self.refuse(
                ResponseCode(answer.code).name.lower().replace("_", " "), who=who, said=answer.remark or ""
            )

    def _failure(self, command: Command, who: str, error: PeerError) -> Command:
        self.refuse(error.cause, who=who, said=str(error))
        return command.answer(ResponseCode.SYSTEM_ERROR, str(error))

    def channel_closed(self, channel: Channel) -> None:
        """Remove a broker at once when its connection ends."""
        self._remove(self.routes.of_channel(channel))

    def scan(self, now_ms: int) -> None:
        """Remove the brokers that were silent for too long, and close their channels."""
        silent = self.routes.silent(now_ms)
        self._remove(silent)
        for live in silent:
            if live.channel is not None:
                live.channel.close()

    def _lowest_id_changed(self, change: LowestIdChange) -> None:
        if self.notifies_lowest_id:
            self.notify(change)

    def _remove(self, gone: list[LiveBroker]) -> None:
        if not gone:
            return
        if self.take_steps is None:
            finish(self.routes.remove_in_steps(gone))
        else:
            self.take_steps(self.routes.remove_in_steps(gone), _log_failure)

    # Brokers

    def _register_broker(self, command: Command, channel: Channel | None) -> Generator[Any, Any, Command]:
        header = read_header(command.code, command.fields)
        if header.body_crc32 and header.body_crc32 != registration_body.body_crc(command.body):
            return command.answer(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        compressed = bool(header.compressed)
        registration = yield from registration_body.registration_in_steps(
            command.body, compressed, command.version
        )
        who = Registrant(
            header.cluster_name,
            header.broker_name,
            header.broker_id,
            header.broker_addr,
            header.ha_server_addr or "",
            header.heartbeat_timeout_millis,
            header.enable_acting_master,
            header.zone_name,
        )
        self._check_own(who, channel)
        try:
            answer = yield from self.routes.register_in_steps(who, registration, channel, self._clock())
        except PeerError:
            yield from _empty(registration.topics)
            raise
        yield from _empty(registration.topics)
        fields = {"haServerAddr": answer.ha_address, "masterAddr": answer.master_address}
        order = self._kv.get(ORDER_TOPIC_CONFIG) if self.returns_order_topic_config else None
        body = table_bodies.encode_table(order) if order else b""
        return command.answer(
            0, None, {name: value for name, value in fields.items() if value is not None}, body
        )

    def _check_own(self, who: Registrant, channel: Channel | None) -> None:
        if self.own is not None:
            self.own.check(who, channel)

    def _unregister_broker(self, command: Command, channel: Channel | None) -> Generator[Any, Any, Command]:
        header = read_header(command.code, command.fields)
        self._check_own(_named_in(header), channel)
        yield from self.routes.unregister_in_steps(
            header.cluster_name, header.broker_addr, header.broker_name, header.broker_id
        )
        return command.answer()

    def _broker_heartbeat(self, command: Command, channel: Channel | None) -> Command:
        header = read_header(command.code, command.fields)
        self._check_own(_named_in(header), channel)
        self.routes.heard(header.cluster_name, header.broker_addr, self._clock())
        return command.answer()

    def _query_data_version(self, command: Command, channel: Channel | None) -> Command:
        header = read_header(command.code, command.fields)
        self._check_own(_named_in(header), channel)
        asked = topic_bodies.decode_data_version(command.body)
        self.routes.heard(header.cluster_name, header.broker_addr, self._clock())
        known = self.routes.data_version(header.cluster_name, header.broker_addr)
        fields = {"changed": "false" if known == asked else "true"}
        return command.answer(0, None, fields, topic_bodies.encode_data_version(known) if known else b"")

    def _member_group(self, command: Command, _channel: Channel | None) -> Command:
        header = read_header(command.code, command.fields)
        broker = self.routes.brokers.get(header.broker_name)
        if broker is None or broker.cluster != header.cluster_name:
            broker = route_bodies.BrokerData(header.cluster_name, header.broker_name, {})
        return command.answer(body=route_bodies.encode_member_group(broker))

    # Routes

    def _route(self, command: Command, _channel: Channel | None) -> Command:
        header = read_header(command.code, command.fields)
        route = self.routes.route(header.topic, header.zone_name if header.zone_mode else None)
        if route is None:
            remark = f"No topic route info in name server for the topic: {header.topic:.255}{FAQ}"
            return command.answer(ResponseCode.TOPIC_NOT_EXIST, remark)
        if self.has_order_topics_in_routes:
            route = replace(route, order_conf=self._kv.get(ORDER_TOPIC_CONFIG, {}).get(header.topic))
        strict = command.version >= _STRICT_JSON_VERSION or bool(header.accept_standard_json_only)
        return command.answer(body=route_bodies.encode_route(route, strict))

    def _cluster_info(self, command: Command, _channel: Channel | None) -> Command:
        return command.answer(body=route_bodies.encode_cluster_info(self.routes.cluster_info()))

    def _wipe_write_perm(self, command: Command, _channel: Channel | None) -> Generator[Any, Any, Command]:
        count = yield from self.routes.wipe_write_perm(read_header(command.code, command.fields).broker_name)
        return command.answer(0, None, {"wipeTopicCount": str(count)})

    def _add_write_perm(self, command: Command, _channel: Channel | None) -> Generator[Any, Any, Command]:
        count = yield from self.routes.add_write_perm(read_header(command.code, command.fields).broker_name)
        return command.answer(0, None, {"addTopicCount": str(count)})

    # Topics

    def _all_topics(self, command: Command, _channel: Channel | None) -> Generator[Any, Any, Command]:
        return command.answer(body=(yield from topic_bodies.topic_list_in_steps(self.routes.topics)))

    def _delete_topic(self, command: Command, _channel: Channel | None) -> Command:
        header = read_header(command.code, command.fields)
        self.routes.delete_topic(header.topic, header.cluster_name or None)
        return command.answer()

    def _register_topic(self, command: Command, channel: Channel | None) -> Command:
        header = read_header(command.code, command.fields)
        queues = route_bodies.decode_route(command.body).queues
        if self.own is not None:
            self.own.check_topic((queue.broker_name for queue in queues), channel)
        self.routes.register_topic(header.topic, queues)
        return command.answer()

    def _cluster_topics(self, command: Command, _channel: Channel | None) -> Generator[Any, Any, Command]:
        topics = yield from self.routes.topics_of_cluster(read_header(command.code, command.fields).cluster)
        return command.answer(body=(yield from topic_bodies.topic_list_in_steps(topics)))

    def _system_topics(self, command: Command, _channel: Channel | None) -> Command:
        names, address = self.routes.system_names()
        return command.answer(body=topic_bodies.encode_topic_list(names, address))

    def _unit_topics(self, command: Command, _channel: Channel | None) -> Generator[Any, Any, Command]:
        topics = yield from self.routes.topics_by_flag(UNIT)
        return command.answer(body=(yield from topic_bodies.topic_list_in_steps(topics)))

    def _unit_sub_topics(self, command: Command, _channel: Channel | None) -> Generator[Any, Any, Command]:
        topics = yield from self.routes.topics_by_flag(UNIT_SUB)
        return command.answer(body=(yield from topic_bodies.topic_list_in_steps(topics)))

    def _unit_sub_ununit_topics(
        self, command: Command, _channel: Channel | None
    ) -> Generator[Any, Any, Command]:
        topics = yield from self.routes.topics_by_flag(UNIT_SUB, UNIT)
        return command.answer(body=(yield from topic_bodies.topic_list_in_steps(topics)))

    # The key-value table

    def _put_kv(self, command: Command, _channel: Channel | None) -> Command:
        header = read_header(command.code, command.fields)
        for name, text in zip(("namespace", "key", "value"), header, strict=True):
            if len(text) > _MAX_KV_CHARACTERS:
                raise FieldError(name, text, f"at most {_MAX_KV_CHARACTERS} characters")
        changed = {namespace: dict(table) for namespace, table in self._kv.items()}
        changed.setdefault(header.namespace, {})[header.key] = header.value
        if sum(map(len, changed.values())) > _MAX_KV_ENTRIES:
            raise FieldError("key", header.key, f"one of at most {_MAX_KV_ENTRIES} keys")
        self._replace_kv(changed)
        return command.answer()

    def _get_kv(self, command: Command, _channel: Channel | None) -> Command:
        header = read_header(command.code, command.fields)
        value = self._kv.get(header.namespace, {}).get(header.key)
        if value is None:
            remark = f"No config item, Namespace: {header.namespace:.255} Key: {header.key:.255}"
            return command.answer(ResponseCode.QUERY_NOT_FOUND, remark, {})
        return command.answer(0, None, {"value": value})

    def _delete_kv(self, command: Command, _channel: Channel | None) -> Command:
        header = read_header(command.code, command.fields)
        if header.key in self._kv.get(header.namespace, {}):
            changed = {namespace: dict(table) for namespace, table in self._kv.items()}
            del changed[header.namespace][header.key]
            self._replace_kv(changed)
        return command.answer()

    def _list_kv(self, command: Command, _channel: Channel | None) -> Command:
        header = read_header(command.code, command.fields)
        table = self._kv.get(header.namespace)
        if table is None:
            return command.answer(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace:.255}"
            )
        return command.answer(body=table_bodies.encode_table(table))

    def _replace_kv(self, changed: dict[str, dict[str, str]]) -> None:
        """Write the file before the table changes, so that what was answered still exists after a restart."""
        if self._persist is not None:
            self._persist(fastjson.dumps_strict({"configTable": changed}))
        self._kv = changed

    # Settings

    def _update_config(self, command: Command, _channel: Channel | None) -> Command:
        given = table_bodies.decode_properties(command.body)
        if not given:
            return command.answer(ResponseCode.NO_PERMISSION, "the body has no key=value")
        if self._change_config is None:
            return command.answer(ResponseCode.NO_PERMISSION, "the settings are given when the server starts")
        try:
            self._changed = self._change_config(given)
        except ConfigError as error:
            return command.answer(ResponseCode.NO_PERMISSION, f"{error.key:.60}: {error.reason}")
        return command.answer()

    def _get_config(self, command: Command, _channel: Channel | None) -> Command:
        return command.answer(body=table_bodies.encode_properties({**self._config(), **self._opened}))


def _empty(topics: dict[str, topic_bodies.TopicConfig]) -> Generator[None, None, None]:
    """Remove all topics, in steps: the end of a large table frees every entry of it in one call."""
    while topics:
        topics.popitem()
        if len(topics) % topic_bodies.TOPICS_PER_STEP == 0:
            yield


def _named_in(header) -> Registrant:
    """Return the broker that a header of UNREGISTER_BROKER, BROKER_HEARTBEAT or QUERY_DATA_VERSION names."""
    broker_id = -1 if header.broker_id is None else header.broker_id
    return Registrant(header.cluster_name, header.broker_name, broker_id, header.broker_addr)
