"""The journey of one message: every stop that the store knows of, with its time, its place and the bytes that
show it.

    (where it came from) ─► born ─► stored ─► on disk ─► queue ─► index ─► readers ─► (what became of it)

    {"at_ms", "source", "message": {...}, "stops": [...], "complete", "reason"}

`message["keys"]` holds the first SHOWN_KEYS keys, and the index is asked for these alone; `keys_left_out`
counts the others.

A stop is {"stop", "title", "state", "at_ms", "offset", "sentence", "pointer", "log_offset"}. `state` says
what is known of it:

    done      it is so                             waiting   it will be so, or somebody has to do it yet
    absent    it is not there, and will not be     unknown   it cannot be told, and the sentence says why
    wrong     it is there and disagrees

`offset` is the number by which one finds it, `pointer` the bytes (see bytes.Place), `log_offset` another
record of the same message. Copies of a message (a retry, a dead letter, a delayed or prepared form and what
was made of it) carry its message id, so they are found by the index. A message without an id has no copies
that could be known. All of it is reading by position, bounded in steps and in time, and belongs into a
thread. What a consumer did with a message the store does not know; that is what traces are for, where clients
write them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from broker_store.errors import FormatError, NameError_, NotFoundError
from broker_store.facts import whereabouts
from broker_store.facts.body_view import SHOWN_KEYS
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.fields import Pointer, to_log
from broker_store.facts.knowing import Knowing
from broker_store.formats import index_file, properties, queue_unit, record, timer_log, traces
from broker_store.formats.compression import inflate
from broker_store.formats.message_id import decode_offset_id, host_text
from broker_store.formats.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    check_stored_topic,
    dead_letter_topic,
    retry_topic,
)
from broker_store.formats.record import StoredMessage

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"  # halves about which a producer was asked in vain
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
MOST_GROUPS = 32  # whose retries and dead letters are looked for
MOST_COPIES = 64
SEARCH_SECONDS = 0.5  # for copies, then the journey says that it is not complete

_FORMS = {queue_unit.SCHEDULE_TOPIC: "delayed", HALF_TOPIC: "prepared", timer_log.TIMER_TOPIC: "timed"}
_FORM_TITLES = {
    "delayed": "Delayed",
    "prepared": "Prepared",
    "timed": "Timed",
    "retry": "Sent back",
    "dead": "Given up",
    "real": "At its place",
    "unsettled": "Given up",
}


def stop(
    kind: str,
    title: str,
    state: str,
    sentence: str,
    *,
    at_ms: int | None = None,
    offset: int | None = None,
    pointer: Pointer | None = None,
    log_offset: int | None = None,
) -> dict:
    return {
        "stop": kind,
        "title": title,
        "state": state,
        "at_ms": at_ms,
        "offset": offset,
        "sentence": sentence,
        "pointer": pointer,
        "log_offset": log_offset,
    }


def find(directory: StoreDirectory, knows: Knowing, id: str, topic: str = "") -> int:
    """The log offset of a message by its offset message id, or by its message id and perhaps its topic.
    NotFoundError."""
    try:
        _, log_offset = decode_offset_id(id)
    except FormatError:
        log_offset = -1
    if log_offset >= 0 and whereabouts.message_at(directory, log_offset) is not None:
        return log_offset
    topics = [topic] if topic else sorted({name for name, _ in directory.queues()})
    found, _ = _of_id(directory, topics, id)
    if not found:
        raise NotFoundError(
            f"no message has the id {id:.60}"
            + (f" in topic {topic}" if topic else "; name its topic if it has one without a queue")
        )
    real = [stored for stored in found if stored.topic not in _FORMS]
    return (real or found)[0].log_offset


def at_queue_offset(directory: StoreDirectory, topic: str, queue_id: int, offset: int) -> int:
    """The log offset of the message at a place in a queue. NotFoundError."""
    place = offset * queue_unit.SIZE
    for base, size, path in directory.queue_files(check_stored_topic(topic), queue_id):
        if base <= place < base + size:
            with directory.disk.open_reader(path) as reader:
                unit = queue_unit.decode(
                    reader.read(place - base, queue_unit.SIZE).ljust(queue_unit.SIZE, b"\0")
                )
            if unit.is_data and not unit.is_pre_blank:
                return unit.log_offset
    raise NotFoundError(f"queue {queue_id} of {topic} has no message at offset {offset:,}")


def journey(directory: StoreDirectory, knows: Knowing, log_offset: int) -> dict:
    """See the module. NotFoundError when no record begins there that states this place."""
    stored = whereabouts.message_at(directory, log_offset)
    if stored is None:
        raise NotFoundError(f"no message begins at position {log_offset:,} of the log")
    copies, complete = _copies(directory, knows, stored)
    before = [copy for copy in copies if copy.log_offset < log_offset]
    behind = [copy for copy in copies if copy.log_offset > log_offset]
    everywhere = [*copies, stored]
    stops = [_copy(copy, everywhere, knows) for copy in before]
    stops += [
        _born(stored),
        _stored(directory, stored),
        _flushed(knows, stored),
        _queue(directory, knows, stored),
    ]
    stops += _index(directory, knows, stored)
    stops += _fate(knows, stored, behind) or _readers(knows, stored, behind)
    stops += [_copy(copy, everywhere, knows) for copy in behind]
    told, all_traces = _traces(directory, knows, stored)
    return {
        "at_ms": time.time_ns() // 1_000_000,
        "source": knows.source,
        "message": {
            "message_id": stored.message_id,
            "offset_message_id": stored.offset_id,
            "topic": stored.topic,
            "queue_id": stored.queue_id,
            "queue_offset": stored.queue_offset,
            "log_offset": log_offset,
            "tag": stored.tags,
            "keys": list(stored.keys[:SHOWN_KEYS]),
            "keys_left_out": max(0, len(stored.keys) - SHOWN_KEYS),
        },
        "stops": stops + told,
        "complete": complete and all_traces,
        "reason": ""
        if complete and all_traces
        else f"copies were looked for during {SEARCH_SECONDS:g} s, and there may be more",
    }


# Its own stops


def _born(stored: StoredMessage) -> dict:
    return stop(
        "born",
        "Born",
        "done",
        f"Made by a producer at {host_text(stored.born_host)}, by its clock.",
        at_ms=stored.born_timestamp,
    )


def _stored(directory: StoreDirectory, stored: StoredMessage) -> dict:
    took = stored.store_timestamp - stored.born_timestamp
    later = (
        f"{took:,} ms after it was born" if took >= 0 else f"{-took:,} ms before it was born, by two clocks"
    )
    found, crc = record.body_crc(stored.body), stored.body_crc
    state, checked = (
        ("done", "right")
        if found == crc
        else ("wrong", f"WRONG: {crc & 0xFFFFFFFF:#010x} is stated, and the body has {found:#010x}")
    )
    name = next(
        (path.name for base, size, path in directory.log_files() if base <= stored.log_offset < base + size),
        "",
    )
    sentence = f"{stored.size:,} bytes in commitlog/{name}, {later}; its CRC is {checked}."
    return stop(
        "stored",
        "Stored",
        state,
        sentence,
        at_ms=stored.store_timestamp,
        offset=stored.log_offset,
        pointer=to_log(stored.log_offset),
    )


def _flushed(knows: Knowing, stored: StoredMessage) -> dict:
    known, end = knows.positions(), stored.log_offset + stored.size
    flushed, covered = known.flushed, known.checkpoint_position
    if flushed is None:
        return stop(
            "disk",
            "On disk",
            "unknown",
            "It stands in the file. How far the log was synced is known to the broker that runs on "
            "it only, and this store was not closed in order.",
        )
    if flushed < end:
        return stop(
            "disk",
            "On disk",
            "waiting",
            f"In memory only: the log is on the disk up to {flushed:,}, {end - flushed:,} bytes "
            f"before its end.",
            offset=flushed,
        )
    if covered is None or covered < end:
        return stop(
            "disk",
            "On disk",
            "done",
            f"The log is on the disk up to {flushed:,}. The checkpoint does not cover it yet: a "
            f"start after a crash reads it again.",
            offset=flushed,
        )
    return stop(
        "disk",
        "On disk",
        "done",
        f"The log is on the disk up to {flushed:,}, and the checkpoint covers it, with queues and index.",
        offset=flushed,
        pointer={"kind": "checkpoint"},
    )


def _queue(directory: StoreDirectory, knows: Knowing, stored: StoredMessage) -> dict:
    found = whereabouts.unit_of(directory, knows, stored)
    place = {"offset": stored.queue_offset if stored.is_queued else None, "pointer": found.pointer}
    title = "In its queue"
    if found.state == "unknown":
        return stop("queue", title, "waiting", f"Not yet: {found.why}.", **place)
    if found.state in ("absent", "wrong"):
        return stop(
            "queue",
            title,
            found.state,
            f"{'WRONG' if found.state == 'wrong' else 'Not there'}: {found.why}.",
            **place,
        )
    span = knows.queue_span(stored.topic, stored.queue_id)
    where = f"Unit {stored.queue_offset:,} of queue {stored.queue_id} of {stored.topic}"
    if span is not None and stored.queue_offset < span[0]:
        return stop(
            "queue",
            title,
            "absent",
            f"{where} is before the queue's minimum, which is {span[0]:,}: no reader gets it.",
            **place,
        )
    if span is not None and stored.queue_offset >= span[1]:
        return stop(
            "queue",
            title,
            "waiting",
            f"{where} is behind the queue's end, which is {span[1]:,}: no reader gets it yet.",
            **place,
        )
    return stop("queue", title, "done", f"{where}; {found.why}.", **place)


def _index(directory: StoreDirectory, knows: Knowing, stored: StoredMessage) -> list[dict]:
    stops = []
    for entry in whereabouts.entries_of(directory, knows, stored, SHOWN_KEYS):
        title = f"Indexed by {entry.of}"
        if entry.state == "there":
            newer = f"more than {whereabouts.NEAR:,}" if entry.depth is None else f"{entry.depth - 1:,}"
            deep = (
                "the newest of its chain"
                if entry.depth == 1
                else f"{newer} newer {'entry' if entry.depth == 2 else 'entries'} before it in the chain"
            )
            stops.append(
                stop(
                    "index",
                    title,
                    "done",
                    f"{entry.text}: entry {entry.number:,} of {entry.file}, slot {entry.slot:,}, {deep}.",
                    offset=entry.number,
                    pointer=entry.pointer,
                )
            )
        else:
            stops.append(
                stop(
                    "index",
                    title,
                    "waiting" if entry.why == "it is not dispatched yet" else entry.state,
                    f"{entry.text}: {entry.why}.",
                    pointer=entry.pointer,
                )
            )
    return stops or [
        stop(
            "index",
            "In the index",
            "absent",
            "It has no message id, no key and no tag, so there is nothing to find it by.",
        )
    ]


def _readers(knows: Knowing, stored: StoredMessage, behind: list[StoredMessage]) -> list[dict]:
    """What each group that reads the topic did with it."""
    if not stored.is_queued:
        return []
    stops = [_reader(group, stored, behind) for group in knows.groups(stored.topic, stored.queue_id)]
    if not stops and not knows.knows_groups:
        return [
            stop(
                "group",
                "Read",
                "unknown",
                "Where groups stand is not known: this store has no readable config/consumerOffset.json.",
            )
        ]
    return stops or [
        stop(
            "group",
            "Read",
            "absent",
            "No group reads this topic: none has a position in it, and none that is connected asks for it.",
        )
    ]


def _reader(group: dict, stored: StoredMessage, behind: list[StoredMessage]) -> dict:
    name, at, online = group["group"], group["offset"], group["clients"]
    title = f"Read by {name}"
    wants = group["tags"] is None or stored.tags in group["tags"]
    if not wants:
        return stop(
            "group",
            title,
            "absent",
            f"Passed over: it wants {group['expression']}, and the message's tag is {stored.tags or 'none'}.",
            offset=at,
        )
    if at is None:
        return stop(
            "group",
            title,
            "unknown",
            "It has no position in this queue yet." + (_connected(online) if online else ""),
        )
    if at <= stored.queue_offset:
        ahead = stored.queue_offset - at
        before = (
            "It is the next of the queue."
            if not ahead
            else "1 message of the queue comes before it."
            if ahead == 1
            else f"{ahead:,} messages of the queue come before it."
        )
        return stop(
            "group", title, "waiting", before + ("" if online is None else _connected(online)), offset=at
        )
    returned = sum(copy.topic == retry_topic(name) and copy.reconsume_times > 0 for copy in behind)
    filtered = (
        " By an expression the broker cannot judge here, so it may have been passed over."
        if group["expression"] not in (None, "*", "") and group["tags"] is None
        else ""
    )
    sent_back = (
        f" It was sent back {returned:,} times since, as told below."
        if returned > 1
        else " It was sent back since, as told below."
        if returned
        else ""
    )
    return stop("group", title, "done", f"Done with: its position is {at:,}.{filtered}{sent_back}", offset=at)


def _connected(online: int) -> str:
    return (
        f" {online:,} of its clients {'is' if online == 1 else 'are'} connected."
        if online
        else " None of its clients is connected."
    )


def _fate(knows: Knowing, stored: StoredMessage, behind: list[StoredMessage]) -> list[dict]:
    """Of a message in a topic of the broker's own, what it waits for; such a topic has no readers."""
    form = _FORMS.get(stored.topic)
    return (
        []
        if form is None
        else [stop("waits", _form_title(form, stored), *_form_words(form, stored, knows, behind))]
    )


