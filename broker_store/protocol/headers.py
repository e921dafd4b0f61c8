"""The typed fields of request headers (docs/spec/remoting.md sections 3 to 5, docs/spec/namesrv.md).

A header is declared once, as a line of the table below: wire names with their types, `!` for required. The
line makes a named tuple in snake_case, the reader and the writer:

    header = read_header(RequestCode.QUERY_CONSUMER_OFFSET, command.fields)
    header.consumer_group, header.queue_id
    fields = write_header(RequestCode.QUERY_CONSUMER_OFFSET, consumer_group="g", topic="t", queue_id=0)

A missing optional field is None. Fields that are not in the table are ignored, as in Java. Integers are
bounded by their Java type; a boolean is true for `true` in any case, as in Boolean.parseBoolean.

Sends and pulls have readers of their own, for speed and because three codes share one format. Only this
module knows the one-letter names of SEND_MESSAGE_V2.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from typing import Any, NamedTuple

from broker_store.errors import FieldError
from broker_store.formats.names import is_path
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.command import Command

_INT_END = 1 << 31
_LONG_END = 1 << 63

_TOPIC_CONFIG = (
    "topic! defaultTopic! readQueueNums!:int writeQueueNums!:int perm!:int topicFilterType "
    "topicSysFlag:int order:bool force:bool"
)
_QUEUE = "topic! queueId!:int"
_BROKER = "brokerName! brokerAddr! clusterName! brokerId!:long"

_TABLE = {
    R.QUERY_MESSAGE: "topic! key! maxNum!:int beginTimestamp!:long endTimestamp!:long _UNIQUE_KEY_QUERY:bool",
    R.QUERY_CONSUMER_OFFSET: f"consumerGroup! {_QUEUE} setZeroIfNotFound:bool",
    R.UPDATE_CONSUMER_OFFSET: f"consumerGroup! {_QUEUE} commitOffset!:long",
    R.UPDATE_AND_CREATE_TOPIC: f"{_TOPIC_CONFIG} attributes",
    R.UPDATE_AND_CREATE_STATIC_TOPIC: _TOPIC_CONFIG,
    R.SEARCH_OFFSET_BY_TIMESTAMP: f"{_QUEUE} timestamp!:long boundaryType",
    R.GET_MAX_OFFSET: f"{_QUEUE} committed:bool",
    R.GET_MIN_OFFSET: _QUEUE,
    R.GET_EARLIEST_MSG_STORETIME: _QUEUE,
    R.VIEW_MESSAGE_BY_ID: "offset!:long topic",
    R.UNREGISTER_CLIENT: "clientID! producerGroup consumerGroup",
    R.CONSUMER_SEND_MSG_BACK: (
        "offset!:long group! delayLevel!:int originMsgId originTopic unitMode:bool maxReconsumeTimes:int"
    ),
    R.END_TRANSACTION: (
        "topic producerGroup! tranStateTableOffset!:long commitLogOffset!:long commitOrRollback!:int "
        "fromTransactionCheck:bool msgId! transactionId"
    ),
    R.CHECK_TRANSACTION_STATE: "topic bname tranStateTableOffset!:long commitLogOffset!:long msgId "
    "transactionId offsetMsgId",
    R.RESUME_CHECK_HALF_MESSAGE: "topic msgId!",
    R.RECALL_MESSAGE: "producerGroup topic! recallHandle!",
    R.PUSH_REPLY_MESSAGE_TO_CLIENT: (
        "producerGroup! topic! defaultTopic! defaultTopicQueueNums!:int queueId!:int sysFlag!:int "
        "bornTimestamp!:long flag!:int properties"
        " reconsumeTimes:int unitMode:bool bornHost! storeHost! storeTimestamp!:long"
    ),
    R.GET_CONSUMER_LIST_BY_GROUP: "consumerGroup!",
    R.NOTIFY_CONSUMER_IDS_CHANGED: "consumerGroup!",
    R.GET_ALL_TOPIC_CONFIG: "topicSeq:int dataVersion maxTopicNum:int",
    R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "groupSeq:int dataVersion maxGroupNum:int",
    R.PUT_KV_CONFIG: "namespace! key! value!",
    R.GET_KV_CONFIG: "namespace! key!",
    R.DELETE_KV_CONFIG: "namespace! key!",
    R.GET_KVLIST_BY_NAMESPACE: "namespace!",
    R.REGISTER_BROKER: (
        f"{_BROKER} haServerAddr heartbeatTimeoutMillis:long enableActingMaster:bool compressed:bool "
        f"bodyCrc32:int"
        " __ZONE_NAME"
    ),
    R.UNREGISTER_BROKER: _BROKER,
    R.QUERY_DATA_VERSION: _BROKER,
    # Its fields after brokerId are for controllers alone.
    R.BROKER_HEARTBEAT: (
        "brokerName! brokerAddr! clusterName! brokerId:long epoch:int maxOffset:long confirmOffset:long "
        "heartbeatTimeoutMills:long electionPriority:int"
    ),
    R.CONTROLLER_ALTER_SYNC_STATE_SET: "brokerName! masterBrokerId!:long masterEpoch!:int invokeTime:long",
    R.CONTROLLER_ELECT_MASTER: (
        "clusterName! brokerName! brokerId!:long designateElect!:bool invokeTime:long"
    ),
    R.CONTROLLER_REGISTER_BROKER: "clusterName! brokerName! brokerId!:long brokerAddress! invokeTime:long",
    R.CONTROLLER_GET_REPLICA_INFO: "brokerName!",
    R.CONTROLLER_GET_METADATA_INFO: "",
    R.CONTROLLER_GET_NEXT_BROKER_ID: "clusterName! brokerName!",
    R.CONTROLLER_APPLY_BROKER_ID: "clusterName! brokerName! appliedBrokerId!:long registerCheckCode!",
    R.GET_BROKER_MEMBER_GROUP: "clusterName! brokerName!",
    R.NOTIFY_MIN_BROKER_ID_CHANGE: "minBrokerId:long brokerName minBrokerAddr offlineBrokerAddr haBrokerAddr",
    R.EXCHANGE_BROKER_HA_INFO: "masterHaAddress masterFlushOffset:long masterAddress",
    R.GET_ROUTEINFO_BY_TOPIC: "topic! acceptStandardJsonOnly:bool __ZONE_MODE:bool __ZONE_NAME",
    R.WIPE_WRITE_PERM_OF_BROKER: "brokerName!",
    R.ADD_WRITE_PERM_OF_BROKER: "brokerName!",
    R.DELETE_TOPIC_IN_NAMESRV: "topic! clusterName",
    R.REGISTER_TOPIC_IN_NAMESRV: "topic!",
    R.GET_TOPICS_BY_CLUSTER: "cluster!",
    R.GET_TOPIC_STATS_INFO: "topic!",
    R.GET_CONSUMER_CONNECTION_LIST: "consumerGroup!",
    R.GET_PRODUCER_CONNECTION_LIST: "producerGroup!",
    R.DELETE_SUBSCRIPTIONGROUP: "groupName! cleanOffset:bool",
    R.GET_CONSUME_STATS: "consumerGroup! topic topicList",
    R.DELETE_TOPIC_IN_BROKER: "topic!",
    R.RESET_CONSUMER_CLIENT_OFFSET: "topic! group! timestamp!:long isForce!:bool",
    R.GET_CONSUMER_STATUS_FROM_CLIENT: "topic! group! clientAddr",
    R.INVOKE_BROKER_TO_RESET_OFFSET: "group! topic! timestamp!:long isForce!:bool queueId:int offset:long",
    R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: "topic! group! clientAddr",
    R.QUERY_TOPIC_CONSUME_BY_WHO: "topic!",
    R.QUERY_CONSUME_TIME_SPAN: "topic! group!",
    R.GET_CONSUMER_RUNNING_INFO: "consumerGroup! clientId! jstackEnable:bool",
    R.QUERY_CORRECTION_OFFSET: "filterGroups compareGroup! topic!",
    R.CONSUME_MESSAGE_DIRECTLY: "consumerGroup! clientId msgId brokerName topic topicSysFlag:int "
    "groupSysFlag:int",
    R.CLONE_GROUP_OFFSET: "srcGroup! destGroup! topic offline:bool",
    R.VIEW_BROKER_STATS_DATA: "statsName! statsKey!",
    R.GET_BROKER_CONSUME_STATS: "isOrder!:bool",
    R.QUERY_CONSUME_QUEUE: f"{_QUEUE} index!:long count!:int consumerGroup",
    R.QUERY_TOPICS_BY_CONSUMER: "group!",
    R.QUERY_SUBSCRIPTION_BY_CONSUMER: "group! topic",
    R.GET_TOPIC_CONFIG: "topic! lo:bool",
    R.GET_SUBSCRIPTIONGROUP_CONFIG: "group!",
    R.UPDATE_AND_GET_GROUP_FORBIDDEN: "group! topic! readable:bool",
    R.POP_MESSAGE: (
        f"consumerGroup! {_QUEUE} maxMsgNums!:int invisibleTime!:long pollTime!:long bornTime:long "
        f"initMode!:int expType exp order:bool attemptId"
    ),
    R.PEEK_MESSAGE: f"consumerGroup! {_QUEUE} maxMsgNums!:int",
    R.NOTIFICATION: (
        f"consumerGroup! {_QUEUE} pollTime!:long bornTime:long order:bool attemptId expType exp"
    ),
    R.POLLING_INFO: f"consumerGroup! {_QUEUE}",
    # A blank or missing name has an answer of its own, so it is not required here.
    R.AUTH_CREATE_USER: "username",
    R.AUTH_UPDATE_USER: "username",
    R.AUTH_DELETE_USER: "username",
    R.AUTH_GET_USER: "username",
    R.AUTH_LIST_USER: "filter",
    R.AUTH_CREATE_ACL: "subject",
    R.AUTH_UPDATE_ACL: "subject",
    R.AUTH_DELETE_ACL: "subject policyType resource",
    R.AUTH_GET_ACL: "subject",
    R.AUTH_LIST_ACL: "subjectFilter resourceFilter",
    R.ACK_MESSAGE: f"consumerGroup! {_QUEUE} extraInfo! offset!:long",
    R.CHANGE_MESSAGE_INVISIBLETIME: f"consumerGroup! {_QUEUE} extraInfo! offset!:long invisibleTime!:long",
}


# Names of topics and groups: whatever is made of one, a path never passes.
_NAMES = frozenset(
    {
        "topic",
        "originTopic",
        "group",
        "groupName",
        "consumerGroup",
        "producerGroup",
        "compareGroup",
        "srcGroup",
        "destGroup",
    }
)


class _Field(NamedTuple):
    wire_name: str
    name: str
    kind: str
    required: bool


def _snake_case(wire_name: str) -> str:
    name = wire_name.strip("_")
    if name.isupper():
        return name.lower()
    if name == "clientID":
        return "client_id"
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def _parse_line(line: str) -> tuple[_Field, ...]:
    fields = []
    for word in line.split():
        declared, _, kind = word.partition(":")
        wire_name = declared.rstrip("!")
        kind = kind or ("name" if wire_name in _NAMES else "text")
        fields.append(_Field(wire_name, _snake_case(wire_name), kind, declared.endswith("!")))
    return tuple(fields)


_FIELDS = {int(code): _parse_line(line) for code, line in _TABLE.items()}
_TYPES: dict[int, Any] = {  # named tuples, whose fields are those of the table
    code: namedtuple(R(code).name.title().replace("_", ""), [field.name for field in fields], module=__name__)
    for code, fields in _FIELDS.items()
}


def read_header(code: int, fields: Mapping[str, str] | None) -> Any:
    """Return the header of a request as a named tuple. Raises FieldError for the first field that is missing
    or wrong."""
    fields = fields or {}
    return _TYPES[code]._make([_read_field(field, fields) for field in _FIELDS[code]])


def _read_field(field: _Field, fields: Mapping[str, str]) -> object:
    wire_name, _, kind, required = field
    text = fields.get(wire_name)
    if text is None:
        if required:
            raise FieldError(wire_name, None, f"a value ({kind})")
        return None
    if kind == "text":
        return text
    if kind == "int":
        return read_int(wire_name, text)
    if kind == "long":
        return read_long(wire_name, text)
    if kind == "bool":
        return text.lower() == "true"
    if is_path(text):
        raise FieldError(wire_name, text, "a name, which is no path")
    return text


def write_header(code: int, **values: object) -> dict[str, str]:
    """Return the fields of a request, without those that are None. Raises FieldError if a required one is
    None."""
    fields = {}
    for field in _FIELDS[code]:
        value = values.pop(field.name, None)
        if value is not None:
            fields[field.wire_name] = _write_value(value)
        elif field.required:
            raise FieldError(field.wire_name, None, f"a value ({field.kind})")
    if values:
        raise TypeError(f"{R(code).name} has no field {', '.join(values)}")
    return fields


def _write_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def read_int(name: str, text: str | None) -> int:
    """Return a Java int. Raises FieldError."""
    return _read_number(name, text, _INT_END, "a 32-bit integer")


def read_long(name: str, text: str | None) -> int:
    """Return a Java long. Raises FieldError."""
    return _read_number(name, text, _LONG_END, "a 64-bit integer")


def _read_number(name: str, text: str | None, end: int, expected: str) -> int:
    # The length is bounded first: Python's int() takes quadratic time. It also takes blanks and underscores,
    # which Java's parseLong refuses.
    if text is None or len(text) > 20 or not text.isascii():
        raise FieldError(name, text, expected)
    if not (text.isdigit() or (text[:1] in "+-" and text[1:].isdigit())):
        raise FieldError(name, text, expected)
    number = int(text)
    if not -end <= number < end:
        raise FieldError(name, text, expected)
    return number


# Sends


class SendHeader(NamedTuple):
    """The header of a send: of one message, or of a batch whose body is a chain of messages."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str
    reconsume_times: int
    unit_mode: bool
    max_reconsume_times: int | None
    batch: bool


