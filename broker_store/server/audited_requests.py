"""Which requests change what an administrator decides, and what the record of such a request says.

`recorded` wraps a handler: it notes what was there before, lets the handler work, and leaves one record with
the outcome, also when the request was refused or is not even well formed. What clients do for themselves
(sends, pulls, their offsets, locks, heartbeats) is no administration; a topic or a group that they bring into
being is (`auto_created`).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, islice

from broker_store.broker.client_channel import ClientChannel
from broker_store.broker.groups import SubscriptionGroup
from broker_store.broker.topics import TopicConfig
from broker_store.errors import BrokerStoreError, PeerError
from broker_store.excerpts import text_excerpt
from broker_store.protocol import fastjson
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.server.change_records import MAX_NAMES, ChangeRecord, ChangeRecords
from broker_store.server.channel import Channel
from broker_store.server.handler import Answer, Handler, Refusal
from broker_store.server.parts import BrokerParts

MAX_NAME_CHARACTERS = 255
MAX_SAID_CHARACTERS = 200
MAX_SETTINGS_BYTES = 64 << 10  # of a body of lines, whose keys are read
# Of what was there before and after, in one record: an entry of the audit trail has 4,000 characters.
MAX_PICTURE_CHARACTERS = 2_500
MAX_NAMES_CHARACTERS = 1_000  # of the names in it
MAX_PART_CHARACTERS = 3_500  # of the names and settings in a further record of a long list
# Items of a list whose settings are read before and after: as many as a request may make
MAX_COMPARED = 1_000
# Base64 has an equals sign only at its end
_SETTING = re.compile(rb"\s*([A-Za-z][A-Za-z0-9._-]{0,99})\s*=\s*[^\s=]")


@dataclass(frozen=True, slots=True)
class Audited:
    """What a code changes: `name` is the header field that names it, `items` the list and field of its body
    that do."""

    action: str
    kind: str
    name: str = ""
    items: tuple[str, str] | None = None
    others: tuple[str, ...] = ()  # further header fields that the record keeps
    # The list of its body, and the fields of each row, that the record keeps
    rows: tuple[str, tuple[str, ...]] | None = None


BROKER: dict[int, Audited] = {
    R.UPDATE_AND_CREATE_TOPIC: Audited("update", "topic", "topic"),
    R.UPDATE_AND_CREATE_TOPIC_LIST: Audited("update", "topic", items=("topicConfigList", "topicName")),
    R.DELETE_TOPIC_IN_BROKER: Audited("delete", "topic", "topic"),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Audited("update", "group", items=("", "groupName")),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Audited(
        "update", "group", items=("groupConfigList", "groupName")
    ),
    R.DELETE_SUBSCRIPTIONGROUP: Audited("delete", "group", "groupName", others=("cleanOffset",)),
    R.UPDATE_AND_GET_GROUP_FORBIDDEN: Audited("forbid", "group", "group", others=("topic", "readable")),
    R.INVOKE_BROKER_TO_RESET_OFFSET: Audited(
        "reset_offset", "group", "group", others=("topic", "timestamp", "queueId", "offset")
    ),
    R.CLONE_GROUP_OFFSET: Audited("clone_offset", "group", "destGroup", others=("srcGroup", "topic")),
    R.RESUME_CHECK_HALF_MESSAGE: Audited("resume_check", "message", "msgId", others=("topic",)),
    R.UPDATE_BROKER_CONFIG: Audited("update", "config"),
    R.DELETE_EXPIRED_COMMITLOG: Audited("clean", "store"),
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
# Brokers do these every few seconds. Only what is refused leaves a record: a request in another broker's
# name.
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
    """The handler of an audited code, with one record a request."""
    audited = BROKER[code]

    def handle(command: Command, channel: Channel) -> Answer:
        begun = _Begun(parts, audited, command)
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
        begun = _Begun(parts, audited, command)
        # A long list is read again by the handler: what came meanwhile is handled first
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
        finally:  # also where the broker stops in this turn: the change is made
            _note_answer(command, channel, begun, answer)
        return answer

    def _note_answer(command: Command, channel: Channel, begun: _Begun, answer: Command | None) -> None:
        code = 0 if answer is None else answer.code
        pairs, compared = begun.compared()
        detail = begun.detail | compared | (begun.gone if not code else {})
        if answer is not None and code and answer.remark:
            detail["said"] = answer.remark[:MAX_SAID_CHARACTERS]
        _note(parts, command, channel, audited, begun.name, detail, _outcome(code))
        if not code:
            for part in _parts_of(begun.names, detail, pairs):
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
    """Note what the name server answered: each change, and each claim that was refused. A channel of None is
    this process; `before` has what was there."""
    audited = NAME_SERVER.get(command.code)
    if audited is None and answer.code:
        audited = NAME_SERVER_WHEN_REFUSED.get(command.code)
    if audited is None or channel is None:
        return
    names, detail = _subject(audited, command)
    if answer.code and answer.remark:
        detail["said"] = answer.remark[:MAX_SAID_CHARACTERS]
    if not answer.code:
        detail |= _of_name_server(command, answer, before)
    changes.note(
        _record(now_ms, command, channel, audited, names[0] if names else "", detail, _outcome(answer.code))
    )


def _of_name_server(command: Command, answer: Command, before: dict) -> dict:
    """What a change of the name server's did: a value before and after, or the number of topics that its
    answer gives."""
    if "before" in before:
        old = before["before"]
        new = (command.fields or {}).get("value", "") if command.code == R.PUT_KV_CONFIG else None
        shown = [value if value is None else value[:MAX_SAID_CHARACTERS] for value in (old, new)]
        # Two long values that differ further on would look like no change.
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
    """Note a topic or a group that was made because a client's request names it."""
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