def _is_recall(stored: StoredMessage) -> bool:
    """Whether it lies on the timer wheel to have another message dropped."""
    return stored.topic == timer_log.TIMER_TOPIC and properties.TIMER_DELETE_KEY in stored.properties


def _form_title(form: str, stored: StoredMessage) -> str:
    return "Recall" if _is_recall(stored) else _FORM_TITLES[form]


def _form_words(
    form: str, stored: StoredMessage, knows: Knowing, others: list[StoredMessage]
) -> tuple[str, str]:
    """(state, sentence) of a message that is put aside for its real place."""
    real_topic = _named(stored, properties.REAL_TOPIC)
    goes = f"for {real_topic or 'a topic that it does not name'}"
    if _is_recall(stored):
        return (
            "done",
            f"Asks to take back {stored.properties[properties.TIMER_DELETE_KEY]}, which is {goes}: "
            f"that one is dropped when its time comes, if it waits still.",
        )
    later = [other for other in others if other.log_offset > stored.log_offset]
    # Once its real record is there, what it waited for is over, whoever can or cannot say so; so is one that
    # was put on the wheel again.
    is_over = any(
        other.topic in (real_topic, GIVEN_UP_TOPIC)
        or (form == "timed" and properties.TIMER_ROLL_TIMES in other.properties and not _is_recall(other))
        for other in later
    )
    fate = {"waits": False, "due_ms": None} if is_over else knows.fate(stored)
    if form == "delayed":
        words = f"Put aside {goes} by delay level {stored.queue_id + 1}"
    elif form == "prepared":
        asked = _number(stored, CHECK_TIMES)
        words = f"Prepared {goes}, to wait for its producer's word" + (
            f"; stored again to ask for it, for the {traces.ordinal(asked)} time" if asked else ""
        )
    else:
        words = f"Put on the timer wheel {goes}"
    due_ms = (fate or {}).get("due_ms") or (
        _number(stored, properties.TIMER_OUT_MS) if form == "timed" else None
    )
    words += f", due at {_clock(due_ms)}" if due_ms else ""
    if form == "timed" and not is_over and any(_takes_back(other, stored, real_topic) for other in later):
        words += ". It was recalled: it is not delivered, but dropped then"
    if fate is None or fate["waits"] is None:
        return "unknown" if form != "timed" else "done", f"{words}."
    return ("waiting", f"{words}.") if fate["waits"] else ("done", f"{words}. That is over.")


