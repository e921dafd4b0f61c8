"""The requests that change what an administrator decides, and the record of each.

`recorded` wraps a handler. It reads the state before, calls the handler, and makes one record with the
outcome, also if the request was refused or is malformed. What clients do for themselves (sends, pulls,
offsets, locks, heartbeats) is not recorded, except that a topic or group is created for a request
(`auto_created`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine

from broker_store.broker.client_channel import ClientChannel
from broker_store.errors import BrokerStoreError, PeerError
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.rest.change_record import ChangeRecord
from broker_store.server.audited_state import Begun, further_parts
from broker_store.server.audited_subject import MAX_NAME_CHARACTERS, MAX_SAID_CHARACTERS, Audited, subject_of
from broker_store.server.change_records import ChangeRecords
from broker_store.server.channel import Channel
from broker_store.server.handler import Answer, Handler, Refusal
from broker_store.server.parts import BrokerParts

BROKER: dict[int, Audited] = {
    R.UPDATE_AND_CREATE_TOPIC: Audited("update", "topic", "topic"),
    R.UPDATE_AND_CREATE_STATIC_TOPIC: Audited("update", "topic", "topic"),
    R.UPDATE_AND_CREATE_TOPIC_LIST: Audited("update", "topic", items=("topicConfigList", "topicName")),
    R.DELETE_TOPIC_IN_BROKER: Audited("delete", "topic", "topic"),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Audited("update", "group", items=("", "groupName")),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Audited(
        "update", "group", items=("groupConfigList", "groupName")
    ),
    R.DELETE_SUBSCRIPTIONGROUP: Audited("delete", "group", "groupName", others=("cleanOffset",)),
    R.UPDATE_AND_GET_GROUP_FORBIDDEN: Audited("forbid", "group", "group", others=("topic", "readable")),
    R.SET_MESSAGE_REQUEST_MODE: Audited("set_mode", "group", items=("", "consumerGroup")),
    R.INVOKE_BROKER_TO_RESET_OFFSET: Audited(
        "reset_offset", "group", "group", others=("topic", "timestamp", "queueId", "offset")
    ),
    R.CLONE_GROUP_OFFSET: Audited("clone_offset", "group", "destGroup", others=("srcGroup", "topic")),
    R.RESUME_CHECK_HALF_MESSAGE: Audited("resume_check", "message", "msgId", others=("topic",)),
    R.UPDATE_BROKER_CONFIG: Audited("update", "config"),
    R.DELETE_EXPIRED_COMMITLOG: Audited("clean", "store"),
    R.AUTH_CREATE_USER: Audited("create", "user", "username"),
    R.AUTH_UPDATE_USER: Audited("update", "user", "username"),
    R.AUTH_DELETE_USER: Audited("delete", "user", "username"),
    R.AUTH_CREATE_ACL: Audited("create", "acl", "subject"),
    R.AUTH_UPDATE_ACL: Audited("update", "acl", "subject"),
    R.AUTH_DELETE_ACL: Audited("delete", "acl", "subject", others=("policyType", "resource")),
}
NAME_SERVER: dict[int, Audited] = {
    R.PUT_KV_CONFIG: Audited("update", "kv", "key", others=("namespace", "value")),
    R.DELETE_KV_CONFIG: Audited("delete", "kv", "key", others=("namespace",)),
    R.WIPE_WRITE_PERM_OF_BROKER: Audited("wipe_write_perm", "broker", "brokerName"),
    R.ADD_WRITE_PERM_OF_BROKER: Audited("add_write_perm", "broker", "brokerName"),
    R.DELETE_TOPIC_IN_NAMESRV: Audited("delete", "route", "topic", others=("clusterName",)),
    R.REGISTER_TOPIC_IN_NAMESRV: Audited(
        "create",
        "route",
        "topic",
        rows=("queueDatas", ("brokerName", "readQueueNums", "writeQueueNums", "perm")),
    ),
    R.UPDATE_NAMESRV_CONFIG: Audited("update", "config"),
    R.UNREGISTER_BROKER: Audited(
        "unregister", "broker", "brokerName", others=("brokerAddr", "clusterName", "brokerId")
    ),
}
# Brokers send these every few seconds. Only a refused one is recorded: a request in the name of another
# broker.
NAME_SERVER_WHEN_REFUSED: dict[int, Audited] = {
    R.REGISTER_BROKER: Audited(
        "register", "broker", "brokerName", others=("brokerAddr", "clusterName", "brokerId")
    ),
    R.BROKER_HEARTBEAT: Audited(
        "register", "broker", "brokerName", others=("brokerAddr", "clusterName", "brokerId")
    ),
    R.QUERY_DATA_VERSION: Audited(
        "register", "broker", "brokerName", others=("brokerAddr", "clusterName", "brokerId")
    ),
}


def recorded(parts: BrokerParts, code: int, handler: Handler) -> Handler:
    """Return a handler that calls `handler` and makes one record for each request."""
    audited = BROKER[code]

    def handle(command: Command, channel: Channel) -> Answer:
        begun = Begun(parts, audited, command)
        try:
            answer = handler(command, channel)
        except Exception as error:
            _note(
                parts, command, channel, audited, begun.name, begun.detail | _said(error), _outcome_of(error)
            )
            raise
        assert not isinstance(answer, Coroutine), "a handler that answers later is a coroutine function"
        _note_answer(command, channel, begun, answer)
        return answer

    async def handle_later(command: Command, channel: Channel) -> Command | None:
        begun = Begun(parts, audited, command)
        # The handler parses a long list a second time, so other requests come between.
        await asyncio.sleep(0)
        try:
            answer = handler(command, channel)
            if isinstance(answer, Coroutine):
                answer = await answer
        except Exception as error:
            _note(
                parts, command, channel, audited, begun.name, begun.detail | _said(error), _outcome_of(error)
            )
            raise
        except asyncio.CancelledError:  # the broker stops
            if begun.has_changed():
                _note_answer(command, channel, begun, None)
            raise
        try:
            await asyncio.sleep(0)
        finally:  # also if the broker stops in this turn: the change was made
            _note_answer(command, channel, begun, answer)
        return answer

    def _note_answer(command: Command, channel: Channel, begun: Begun, answer: Command | None) -> None:
        code = 0 if answer is None else answer.code
        pairs, compared = begun.compared()
        detail = begun.detail | compared | (begun.gone if not code else {})
        if answer is not None and code and answer.remark:
            detail["said"] = answer.remark[:MAX_SAID_CHARACTERS]
        _note(parts, command, channel, audited, begun.name, detail, _outcome(code))
        if not code:
            for part in further_parts(begun.names, detail, pairs):
                _note(parts, command, channel, audited, part["names"][0], part, _outcome(code))

    return handle_later if inspect.iscoroutinefunction(handler) else handle


def note_name_server(
    changes: ChangeRecords,
    now_ms: int,
    command: Command,
    channel: Channel | None,
    answer: Command,
    before: dict,
) -> None:
    """Record a change at the name server, or a refused claim. `channel` is None for this process; `before` is
    the state before the request."""
    audited = NAME_SERVER.get(command.code)
    if audited is None and answer.code:
        audited = NAME_SERVER_WHEN_REFUSED.get(command.code)
    if audited is None or channel is None:
        return
    names, detail = subject_of(audited, command)
    if answer.code and answer.remark:
        detail["said"] = answer.remark[:MAX_SAID_CHARACTERS]
    if not answer.code:
        detail |= _of_name_server(command, answer, before)
    changes.note(
        _record(now_ms, command, channel, audited, names[0] if names else "", detail, _outcome(answer.code))
    )


def _of_name_server(command: Command, answer: Command, before: dict) -> dict:
    """Return the effect of a change at the name server: a value or settings before and after, or the number
    of topics in the answer."""
    if "settings" in before:
        changed = before["settings"]
        return {
            name: {key: str(values[at]) for key, values in changed.items()}
            for at, name in enumerate(("before", "after"))
        }
    if "before" in before:
        old = before["before"]
        new = (command.fields or {}).get("value", "") if command.code == R.PUT_KV_CONFIG else None
        shown = [value if value is None else value[:MAX_SAID_CHARACTERS] for value in (old, new)]
        # If only the parts that were cut off differ, the two would look equal.
        return (
            dict(zip(("before", "after"), shown, strict=True))
            if old == new or shown[0] != shown[1]
            else {"before": shown[0]}
        )
    counts = [
        value for name, value in (answer.fields or {}).items() if name in ("wipeTopicCount", "addTopicCount")
    ]
    return {"topics": int(counts[0])} if counts else {}


def auto_created(
    parts: BrokerParts, command: Command, channel: ClientChannel, kind: str, name: str, detail: dict
) -> None:
    """Record a topic or group that was created because a client's request names it."""
    _note(parts, command, channel, Audited("auto_create", kind), name, detail, "done")


