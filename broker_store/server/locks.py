"""Locks of queues, for consumption in order: 41, 42 (broker/locks.py)."""

from __future__ import annotations

from broker_store.broker.clients import MAX_CLIENT_ID_CHARACTERS
from broker_store.errors import FieldError
from broker_store.formats.names import check_group
from broker_store.protocol import client_bodies
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.message_queue import MessageQueue
from broker_store.server.channel import Channel
from broker_store.server.handler import Handlers, Refusal
from broker_store.server.parts import BrokerParts


class Locks:
    """The handlers of queue locks."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts

    def handlers(self) -> Handlers:
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def lock(self, command: Command, channel: Channel) -> Command:
        request = self._request(command)
        queues = self._known_queues(request)
        # A client finds its logical queues again by the broker name that it gave them
        named = {(queue.topic, queue.queue_id): queue.broker_name for queue in request.queues}
        static = self._parts.static_topics.table
        locked = self._parts.locks.lock(
            request.consumer_group, request.client_id, queues, self._parts.clock()
        )
        body = client_bodies.encode_locked(
            MessageQueue(
                topic, named[topic, queue_id] if topic in static else self._parts.broker_name, queue_id
            )
            for topic, queue_id in locked
        )
        return command.answer(0, None, None, body)

    def unlock(self, command: Command, channel: Channel) -> Command:
        request = self._request(command)
        self._parts.locks.unlock(request.consumer_group, request.client_id, self._known_queues(request))
        return command.answer()

    def _request(self, command: Command) -> client_bodies.LockRequest:
        request = client_bodies.decode_lock_request(command.body)
        check_group(request.consumer_group)
        if not 0 < len(request.client_id) <= MAX_CLIENT_ID_CHARACTERS:
            raise FieldError("clientId", request.client_id, f"1 to {MAX_CLIENT_ID_CHARACTERS} characters")
        if self._parts.groups.get(request.consumer_group) is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"Group {request.consumer_group} not exist!",
                "no group",
            )
        return request

    def _known_queues(self, request: client_bodies.LockRequest) -> list[tuple[str, int]]:
        """Return the queues of a request that exist. A client names all its queues in one request: if an
        administrator removed one, it still gets the others. A lock on a missing queue would only fill the
        table."""
        return [
            (queue.topic, queue.queue_id)
            for queue in request.queues
            if self._is_known(queue.topic, queue.queue_id)
        ]

    def _is_known(self, topic: str, queue_id: int) -> bool:
        mapping = self._parts.static_topics.get(topic)
        if mapping is not None:
            return queue_id in mapping.rows
        config = self._parts.topics.get(topic)
        return config is not None and 0 <= queue_id < config.queues
