"""Which queues a client gets, and whether it pulls or pops them: 400, 401, 402 (docs/spec/pop.md section
7)."""

from __future__ import annotations

from broker_store.broker.pop.request_modes import POP, RequestMode, mode_of
from broker_store.errors import FieldError, FormatError
from broker_store.excerpts import text_excerpt
from broker_store.formats.names import RETRY_PREFIX, check_group, check_topic
from broker_store.protocol import fastjson
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.message_queue import MessageQueue
from broker_store.server.channel import Channel
from broker_store.server.handler import Handlers, Refusal, no_topic
from broker_store.server.parts import BrokerParts
from broker_store.server.pop_request import ALL_QUEUES


class RequestModeHandlers:
    """The handlers of modes and assignments."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts

    def handlers(self) -> Handlers:
        return {
            RequestCode.QUERY_ASSIGNMENT: self.query_assignment,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.modes,
        }

    def set_mode(self, command: Command, channel: Channel) -> Command:
        """Set whether the clients of a group pull or pop a topic."""
        request = _object(command)
        topic, group = _text(request, "topic"), _text(request, "consumerGroup")
        if topic.startswith(RETRY_PREFIX):
            raise Refusal(
                ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode", "mode of a retry topic"
            )
        check_topic(topic)
        check_group(group)
        if self._parts.topics.get(topic) is None:
            raise no_topic(topic)
        try:
            mode = mode_of(request)
        except FormatError as error:
            raise Refusal(ResponseCode.INVALID_PARAMETER, str(error), "mode") from None
        self._parts.request_modes.put(topic, group, mode)
        return command.answer()

    def modes(self, command: Command, channel: Channel) -> Command:
        return command.answer(0, None, None, fastjson.dumps(self._parts.request_modes.to_json()))

    def query_assignment(self, command: Command, channel: Channel) -> Command:
        """Return the queues of this broker that a client of a group gets; none if the group has no connected
        member."""
        request = _object(command)
        topic, group_name = _text(request, "topic"), _text(request, "consumerGroup")
        client_id, strategy = _text(request, "clientId"), request.get("strategyName") or "AVG"
        config = self._parts.topics.get(topic)
        group = self._parts.clients.consumer_group(group_name)
        is_broadcasting = request.get("messageModel") == "BROADCASTING"
        if config is None or (group is None and not is_broadcasting):
            return command.answer(0, None, None, b"{}")
        mode = self._parts.request_modes.get(topic, group_name)
        queues = list(range(config.read_queues))
        if group is not None and not is_broadcasting:
            members = sorted(set(group.client_ids()))
            if client_id not in members:
                return command.answer(0, None, None, b"{}")
            share = _pop_share if mode.mode == POP else _pull_share
            queues = share(queues, members, client_id, text_excerpt(strategy), mode)
        assigned = [
            {
                "messageQueue": MessageQueue(topic, self._parts.broker_name, queue_id).to_json(),
                "mode": mode.mode,
            }
            for queue_id in queues
        ]
        return command.answer(0, None, None, fastjson.dumps({"messageQueueAssignments": assigned}))


def _object(command: Command) -> dict[str, object]:
    request = fastjson.loads(command.body)
    if not isinstance(request, dict):
        raise FieldError("body", command.body[:40], "an object")
    return request


def _text(request: dict[str, object], name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str):
        raise FieldError(name, value, "text")
    return value


def _pull_share(
    queues: list[int], members: list[str], client_id: str, strategy: str, mode: RequestMode
) -> list[int]:
    """Return the client's share of the queues as Java's clients compute it: consecutive ones (AVG), or every
    n-th (AVG_BY_CIRCLE)."""
    place = members.index(client_id)
    if strategy == "AVG_BY_CIRCLE":
        return queues[place :: len(members)]
    if strategy != "AVG":
        raise FieldError("strategyName", strategy, "AVG or AVG_BY_CIRCLE")
    size, rest = divmod(len(queues), len(members))
    start = place * size + min(place, rest)
    return queues[start : start + size + (1 if place < rest else 0)]


def _pop_share(
    queues: list[int], members: list[str], client_id: str, strategy: str, mode: RequestMode
) -> list[int]:
    """Return the queues that a client pops: all, as one id, or those of its share and of the shares of the
    next members."""
    if mode.share <= 0 or mode.share >= len(members) - 1:
        return [ALL_QUEUES]
    place = members.index(client_id)
    if len(members) > len(queues):
        return [queues[place % len(queues)]]
    found: dict[int, None] = {}
    for number in range(mode.share + 1):
        member = members[(place + number) % len(members)]
        found.update(dict.fromkeys(_pull_share(queues, members, member, strategy, mode)))
    return list(found)