def _takes_back(recall: StoredMessage, stored: StoredMessage, real_topic: str | None) -> bool:
    """Whether a request to delete names this message, as either version of Apache's writes it."""
    return _is_recall(recall) and recall.properties[properties.TIMER_DELETE_KEY] in (
        stored.unique_key,
        f"{real_topic}+{stored.unique_key}",
    )


# Its copies


def _copies(
    directory: StoreDirectory, knows: Knowing, stored: StoredMessage
) -> tuple[list[StoredMessage], bool]:
    """Other records of the same message, in the order of the log, and whether these are all."""
    found, complete = [], True
    if stored.unique_key:
        topics, few = _topics(knows, [stored])
        found, complete = _of_id(directory, sorted(topics), stored.unique_key)
        # What was found may name topics that the message itself does not.
        more, still_few = _topics(knows, found)
        if more - topics:
            others, all_of_them = _of_id(directory, sorted(more - topics), stored.unique_key)
            found, complete = found + others, complete and all_of_them
        complete = complete and few and still_few
    half = stored.prepared_transaction_offset
    if half > 0 and all(copy.log_offset != half for copy in found):
        prepared = whereabouts.message_at(directory, half)
        found += [prepared] if prepared is not None and prepared.topic == HALF_TOPIC else []
    found = sorted(
        (copy for copy in found if copy.log_offset != stored.log_offset), key=lambda copy: copy.log_offset
    )
    return found[:MOST_COPIES], complete and len(found) <= MOST_COPIES