def _subject(audited: Audited, command: Command) -> tuple[list[str], dict]:
    """What a request names, and what its record keeps of it, as far as it can be read; a request may lack
    anything."""
    fields = command.fields or {}
    detail: dict = {field: fields[field][:MAX_SAID_CHARACTERS] for field in audited.others if field in fields}
    if audited.rows is not None:
        list_name, kept = audited.rows
        rows = _items_of(command.body, list_name)
        detail |= (
            {"body_bytes": len(command.body)}
            if rows is None
            else {
                list_name: [
                    {name: text_excerpt(row.get(name, ""), MAX_SAID_CHARACTERS) for name in kept}
                    for row in rows[:MAX_NAMES]
                ]
            }
        )
    if audited.kind == "config":
        detail |= _keys_in(command.body)
    if audited.items is None:
        return [str(fields.get(audited.name, ""))[:MAX_NAME_CHARACTERS]], detail
    names = _names_in(command.body, *audited.items)
    if names is None:
        return [], detail | {"body_bytes": len(command.body)}
    if len(names) > 1:
        characters = accumulate(len(name) + 4 for name in names[:MAX_NAMES])
        detail |= {
            "names": [
                name
                for name, length in zip(names, characters, strict=False)
                if length <= MAX_NAMES_CHARACTERS
            ],
            "items": len(names),
        }
    return names, detail


def _names_in(body: bytes, list_name: str, name: str) -> list[str] | None:
    """The names of the items of a body; None where they are not read."""
    items = _items_of(body, list_name)
    return (
        None if items is None else [text_excerpt(item.get(name, ""), MAX_NAME_CHARACTERS) for item in items]
    )


def _keys_in(body: bytes) -> dict:
    """The first keys of a body of lines `key=value`, and how many of these lines are none. All else stays out
    of the record: it may be a secret."""
    lines = [line for line in body[:MAX_SETTINGS_BYTES].split(b"\n", MAX_NAMES)[:MAX_NAMES] if line.strip()]
    keys = [setting[1].decode() for line in lines if (setting := _SETTING.match(line))]
    return {"keys": keys} | ({"other_lines": len(lines) - len(keys)} if len(keys) < len(lines) else {})


def _items_of(body: bytes, list_name: str) -> list[dict] | None:
    """The items of a body's list (of the body itself without a name); None for a body that is none. The
    handler follows the references.

    The router bounds the body's bytes and values before.
    """
    try:
        value = fastjson.loads_without_references(body)
    except PeerError:
        return None
    items = value.get(list_name) if list_name and isinstance(value, dict) else [value]
    if not isinstance(items, list):
        return None
    return [item for item in items if isinstance(item, dict)]


@dataclass(frozen=True, slots=True)
class _Of:
    """One fact, or those of several items; a record shows how each was before and after. `more` items were
    not looked at."""

    facts: dict
    is_one: bool = False
    more: int = 0


class _Begun:
    """What a record says of a request before it is handled: `gone` is what goes with its subject where it is
    done."""

    def __init__(self, parts: BrokerParts, audited: Audited, command: Command):
        self.names, self.detail = _subject(audited, command)
        self.name = self.names[0] if self.names else ""
        self._look = _look(parts, audited, command, self.names)
        self._before = self._look()
        takes_offsets = (
            audited.kind == "group"
            and audited.action == "delete"
            and str((command.fields or {}).get("cleanOffset", "")).lower() == "true"
        )
        self.gone = _offsets_of(parts, self.name) if takes_offsets else {}

    def has_changed(self) -> bool:
        """Whether the subject is another than before, as far as a record shows it."""
        after = self._look()
        return self._before is not None and after is not None and self._before.facts != after.facts

    def compared(self) -> tuple[dict[str, tuple], dict]:
        """Of several items those that differ, and what the record says of what was there before and after."""
        before, after = self._before, self._look()
        pairs = _differing(before, after)
        return pairs, _compared(before, after, pairs)