def _note(
    parts: BrokerParts,
    command: Command,
    channel: ClientChannel,
    audited: Audited,
    name: str,
    detail: dict,
    outcome: str,
) -> None:
    user = None if parts.access is None else parts.access.user(command.fields)
    if user is not None:
        detail = {"by": user.name, **detail}
    record = _record(parts.clock(), command, channel, audited, name, detail, outcome)
    parts.changes.note(record, lambda: parts.clients.id_on(channel))


def _record(
    now_ms: int,
    command: Command,
    channel: ClientChannel,
    audited: Audited,
    name: str,
    detail: dict,
    outcome: str,
) -> ChangeRecord:
    code = f"{R(command.code).name} ({command.code})"
    language = command.language if isinstance(command.language, str) else str(command.language)
    return ChangeRecord(
        now_ms, audited.action, audited.kind, name[:MAX_NAME_CHARACTERS], outcome, channel.remote, code,
        language=language[:20], version=command.version, detail=detail,
    )  # fmt: skip


def _outcome(code: int) -> str:
    return "done" if code == 0 else ResponseCode(code).name.lower() if code in _CODES else f"code {code}"


_CODES = frozenset(int(code) for code in ResponseCode)


def _outcome_of(error: Exception) -> str:
    if isinstance(error, Refusal):
        return _outcome(error.code)
    if isinstance(error, PeerError):
        return _outcome(ResponseCode.INVALID_PARAMETER)
    return error.cause if isinstance(error, BrokerStoreError) else BrokerStoreError.cause


def _said(error: Exception) -> dict:
    """Return the text of a refusal. Texts of store errors name files of this machine; they go only to the
    log."""
    return {"said": str(error)[:MAX_SAID_CHARACTERS]} if isinstance(error, Refusal | PeerError) else {}
