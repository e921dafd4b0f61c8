"""The fields of everything that a store's files are made of: name, place, value in words, meaning, and what
it points to.

A field is a dict, ready for a page or for JSON:

    {"name", "title", "at", "length", "raw", "value", "meaning", "pointer", "right"}

`at` is a position in the file's sequence, `raw` the number that the bytes hold (None where they hold none),
`value` the same in words. `pointer` says where it leads, as the parameters of another look (`bytes.Place`),
and `right` whether it is what something else says it should be: True, False, or None where nothing does.
Bytes are never believed: what has no sense comes out as a field that says so, and not as an error.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from broker_store.errors import FormatError
from broker_store.formats import (
    checkpoint,
    index_file,
    queue_unit,
    record,
    timer_check,
    timer_log,
    timer_wheel,
)
from broker_store.formats.index_file import IndexGeometry
from broker_store.formats.layout import Layout
from broker_store.formats.message_id import host_text
from broker_store.formats.record import StoredMessage

Field = dict[str, Any]
Pointer = dict[str, Any]

_MEANINGS = {
    "record": {
        "total_size": "length of the whole record; the next one begins that much further on",
        "magic": "which version of the record this is",
        "body_crc": "CRC-32 of the body without its highest bit, checked whenever an old record is read",
        "queue_id": "the queue of the topic",
        "flag": "a number of the producer's own",
        "queue_offset": "place in the queue: the number of its unit there",
        "log_offset": "place in the commit log; a record that states another place is not believed",
        "sys_flag": "compression, transaction and address bits",
        "born_timestamp": "when the producer made it, by the producer's clock",
        "born_address": "address of the producer",
        "born_port": "port of the producer",
        "store_timestamp": "when the broker stored it",
        "store_address": "address of the broker",
        "store_port": "port of the broker",
        "reconsume_times": "how often a group has sent it back",
        "prepared_transaction_offset": "where its prepared half lies, 0 when it had none",
        "body_length": "length of the body",
        "body": "what the producer sent",
        "topic_length": "length of the topic's name",
        "topic": "name of the topic",
        "properties_length": "length of the properties",
        "properties": "name and value pairs: tag, keys, message id and the producer's own",
        "surplus": "bytes that belong to no field: the lengths in the record do not add up to its size",
    },
    "blank": {
        "total_size": "how much of the file is left, these bytes included",
        "magic": "says that the log goes on in the next file",
        "unused": "never read",
    },
    "unit": {
        "log_offset": "where the message's record begins in the commit log",
        "size": "length of that record",
        "tags_code": "hash of the message's tag, by which a read skips what a group does not want; the "
        "time of "
        "delivery in the topic of delayed messages",
    },
    "header": {
        "begin_timestamp": "store time of the first message in this file; the seconds of the entries count "
        "from it",
        "end_timestamp": "store time of the last message in this file",
        "begin_offset": "place in the log of the first message in this file",
        "end_offset": "place in the log of the last message in this file",
        "slots_used": "slots that hold at least one entry",
        "count": "number of the next entry; 1 in an empty file",
    },
    "slot": {"entry": "the newest entry whose hash falls into this slot; 0 when there is none"},
    "entry": {
        "key_hash": "hash of topic#key; what is left when it is divided by the number of slots says which "
        "slot's "
        "chain this belongs to",
        "log_offset": "where the message's record begins in the commit log",
        "seconds": "store time, in whole seconds since the file's first message",
        "previous": "the entry before it in the chain of this slot; 0 ends the chain",
    },
    "checkpoint": {
        "physic_msg_timestamp": "messages stored up to then are on the disk, in the commit log",
        "logics_msg_timestamp": "messages stored up to then are on the disk, in the consume queues",
        "index_msg_timestamp": "messages stored up to then are on the disk, in the index",
        "master_flushed_offset": "for replicas: how far the master's log is on the disk",
        "confirm_phy_offset": "for replicas: how far the log is confirmed",
        "logics_physical_offset": "Apache 5.5's own: how far the queues know the log",
    },
    "timer_unit": {
        "unit_size": "always 52",
        "previous": "the unit before it that is due in the same second; -1 ends the chain",
        "magic": "what it asks for: 1 deliver, 3 put on the wheel again, 5 delete another",
        "write_ms": "when it was put on the wheel",
        "delay_ms": "how long after that it is due",
        "log_offset": "where the message waits in the commit log",
        "size": "length of its record",
        "topic_hash": "hash of the topic it goes to",
        "reserved": "always 0",
    },
    "timer_blank": {
        "left": "how much of the file is left, these bytes included",
        "reserved": "always 0",
        "magic": "says that the timer log goes on in the next file",
    },
    "wheel_slot": {
        "time_s": "the second that this slot stands for; the slot counts only while that second is to come",
        "first": "the oldest unit of the second's chain in the timer log",
        "last": "the newest unit of the second's chain, where a reader begins",
        "count": "messages due in that second, less those asked to be deleted",
        "magic": "always 0",
    },
    "timercheck": {
        "read_ms": "seconds of the wheel before this are delivered",
        "log_flushed": "how far the timer log is on the disk",
        "queue_offset": "messages of the timer topic before this offset stand in the timer log",
        "master_queue_offset": "the same of a replica's master",
        "state_version": "which term of a replica's master wrote this",
        "timestamp": "when the numbers of the timer last changed",
        "counter": "how often they changed",
        "seal": "says that this broker wrote the longs before it",
        "seal_crc": "CRC-32 of the longs before it",
    },
}


def field(
    kind: str,
    name: str,
    at: int,
    length: int,
    value: str,
    raw: int | None = None,
    *,
    pointer: Pointer | None = None,
    right: bool | None = None,
) -> Field:
    return {
        "name": name,
        "title": name.replace("_", " "),
        "at": at,
        "length": length,
        "raw": raw,
        "value": value,
        "meaning": _MEANINGS[kind][name],
        "pointer": pointer,
        "right": right,
    }


def of_layout(
    kind: str, layout: Layout, buffer: bytes, at: int, say: Callable[[str, int], dict] | None = None
) -> list[Field]:
    """The fields of a fixed stretch whose bytes `buffer` begins with. `say(name, value)` gives what of a
    field is not its plain number."""
    starts = [*layout.offset.values(), layout.size]
    fields = []
    for number, (name, value) in enumerate(zip(layout.names, layout.unpack(buffer), strict=True)):
        told = {"value": f"{value:,}"} | (say(name, value) if say else {})
        fields.append(
            field(kind, name, at + starts[number], starts[number + 1] - starts[number], raw=value, **told)
        )
    return fields


def time_words(time_ms: int) -> str:
    """The number and the time in UTC that it stands for."""
    if not 0 < time_ms < 253_402_300_800_000:
        return f"{time_ms} (no time)"
    moment = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return f"{time_ms} ({moment.replace('+00:00', 'Z')})"


def to_log(offset: int) -> Pointer:
    return {"kind": "commitlog", "offset": offset}


def to_unit(topic: str, queue_id: int, unit: int) -> Pointer:
    return {"kind": "consumequeue", "topic": topic, "queue": queue_id, "unit": unit}


def to_entry(name: str, number: int) -> Pointer:
    return {"kind": "index", "name": name, "entry": number}


def to_slot(name: str, slot: int) -> Pointer:
    return {"kind": "index", "name": name, "slot": slot}


# The commit log


def record_fields(buffer: bytes, at: int) -> tuple[list[Field], str]:
    """Every field of the record whose bytes `buffer` begins with, at position `at` of the log, and what is
    wrong with it ("" for nothing).

    The buffer may end before the record does. A length that leads beyond the record ends the list with a
    surplus.
    """
    total_size, magic = record.HEAD.unpack(buffer)
    (sys_flag,) = record.SYS_FLAG.unpack(buffer, record.SYS_FLAG_AT)
    layout = record.FIXED[(sys_flag >> 4) & 3]
    size = min(total_size, len(buffer))
    if layout.size > size:
        return [_surplus(at, 0, size)], f"it is {size} bytes long, and its fields alone take {layout.size}"
    values = dict(zip(layout.names, layout.unpack(buffer), strict=True))
    trouble = _trouble(buffer, at)
    fields = []
    body = buffer[layout.size : layout.size + max(0, values["body_length"])]
    for name, start in layout.offset.items():
        fields.append(_record_field(name, values, at, start, layout, body))
    place = layout.size
    for name, length_name, prefix in (
        ("body", "", None),
        ("topic", "topic_length", record.TOPIC_LENGTH[magic]),
        ("properties", "properties_length", record.PROPERTIES_LENGTH),
    ):
        length = values["body_length"]
        if prefix is not None:
            if place + prefix.size > size:
                break
            (length,) = prefix.unpack(buffer, place)
            fields.append(field("record", length_name, at + place, prefix.size, f"{length:,}", length))
            place += prefix.size
        if length < 0 or place + length > size:
            break
        fields.append(
            field("record", name, at + place, length, _part_words(name, buffer[place : place + length]))
        )
        place += length
    if place < size:
        fields.append(_surplus(at, place, size - place))
    return fields, trouble


def _surplus(at: int, place: int, length: int) -> Field:
    return field("record", "surplus", at + place, length, f"{length:,} bytes", right=False)


def _trouble(buffer: bytes, at: int) -> str:
    """Why a reader would not take these bytes for a sound record; "" when it would."""
    try:
        record.decode(buffer, log_offset=at, max_size=len(buffer))
    except FormatError as error:
        return str(error)
    return ""


def _record_field(name: str, values: dict, at: int, start: int, layout: Layout, body: bytes) -> Field:
    starts = [*layout.offset.values(), layout.size]
    length, value = starts[starts.index(start) + 1] - start, values[name]
    raw, pointer, right = value if isinstance(value, int) else None, None, None
    words = f"{value:,}" if isinstance(value, int) else ""
    if name == "magic":
        words = f"{value & 0xFFFFFFFF:#010x} (version {2 if value == record.MAGIC_V2 else 1})"
    elif name == "body_crc":
        words, right = crc_words(value, body, values["body_length"])
    elif name == "log_offset":
        right = value == at
        words += "" if right else f" (WRONG: it lies at {at:,})"
    elif name in ("born_timestamp", "store_timestamp"):
        words = time_words(value)
    elif name in ("born_address", "store_address"):
        words = host_text((value, 0)).rpartition(":")[0]
    elif name == "sys_flag":
        words = f"{value} ({sys_flag_words(value)})"
    elif name == "prepared_transaction_offset" and value > 0:
        pointer = to_log(value)
    return field("record", name, at + start, length, words, raw, pointer=pointer, right=right)


def crc_words(stated: int, body: bytes, body_length: int) -> tuple[str, bool | None]:
    """The CRC that a record states and the one that its body has; (words, whether they agree)."""
    if len(body) != body_length:
        return f"{stated & 0xFFFFFFFF:#010x} (not checked: the body does not end within these bytes)", None
    found = record.body_crc(body)
    return (
        (f"{stated & 0xFFFFFFFF:#010x} (right)", True)
        if found == stated
        else (f"{stated & 0xFFFFFFFF:#010x} (WRONG: the body has {found:#010x})", False)
    )


def sys_flag_words(sys_flag: int) -> str:
    words = []
    if sys_flag & record.SYS_COMPRESSED:
        words.append("compressed")
    if sys_flag & record.SYS_BORN_IPV6:
        words.append("IPv6 producer")
    if sys_flag & record.SYS_STORE_IPV6:
        words.append("IPv6 broker")
    transaction = {
        record.TRANSACTION_PREPARED: "prepared",
        record.TRANSACTION_COMMIT: "committed",
        record.TRANSACTION_ROLLBACK: "rolled back",
    }
    words += [transaction[kind] for kind in (sys_flag & record.SYS_TRANSACTION_MASK,) if kind in transaction]
    return ", ".join(words) or "plain"


def _part_words(name: str, part: bytes) -> str:
    if name == "body":
        return f"{len(part):,} bytes"
    if name == "topic":
        return part.decode("utf-8", "replace")
    pairs = sum(1 for piece in part.split(b"\x02") if b"\x01" in piece)
    return f"{pairs} pairs"


def link_queue_offset(fields: list[Field], stored: StoredMessage) -> None:
    """Let the queue offset of a sound record lead to its unit, where it has one."""
    for one in fields:
        if one["name"] == "queue_offset" and stored.is_queued:
            one["pointer"] = to_unit(stored.topic, stored.queue_id, stored.queue_offset)


def blank_fields(buffer: bytes, at: int, left: int) -> list[Field]:
    """The blank that ends a file of which `left` bytes were left."""

    def say(name: str, value: int) -> dict:
        if name == "magic":
            return {"value": f"{value & 0xFFFFFFFF:#010x} (end of this file)"}
        return {
            "right": value == left,
            "value": f"{value:,}" + ("" if value == left else f" (WRONG: {left:,} are left)"),
        }

    fields = of_layout("blank", record.HEAD, buffer, at, say)
    unused = left - record.BLANK_BYTES
    return fields + (
        [field("blank", "unused", at + record.BLANK_BYTES, unused, f"{unused:,} bytes")] if unused else []
    )


# Queues and index


def unit_fields(buffer: bytes, at: int, topic: str) -> list[Field]:
    unit = queue_unit.decode(buffer)

    def say(name: str, value: int) -> dict:
        if name == "log_offset":
            return {"pointer": to_log(value) if unit.is_data and not unit.is_pre_blank else None}
        if name == "tags_code" and topic == queue_unit.SCHEDULE_TOPIC:
            return {"value": time_words(value)}
        return {}

    return of_layout("unit", queue_unit.LAYOUT, buffer, at, say)


def header_fields(buffer: bytes, at: int) -> list[Field]:
    def say(name: str, value: int) -> dict:
        if name.endswith("timestamp"):
            return {"value": time_words(value)}
        return (
            {"pointer": to_log(value)}
            if name.endswith("offset") and index_file.decode_header(buffer).count > index_file.FIRST_ENTRY
            else {}
        )

    return of_layout("header", index_file.HEADER, buffer, at, say)


def slot_fields(buffer: bytes, at: int, name: str, count: int) -> list[Field]:
    """A slot of the index file `name`, whose next entry will be number `count`."""

    def say(_: str, value: int) -> dict:
        if not value:
            return {"value": "0 (none)"}
        right = 0 < value < count
        return {
            "pointer": to_entry(name, value) if right else None,
            "right": right,
            "value": f"{value:,}" + ("" if right else f" (WRONG: the file has entries 1 to {count - 1:,})"),
        }

    return of_layout("slot", index_file.SLOT, buffer, at, say)


def entry_fields(
    buffer: bytes, at: int, name: str, number: int, shape: IndexGeometry, begin_ms: int
) -> list[Field]:
    def say(part: str, value: int) -> dict:
        if part == "key_hash":
            slot = value % shape.slots
            return {"value": f"{value} (slot {slot:,})", "pointer": to_slot(name, slot)}
        if part == "log_offset":
            return {"pointer": to_log(value)}
        if part == "seconds":
            return {
                "value": f"{value:,} ({time_words(begin_ms + value * 1000).partition('(')[2]}"
                if begin_ms > 0
                else f"{value:,}"
            }
        if not value:
            return {"value": "0 (the chain ends here)"}
        right = 0 < value < number
        return {
            "pointer": to_entry(name, value) if right else None,
            "right": right,
            "value": f"{value:,}" + ("" if right else " (WRONG: a chain goes to lower numbers)"),
        }

    return of_layout("entry", index_file.ENTRY, buffer, at, say)


# The small ones


def checkpoint_fields(buffer: bytes, at: int) -> list[Field]:
    return of_layout(
        "checkpoint",
        checkpoint.LAYOUT,
        buffer,
        at,
        lambda name, value: (
            {"value": time_words(value) if value else "0 (none yet)"} if name.endswith("timestamp") else {}
        ),
    )


def timer_unit_fields(buffer: bytes, at: int) -> list[Field]:
    unit = timer_log.decode(buffer)

    def say(name: str, value: int) -> dict:
        if name == "previous":
            return (
                {"value": "-1 (the chain ends here)"}
                if value < 0
                else {"pointer": {"kind": "timerlog", "offset": value}}
            )
        if name == "write_ms":
            return {"value": time_words(value)}
        if name == "delay_ms":
            return {
                "value": f"{value:,} (due {time_words(unit.slot_ms).partition('(')[2]}",
                "pointer": {
                    "kind": "timerwheel",
                    "slot": unit.slot_ms // timer_wheel.PRECISION_MS % timer_wheel.SLOTS,
                },
            }
        if name == "log_offset":
            return {"pointer": to_log(value)}
        if name == "magic":
            return {"value": f"{value} ({_timer_fate(unit)})"}
        return {"right": value == timer_log.SIZE} if name == "unit_size" else {}

    return of_layout("timer_unit", timer_log.LAYOUT, buffer, at, say)


def _timer_fate(unit) -> str:
    if unit.deletes:
        return "deletes another"
    return "goes on the wheel again" if unit.rolls else "is delivered"


def timer_blank_fields(buffer: bytes, at: int) -> list[Field]:
    return of_layout(
        "timer_blank",
        timer_log.BLANK,
        buffer,
        at,
        lambda name, value: (
            {"value": f"{value & 0xFFFFFFFF:#010x} (end of this file)"} if name == "magic" else {}
        ),
    )


def wheel_fields(buffer: bytes, at: int, slot: int, slots: int) -> list[Field]:
    def say(name: str, value: int) -> dict:
        if name == "time_s":
            right = value % slots == slot
            return {
                "value": time_words(value * 1000)
                + ("" if right else f" (WRONG: that second has slot {value % slots:,})"),
                "right": right,
            }
        return (
            {"pointer": {"kind": "timerlog", "offset": value} if value >= 0 else None}
            if name in ("first", "last")
            else {}
        )

    return of_layout("wheel_slot", timer_wheel.LAYOUT, buffer, at, say)


def timercheck_fields(buffer: bytes, at: int) -> list[Field]:
    def say(name: str, value: int) -> dict:
        if name in ("read_ms", "timestamp"):
            return {"value": time_words(value) if value else "0 (none yet)"}
        return (
            {"pointer": to_unit(timer_log.TIMER_TOPIC, 0, value - 1)}
            if name == "queue_offset" and value > 0
            else {}
        )

    fields = of_layout("timercheck", timer_check.LAYOUT, buffer, at, say)
    magic, crc = timer_check.SEALED.unpack(buffer, timer_check.LAYOUT.size)
    if magic == timer_check.SEAL_MAGIC:
        right, place = timer_check.is_sealed(buffer), at + timer_check.LAYOUT.size
        fields.append(field("timercheck", "seal", place, 4, f"{magic:#010x}", magic))
        fields.append(
            field(
                "timercheck",
                "seal_crc",
                place + 4,
                4,
                f"{crc:#010x} ({'right' if right else 'WRONG'})",
                crc,
                right=right,
            )
        )
    return fields