def _look(
    parts: BrokerParts, audited: Audited, command: Command, names: list[str]
) -> Callable[[], _Of | None]:
    """A function that says what is known of the subject now; None where a record shows no before and after.

    What it is about is chosen here, once, so that both answers are about the same.
    """
    name, topic = names[0] if names else "", (command.fields or {}).get("topic", "")
    if audited.action == "reset_offset":
        return lambda: _Of({"": parts.offsets.of(name, topic)}, is_one=True)
    if audited.action == "clone_offset":
        cloned = [topic] if topic else parts.offsets.topics_of((command.fields or {}).get("srcGroup", ""))
        return lambda: _Of(
            {one: parts.offsets.of(name, one) for one in cloned[:MAX_NAMES]},
            more=max(0, len(cloned) - MAX_NAMES),
        )
    if audited.action == "forbid":
        return lambda: _Of({"": {"readable": parts.groups.may_read(name, topic)}}, is_one=True)
    tables: dict[str, Callable[[str], TopicConfig | SubscriptionGroup | None]] = {
        "topic": parts.topics.get,
        "group": parts.groups.get,
    }
    config_of = tables.get(audited.kind)
    if config_of is None or audited.action not in ("update", "delete") or not name:
        return lambda: None
    compared = list(dict.fromkeys(names))
    more = max(0, len(compared) - MAX_COMPARED)
    return lambda: _Of(
        {one: _json_of(config_of(one)) for one in compared[:MAX_COMPARED]}, is_one=len(names) == 1, more=more
    )


def _json_of(config: TopicConfig | SubscriptionGroup | None) -> dict | None:
    return None if config is None else config.to_json()


def _offsets_of(parts: BrokerParts, group: str) -> dict:
    """The first offsets of a group, which go with it, and of how many topics it has some."""
    topics = parts.offsets.topics_of(group)
    shown = {topic: parts.offsets.of(group, topic) for topic in topics[:MAX_NAMES]}
    kept = _within_bound((topic, shown[topic]) for topic in shown)
    return (
        {"offsets": {topic: shown[topic] for topic in kept}, "offset_topics": len(topics)} if topics else {}
    )


def _differing(before: _Of | None, after: _Of | None) -> dict[str, tuple]:
    """Of several items those that differ, with the fields that do; nothing of a single fact."""
    if before is None or after is None or before.is_one:
        return {}
    return {
        name: _difference(old, after.facts[name])
        for name, old in before.facts.items()
        if old != after.facts[name]
    }


def _compared(before: _Of | None, after: _Of | None, pairs: dict[str, tuple]) -> dict:
    """`before` and `after` for a record: of several items as many of `pairs` as fit, and how many are not
    shown."""
    if before is None or after is None:
        return {}
    if before.is_one:
        ((_, old),), ((_, new),) = before.facts.items(), after.facts.items()
        return {"before": old, "after": new}
    kept = _within_bound(pairs.items())
    found: dict = {
        "before": {name: pairs[name][0] for name in kept},
        "after": {name: pairs[name][1] for name in kept},
    }
    not_shown = len(pairs) - len(kept) + before.more
    return found | ({"not_shown": not_shown} if not_shown else {})


@dataclass(slots=True)
class _Part:
    """What a further record of a long list says."""

    names: list[str] = field(default_factory=list)
    before: dict = field(default_factory=dict)
    after: dict = field(default_factory=dict)

    def detail(self, number: int, items: int) -> dict:
        changes = {"before": self.before, "after": self.after} if self.before else {}
        return {"part": number, "items": items, "names": self.names, **changes}


def _parts_of(names: list[str], first: dict, pairs: dict[str, tuple]) -> Iterator[dict]:
    """Details of further records for what the first one of a long list had no room for: each has names, and
    what was there before of those that were changed.

    A list that changed nothing has none. Of an item that the request made only its name is kept.
    """
    if len(names) < 2 or not (pairs or first.get("not_shown")):
        return
    named, shown = set(first["names"]), first.get("before", {})
    number, part, characters = 2, _Part(), 0
    for name in dict.fromkeys(names):
        old, new = pairs.get(name, (None, None))
        is_changed = old is not None and name not in shown
        if name in named and not is_changed:
            continue
        size = (
            len(name)
            + 4
            + (len(json.dumps((old, new), default=str)) + 2 * len(name) + 12 if is_changed else 0)
        )
        if part.names and characters + size > MAX_PART_CHARACTERS:
            yield part.detail(number, len(names))
            number, part, characters = number + 1, _Part(), 0
        part.names.append(name)
        characters += size
        if is_changed:
            part.before[name], part.after[name] = old, new
    if part.names:
        yield part.detail(number, len(names))


def _difference(old: dict | None, new: dict | None) -> tuple[dict | None, dict | None]:
    """The fields that differ; all of them where there was nothing, or is nothing now."""
    if old is None or new is None:
        return old, new
    differing = [key for key in old | new if old.get(key) != new.get(key)]
    return {key: old[key] for key in differing if key in old}, {
        key: new[key] for key in differing if key in new
    }


def _within_bound(items: Iterable[tuple[str, object]]) -> list[str]:
    """The names of the first items that together stay within MAX_PICTURE_CHARACTERS, at most MAX_NAMES."""
    kept, characters = [], 0
    for name, value in islice(items, MAX_NAMES):
        characters += 2 * len(name) + len(json.dumps(value, default=str))
        if characters > MAX_PICTURE_CHARACTERS:
            break
        kept.append(name)
    return kept


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
    """The sentence of a refusal; those of the store name files of this machine and are for the log."""
    return {"said": str(error)[:MAX_SAID_CHARACTERS]} if isinstance(error, Refusal | PeerError) else {}