def _topics(knows: Knowing, messages: list[StoredMessage]) -> tuple[set[str], bool]:
    """Topics that may hold copies of messages, and whether none was left out."""
    named = (properties.REAL_TOPIC, properties.RETRY_TOPIC, properties.DLQ_ORIGIN_TOPIC)
    topics = (
        {GIVEN_UP_TOPIC, *_FORMS}
        | {one.topic for one in messages}
        | {topic for one in messages for name in named if (topic := _named(one, name))}
    )
    groups = {
        topic.removeprefix(prefix)
        for topic in topics
        for prefix in (RETRY_PREFIX, DLQ_PREFIX)
        if topic.startswith(prefix)
    }
    for topic in topics - {GIVEN_UP_TOPIC, *_FORMS}:
        groups.update(knows.group_names(topic))
    return topics | {
        of_group(group)
        for group in sorted(groups)[:MOST_GROUPS]
        for of_group in (retry_topic, dead_letter_topic)
    }, len(groups) <= MOST_GROUPS


def _of_id(directory: StoreDirectory, topics: list[str], key: str) -> tuple[list[StoredMessage], bool]:
    """Records of any of the topics with a message id, and whether these are all."""
    texts = [index_file.key_text(topic, key) for topic in topics]
    return _search(directory, texts, lambda stored: stored.unique_key == key and stored.topic in topics)


