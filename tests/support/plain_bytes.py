"""Every field of a store's files as docs/spec/store-format.md has it, read with `struct` and nothing else:
slow, and obvious.

Each function gives [(name, position, length, number or None)] of what it reads; positions count over all
files of a sequence.
"""

from __future__ import annotations

import struct

RECORD_MAGICS = {0xDAA320A7: ">b", 0xDAA320AB: ">h"}  # how long the length of the topic is
BLANK = 0xCBD43194
NUMBERS = {"b": 1, "h": 2, "i": 4, "I": 4, "q": 8}


class Reading:
    """Fields one after the other in `data`, whose first byte is position `base`."""

    def __init__(self, data: bytes, at: int, base: int = 0):
        self.data, self.at, self.base, self.fields = data, at, base, []

    def number(self, name: str, letter: str) -> int:
        (value,) = struct.unpack_from(">" + letter, self.data, self.at)
        self.fields.append((name, self.base + self.at, NUMBERS[letter], value))
        self.at += NUMBERS[letter]
        return value

    def stretch(self, name: str, length: int) -> bytes:
        self.fields.append((name, self.base + self.at, length, None))
        self.at += length
        return self.data[self.at - length : self.at]

    def numbers(self, *names_and_letters: tuple[str, str]) -> list[tuple]:
        for name, letter in names_and_letters:
            self.number(name, letter)
        return self.fields


def record(data: bytes, at: int, base: int) -> list[tuple]:
    (sys_flag,) = struct.unpack_from(">i", data, at + 36)
    read = Reading(data, at, base)
    read.number("total_size", "i")
    magic = read.number("magic", "i") & 0xFFFFFFFF
    read.numbers(
        ("body_crc", "i"),
        ("queue_id", "i"),
        ("flag", "i"),
        ("queue_offset", "q"),
        ("log_offset", "q"),
        ("sys_flag", "i"),
        ("born_timestamp", "q"),
    )
    read.stretch("born_address", 16 if sys_flag & 0x10 else 4)
    read.numbers(("born_port", "i"), ("store_timestamp", "q"))
    read.stretch("store_address", 16 if sys_flag & 0x20 else 4)
    read.numbers(("store_port", "i"), ("reconsume_times", "i"), ("prepared_transaction_offset", "q"))
    read.stretch("body", read.number("body_length", "i"))
    read.stretch("topic", read.number("topic_length", RECORD_MAGICS[magic][1]))
    read.stretch("properties", read.number("properties_length", "h"))
    return read.fields


def log(data: bytes, base: int) -> list[tuple]:
    """All records of a log file, and the blank that ends it."""
    found, at = [], 0
    while at + 8 <= len(data):
        size, magic = struct.unpack_from(">iI", data, at)
        if magic in RECORD_MAGICS:
            found += record(data, at, base)
        elif magic == BLANK:
            read = Reading(data, at, base)
            read.numbers(("total_size", "i"), ("magic", "i"))
            if size > 8:
                read.stretch("unused", size - 8)
            return found + read.fields
        else:
            return found
        at += size
    return found


def record_places(data: bytes, base: int) -> list[tuple[int, int]]:
    """(position, size) of each record of a log file."""
    fields = log(data, base)
    ends = [
        number
        for number, field in enumerate(fields)
        if field[0] == "magic" and field[3] & 0xFFFFFFFF == BLANK
    ]
    stop = fields[ends[0] - 1][1] if ends else None
    return [(at, size) for name, at, _, size in fields if name == "total_size" and at != stop]


def queue(data: bytes, base: int) -> list[tuple]:
    """All units but those that are zero."""
    found = []
    for at in range(0, len(data), 20):
        if any(data[at : at + 20]):
            found += Reading(data, at, base).numbers(("log_offset", "q"), ("size", "i"), ("tags_code", "q"))
    return found


def index(data: bytes, slots: int) -> list[tuple]:
    """The header, the slots that are used, and the entries that the header counts."""
    read = Reading(data, 0)
    read.numbers(
        ("begin_timestamp", "q"),
        ("end_timestamp", "q"),
        ("begin_offset", "q"),
        ("end_offset", "q"),
        ("slots_used", "i"),
    )
    found, count = read.fields, read.number("count", "i")
    for slot in range(slots):
        if any(data[40 + slot * 4 : 44 + slot * 4]):
            found = found + Reading(data, 40 + slot * 4).numbers(("entry", "i"))
    for entry in range(1, count):
        at = 40 + slots * 4 + entry * 20
        found = found + Reading(data, at).numbers(
            ("key_hash", "i"), ("log_offset", "q"), ("seconds", "i"), ("previous", "i")
        )
    return found


def chain(data: bytes, slots: int, slot: int) -> list[int]:
    """Numbers of the entries of a slot's chain, newest first."""
    (number,) = struct.unpack_from(">i", data, 40 + slot * 4)
    found = []
    while number:
        found.append(number)
        (number,) = struct.unpack_from(">i", data, 40 + slots * 4 + number * 20 + 16)
    return found


def checkpoint(data: bytes) -> list[tuple]:
    names = (
        "physic_msg_timestamp",
        "logics_msg_timestamp",
        "index_msg_timestamp",
        "master_flushed_offset",
        "confirm_phy_offset",
        "logics_physical_offset",
    )
    return Reading(data, 0).numbers(*((name, "q") for name in names))


def timercheck(data: bytes) -> list[tuple]:
    """Apache's longs, and the seal of ours where it stands."""
    read = Reading(data, 0)
    read.numbers(
        *(
            (name, "q")
            for name in (
                "read_ms",
                "log_flushed",
                "queue_offset",
                "master_queue_offset",
                "state_version",
                "timestamp",
                "counter",
            )
        )
    )
    return read.numbers(("seal", "i"), ("seal_crc", "I")) if data[56:60] == b"TIME" else read.fields


def timer_log(data: bytes, base: int) -> list[tuple]:
    """Units to the first zeros."""
    found, at = [], 0
    while at + 52 <= len(data) and any(data[at : at + 52]):
        names = (
            ("unit_size", "i"),
            ("previous", "q"),
            ("magic", "i"),
            ("write_ms", "q"),
            ("delay_ms", "i"),
            ("log_offset", "q"),
            ("size", "i"),
            ("topic_hash", "i"),
            ("reserved", "q"),
        )
        found += Reading(data, at, base).numbers(*names)
        at += 52
    return found


def timer_wheel(data: bytes) -> list[tuple]:
    """The slots that were used."""
    found = []
    for at in range(0, len(data), 32):
        if any(data[at : at + 32]):
            found += Reading(data, at).numbers(
                ("time_s", "q"), ("first", "q"), ("last", "q"), ("count", "i"), ("magic", "i")
            )
    return found