_LONG_SEND_NAMES = (
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
)
# The code decides which names a header has: 310, 320 and 325 the letters, 10 and 324 the words.
_SHORT_SEND_CODES = frozenset({310, 320, 325})
_SHORT_SEND_NAMES = tuple("abcdefghijklm")
_SEND_BATCH = int(R.SEND_BATCH_MESSAGE)
_EMPTY: dict[str, str] = {}


_new_tuple = tuple.__new__


def read_send(command: Command) -> SendHeader:
    """Return the header of a send (10, 310, 320, 324, 325). Raises FieldError, which has the long name of the
    field."""
    fields = command.fields or _EMPTY
    short = command.code in _SHORT_SEND_CODES
    try:
        if short:
            header = _send_by_letters(fields, command.code)
        else:
            header = _send_by_letters(
                {a: fields[word] for a, word in _LETTERS if word in fields}, command.code
            )
    except (KeyError, TypeError, ValueError):
        raise _wrong_send(fields.get, short) from None
    group, _, _, queues, queue_id, sys_flag, born, flag, _, reconsumed, _, limit, _ = header
    if is_path(group):
        raise FieldError("producerGroup", group, "a name, which is no path")
    # One test for all ints when none is negative, which is nearly always so.
    if (queues | queue_id | sys_flag | flag | reconsumed | (limit or 0)) >> 31 or born >> 63:
        ints = (queues, queue_id, sys_flag, flag, reconsumed, limit or 0)
        if not (all(-_INT_END <= number < _INT_END for number in ints) and -_LONG_END <= born < _LONG_END):
            raise _wrong_send(fields.get, short)
    return header