def _search(
    directory: StoreDirectory, texts: list[str], is_wanted: Callable[[StoredMessage], bool]
) -> tuple[list[StoredMessage], bool]:
    """The wanted records among those that the index has of some texts, in the order of the log, and whether
    the bounds left none out."""
    hashes, found, complete, until = (
        {index_file.key_hash(text) for text in texts},
        {},
        True,
        time.monotonic() + SEARCH_SECONDS,
    )
    for name, _, shape in reversed(directory.index_files()):
        if shape is None:
            complete = False
            continue
        with directory.disk.open_reader(directory.root / "index" / name) as reader:
            for hashed in hashes:
                for depth, _, entry in whereabouts.chain(reader, shape, hashed % shape.slots):
                    if depth > whereabouts.MOST_DEEP or len(found) > MOST_COPIES or time.monotonic() > until:
                        complete = False
                        break
                    if entry.key_hash == hashed and entry.log_offset not in found:
                        stored = whereabouts.message_at(directory, entry.log_offset)
                        if stored is not None and is_wanted(stored):
                            found[entry.log_offset] = stored
    return [found[at] for at in sorted(found)], complete


def _copy(copy: StoredMessage, others: list[StoredMessage], knows: Knowing) -> dict:
    """Another record of the same message as a stop, among all that there are."""
    place = {
        "at_ms": copy.store_timestamp,
        "offset": copy.log_offset,
        "pointer": to_log(copy.log_offset),
        "log_offset": copy.log_offset,
    }
    form = _FORMS.get(copy.topic)
    if form is not None:
        return stop(form, _form_title(form, copy), *_form_words(form, copy, knows, others), **place)
    if copy.topic == GIVEN_UP_TOPIC:
        return stop(
            "unsettled",
            _FORM_TITLES["unsettled"],
            "done",
            "Its producer was asked too often what became of it, and did not say.",
            **place,
        )
    for prefix, kind in ((RETRY_PREFIX, "retry"), (DLQ_PREFIX, "dead")):
        if copy.topic.startswith(prefix):
            group = copy.topic.removeprefix(prefix)
            where = f"Offset {copy.queue_offset:,} of queue {copy.queue_id} of {copy.topic}."
            if kind == "dead":
                return stop(
                    kind,
                    _FORM_TITLES[kind],
                    "done",
                    f"{_given_up(group, copy.reconsume_times)} {where}",
                    **place,
                )
            fate = knows.fate(copy) or {"waits": None}
            taken = {
                None: "Whether it was taken again is not known.",
                True: "It was not taken again yet.",
                False: "It was taken again since.",
            }[fate["waits"]]
            return stop(
                kind,
                _FORM_TITLES[kind],
                "waiting" if fate["waits"] else "done",
                f"{_sent_back(group, copy.reconsume_times)} {where} {taken}",
                **place,
            )
    return stop(
        "real",
        _FORM_TITLES["real"],
        "done",
        f"Queue {copy.queue_id} of {copy.topic}, offset {copy.queue_offset:,}.",
        **place,
    )


