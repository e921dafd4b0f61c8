"""The bytes of one record with its fields named: where each lies, what it means, and lines of hex to hover over."""

from __future__ import annotations

from broker_store.formats import record
from broker_store.formats.message_id import host_text
from broker_store.formats.record import StoredMessage
from broker_store.server.documents import time_text

LINE = 16
MAX_LINES = 256  # 4 KiB on the page; the rest by download
COLOURS = 8

_MEANINGS = {
    "total_size": "length of the whole record; the next one begins that much further on",
    "magic": "which version of the record this is",
    "body_crc": "CRC-32 of the body, checked when it is read after a crash",
    "queue_id": "the queue of the topic",
    "flag": "a number of the producer's own",
    "queue_offset": "place in the queue",
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
}


def record_fields(raw: bytes, stored: StoredMessage) -> list[dict]:
    """Every field of the record: name, where it begins, length, value as text, meaning, colour 0..COLOURS-1."""
    layout = record.FIXED[(stored.sys_flag >> 4) & 3]
    fields, at = [], 0
    values = layout.unpack(raw, 0)
    starts = [layout.offset[name] for name in layout.offset] + [layout.size]
    for number, (name, value) in enumerate(zip(layout.offset, values, strict=True)):
        fields.append(_field(name, starts[number], starts[number + 1] - starts[number], _value(name, value, stored)))
    at = layout.size
    for name, length, value in (
        ("body", len(stored.body), f"{len(stored.body):,} bytes"),
        ("topic_length", record.TOPIC_LENGTH[stored.magic].size, str(len(stored.topic.encode()))),
        ("topic", len(stored.topic.encode()), stored.topic),
        ("properties_length", record.PROPERTIES_LENGTH.size, str(len(stored.raw_properties))),
        ("properties", len(stored.raw_properties), f"{len(stored.properties)} pairs"),
    ):
        fields.append(_field(name, at, length, value))
        at += length
    for number, field in enumerate(fields):
        field["colour"] = number % COLOURS
    return fields


def _field(name: str, at: int, length: int, value: str) -> dict:
    return {"name": name, "title": name.replace("_", " "), "at": at, "length": length, "value": value, "meaning": _MEANINGS[name]}


def _value(name: str, value: object, stored: StoredMessage) -> str:
    if name == "magic":
        return f"{stored.magic & 0xFFFFFFFF:#010x} (version {stored.version})"
    if name == "body_crc":
        return f"{value:#010x} ({'right' if record.body_crc(stored.body) == value else 'WRONG'})"
    if name in ("born_timestamp", "store_timestamp"):
        return f"{value} ({time_text(value) or 'no time'})"
    if name == "born_address":
        return host_text(stored.born_host).rpartition(":")[0]
    if name == "store_address":
        return host_text(stored.store_host).rpartition(":")[0]
    if name == "sys_flag":
        return f"{value} ({_sys_flag_words(stored)})"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _sys_flag_words(stored: StoredMessage) -> str:
    words = []
    if stored.is_compressed:
        words.append("compressed")
    if stored.sys_flag & record.SYS_BORN_IPV6:
        words.append("IPv6 producer")
    if stored.sys_flag & record.SYS_STORE_IPV6:
        words.append("IPv6 broker")
    words += {record.TRANSACTION_PREPARED: ["prepared"], record.TRANSACTION_COMMIT: ["committed"], record.TRANSACTION_ROLLBACK: ["rolled back"]}.get(stored.transaction_type, [])
    return ", ".join(words) or "plain"


def byte_lines(raw: bytes, fields: list[dict]) -> dict:
    """{"lines": [{"hex_at", "runs": [{"field", "title", "colour", "hex", "text"}], "pad"}], "lines_cut": bytes left out}."""
    owner = []
    for number, field in enumerate(fields):
        owner += [number] * field["length"]
    lines = []
    end = min(len(raw), LINE * MAX_LINES)
    for at in range(0, end, LINE):
        runs: list[dict] = []
        for place in range(at, min(at + LINE, end)):
            number = owner[place]
            if not runs or runs[-1]["number"] != number:
                field = fields[number]
                runs.append({"number": number, "field": field["name"], "title": field["title"], "colour": field["colour"], "hex": [], "text": ""})
            runs[-1]["hex"].append(f"{raw[place]:02x}")
            runs[-1]["text"] += chr(raw[place]) if 0x20 <= raw[place] < 0x7F else "·"
        for run in runs:
            run["hex"] = " ".join(run["hex"])
        lines.append({"hex_at": f"{at:04x}", "runs": runs, "pad": " " * (3 * (at + LINE - end) if at + LINE > end else 0)})
    return {"lines": lines, "lines_cut": len(raw) - end}