_LETTERS = tuple(zip(_SHORT_SEND_NAMES, _LONG_SEND_NAMES, strict=True))


def _send_by_letters(fields: Mapping[str, str], code: int) -> SendHeader:
    """The fast path: constant names, and the tuple made without the generated constructor."""
    get = fields.get
    limit = get("l")
    return _new_tuple(
        SendHeader,
        (
            fields["a"],
            fields["b"],
            fields["c"],
            int(fields["d"]),
            int(fields["e"]),
            int(fields["f"]),
            int(fields["g"]),
            int(fields["h"]),
            get("i") or "",
            int(get("j") or 0),
            get("k") == "true",
            None if limit is None else int(limit),
            get("m") == "true" or code == _SEND_BATCH,
        ),
    )


_SEND_KINDS = (
    "text!",
    "text!",
    "text!",
    "int!",
    "int!",
    "int!",
    "long!",
    "int!",
    "text",
    "int",
    "text",
    "int",
    "text",
)


def _wrong_send(get: Any, short: bool) -> FieldError:
    """Return the error of the first wrong field of a send that the fast path refused."""
    names = _SHORT_SEND_NAMES if short else _LONG_SEND_NAMES
    for name, word, kind in zip(names, _LONG_SEND_NAMES, _SEND_KINDS, strict=True):
        try:
            _read_field(_Field(name, word, kind.rstrip("!"), kind.endswith("!")), {name: get(name)})
        except FieldError as error:
            return FieldError(word, error.value, error.expected)
    return FieldError("fields", None, "a send header")