def _given_up(group: str, tries: int) -> str:
    if tries < 1:
        return f"{group} gave it up. How many tries it had is not stated."
    return f"{group} gave it up after {tries:,} {'try' if tries == 1 else 'tries'}."


def _sent_back(group: str, tries: int) -> str:
    """A record of a group's retry topic without a failed try was put there by a program: so dead letters are
    sent again."""
    return (
        f"By {group}, for the {traces.ordinal(tries)} time."
        if tries > 0
        else f"To {group} alone, by its retry topic; no failed try is counted, as when a dead letter is "
        f"sent again."
    )


# What its clients wrote


def _traces(directory: StoreDirectory, knows: Knowing, stored: StoredMessage) -> tuple[list[dict], bool]:
    if not stored.unique_key or stored.topic == knows.trace_topic:
        return [], True
    topic, key = knows.trace_topic, stored.unique_key
    found, complete = _search(
        directory, [index_file.key_text(topic, key)], lambda one: one.topic == topic and key in one.keys
    )
    bodies = [inflate(one.body, one.sys_flag) or b"" for one in found]
    events = traces.in_order(
        event for body in bodies for event in traces.decode(body) if event.message_id == key
    )
    return [
        stop(
            "trace",
            "Its client says",
            "done",
            f"{event.group} {event.words}"
            + (f", in {event.took_ms:,} ms." if event.took_ms is not None else "."),
            at_ms=event.at_ms,
        )
        for event in events
    ], complete


# Words


def _named(stored: StoredMessage, name: str) -> str | None:
    """The topic that a property names; None when it names none that could be: clients write properties."""
    try:
        return check_stored_topic(stored.properties.get(name, ""))
    except NameError_:
        return None


def _number(stored: StoredMessage, name: str) -> int | None:
    text = stored.properties.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _clock(time_ms: int) -> str:
    return (
        time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time_ms / 1000)) + f".{time_ms % 1000:03d} UTC"
        if 0 < time_ms < 253_402_300_800_000
        else f"{time_ms} ms"
    )
