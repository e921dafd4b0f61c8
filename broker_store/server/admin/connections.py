"""Connected clients, and which groups consume which topics."""

from __future__ import annotations

from broker_store.broker.clients import Client
from broker_store.formats import config_json
from broker_store.protocol import fastjson, topic_bodies
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_header
from broker_store.server.channel import Channel
from broker_store.server.handler import Handlers
from broker_store.server.parts import BrokerParts

MAX_QUEUE_UNITS = 100
NO_CODE = "not set any response code"


class ConnectionAdmin:
    """The handlers of connections and subscriptions."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts

    def handlers(self) -> Handlers:
        return {
            R.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            R.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
            R.GET_ALL_PRODUCER_INFO: self.all_producers,
            R.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            R.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            R.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription_of_group,
            R.QUERY_CONSUME_QUEUE: self.consume_queue,
        }

    def consumer_connections(self, command: Command, channel: Channel) -> Command:
        name = read_header(R.GET_CONSUMER_CONNECTION_LIST, command.fields).consumer_group
        group = self._parts.clients.consumer_group(name)
        if group is None:
            return command.answer(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name:.120}] not online"
            )
        value = {
            "connectionSet": [_connection(client) for client in group.members.values()],
            "consumeFromWhere": group.consume_from_where,
            "consumeType": group.consume_type,
            "messageModel": group.message_model,
            "subscriptionTable": {topic: item.to_json() for topic, item in group.subscriptions.items()},
        }
        return command.answer(0, None, None, fastjson.dumps(value))

    def producer_connections(self, command: Command, channel: Channel) -> Command:
        name = read_header(R.GET_PRODUCER_CONNECTION_LIST, command.fields).producer_group
        members = self._parts.clients.producers(name)
        if not members:
            return command.answer(ResponseCode.SYSTEM_ERROR, f"the producer group[{name:.120}] not exist")
        return command.answer(
            0, None, None, fastjson.dumps({"connectionSet": [_connection(client) for client in members]})
        )

    def all_producers(self, command: Command, channel: Channel) -> Command:
        groups = {
            name: [
                {
                    "clientId": client.client_id,
                    "language": client.language,
                    "lastUpdateTimestamp": client.seen_ms,
                    "remoteIP": f"/{client.channel.remote}",
                    "version": client.version,
                }
                for client in members
            ]
            for name, members in self._parts.clients.producer_groups().items()
        }
        return command.answer(0, None, None, fastjson.dumps({"data": groups}))

    def groups_of_topic(self, command: Command, channel: Channel) -> Command:
        topic = read_header(R.QUERY_TOPIC_CONSUME_BY_WHO, command.fields).topic
        names = dict.fromkeys(self._parts.clients.groups_of_topic(topic))
        names.update(dict.fromkeys(self._parts.offsets.groups_of_topic(topic)))
        return command.answer(0, None, None, fastjson.dumps({"groupList": list(names)}))

    def topics_of_group(self, command: Command, channel: Channel) -> Command:
        group = read_header(R.QUERY_TOPICS_BY_CONSUMER, command.fields).group
        topics = list(self._parts.offsets.of_group(group))
        return command.answer(
            0, None, None, topic_bodies.encode_topic_list(topics, self._parts.endpoint.address)
        )

    def subscription_of_group(self, command: Command, channel: Channel) -> Command:
        header = read_header(R.QUERY_SUBSCRIPTION_BY_CONSUMER, command.fields)
        found = self._parts.clients.subscription(header.group, header.topic or "")
        value = {
            "group": header.group,
            "subscriptionData": found.to_json() if found else None,
            "topic": header.topic,
        }
        return command.answer(0, None, None, fastjson.dumps(value))

    def consume_queue(self, command: Command, channel: Channel) -> Command:
        header = read_header(R.QUERY_CONSUME_QUEUE, command.fields)
        store = self._parts.store
        config = self._parts.topics.get(header.topic)
        if config is None or not (
            0 <= header.queue_id < config.queues or header.queue_id in store.queue_ids(header.topic)
        ):
            return command.answer(
                ResponseCode.SYSTEM_ERROR, f"{header.queue_id}@{header.topic:.255} is not exist!"
            )
        count = max(0, min(header.count, MAX_QUEUE_UNITS))
        subscription = self._parts.clients.subscription(header.consumer_group or "", header.topic)
        wanted = subscription.tag_codes if subscription else None
        units = store.reads.read_units(header.topic, header.queue_id, max(0, header.index), count)
        value = {
            "maxQueueIndex": store.reads.max_offset(header.topic, header.queue_id),
            "minQueueIndex": store.reads.min_offset(header.topic, header.queue_id),
            "queueData": [
                {
                    "eval": subscription is not None
                    and (wanted is None or (tags_code & 0xFFFFFFFF) in _unsigned(wanted)),
                    "physicOffset": log_offset,
                    "physicSize": size,
                    "tagsCode": tags_code,
                }
                for log_offset, size, tags_code in units
            ],
            "subscriptionData": subscription.to_json() if subscription else None,
        }
        if entry := self._parts.property_filters.get(header.topic, header.consumer_group or ""):
            value["filterData"] = config_json.write(entry.to_json())
        return command.answer(0, NO_CODE, None, fastjson.dumps(value))


def _connection(client: Client) -> dict:
    return {
        "clientAddr": client.channel.remote,
        "clientId": client.client_id,
        "language": client.language,
        "version": client.version,
    }


def _unsigned(codes: frozenset[int]) -> set[int]:
    return {code & 0xFFFFFFFF for code in codes}