def write_send(
    header: SendHeader, code: int = R.SEND_MESSAGE_V2, broker_name: str | None = None
) -> dict[str, str]:
    """Return the fields of a send with the names of the code."""
    names = _SHORT_SEND_NAMES if code in _SHORT_SEND_CODES else _LONG_SEND_NAMES
    pairs = zip(names, header, strict=True)
    fields = {name: _write_value(value) for name, value in pairs if value is not None}
    if broker_name is not None and code in _SHORT_SEND_CODES:
        fields["n"] = broker_name
    return fields


# Pulls

PULL_COMMIT_OFFSET = 1
PULL_SUSPEND = 2
PULL_SUBSCRIPTION = 4
# requestSource of a proxy that pulls for clients of a broadcasting group.
PROXY_FOR_BROADCAST = 1


class PullHeader(NamedTuple):
    """The header of a pull (11, 361). `sys_flag` has the PULL_ bits; `suspend_timeout_ms` applies only with
    PULL_SUSPEND."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    commit_offset: int
    suspend_timeout_ms: int
    subscription: str | None
    sub_version: int
    expression_type: str | None
    max_msg_bytes: int | None
    request_source: int | None = None
    proxy_client_id: str | None = None


def read_pull(command: Command) -> PullHeader:
    """Return the header of a pull. Raises FieldError."""
    fields = command.fields or _EMPTY
    get = fields.get
    try:
        header = PullHeader(
            fields["consumerGroup"],
            fields["topic"],
            int(fields["queueId"]),
            int(fields["queueOffset"]),
            int(fields["maxMsgNums"]),
            int(fields["sysFlag"]),
            int(fields["commitOffset"]),
            int(fields["suspendTimeoutMillis"]),
            get("subscription"),
            int(get("subVersion") or 0),
            get("expressionType"),
            None if (most := get("maxMsgBytes")) is None else int(most),
            None if (source := get("requestSource")) is None else int(source),
            get("proxyFrowardClientId"),
        )
    except (KeyError, ValueError) as error:
        _check_pull(fields)
        raise FieldError("fields", None, "a pull header") from error
    queue_id, offset, count, sys_flag, commit_offset, suspend_ms = header[2:8]
    ints = queue_id | count | sys_flag | (header.max_msg_bytes or 0) | (header.request_source or 0)
    if ints >> 31 or (offset | commit_offset | suspend_ms | header.sub_version) >> 63:
        _check_pull(fields)
    return header


_PULL_FIELDS = _parse_line(
    "consumerGroup! topic! queueId!:int queueOffset!:long maxMsgNums!:int sysFlag!:int commitOffset!:long"
    " suspendTimeoutMillis!:long subscription subVersion:long expressionType maxMsgBytes:int "
    "requestSource:int proxyFrowardClientId"
)


def _check_pull(fields: Mapping[str, str]) -> None:
    """Raise FieldError for the first field that is wrong, in a pull that the fast path could not read."""
    for field in _PULL_FIELDS:
        _read_field(field, fields)


def write_pull(header: PullHeader) -> dict[str, str]:
    """Return the fields of a pull."""
    pairs = zip(_PULL_FIELDS, header, strict=True)
    return {field.wire_name: _write_value(value) for field, value in pairs if value is not None}
