"""The stops of a message itself: born, stored, on disk, in its queue, in the index."""

from __future__ import annotations

from broker_store.facts import references
from broker_store.facts.body_view import SHOWN_KEYS
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.journey.stop import State, Stop, stop
from broker_store.facts.pointers import CheckpointPointer, to_log
from broker_store.facts.references import EntryReference, UnitReference
from broker_store.facts.store_facts import StoreFacts
from broker_store.formats import record
from broker_store.formats.message_id import host_text
from broker_store.formats.record import StoredMessage


def born(message: StoredMessage) -> Stop:
    if message.born_timestamp <= 0:
        sentence = f"Made by a producer at {host_text(message.born_host)}, which gave no time."
        return stop("born", "Born", "unknown", sentence)
    sentence = f"Made by a producer at {host_text(message.born_host)}, by its clock."
    return stop("born", "Born", "done", sentence, at_ms=message.born_timestamp)


def stored(directory: StoreDirectory, message: StoredMessage) -> Stop:
    took_ms = message.store_timestamp - message.born_timestamp
    later = (
        "its producer gave no time"
        if message.born_timestamp <= 0
        else f"{took_ms:,} ms after it was born"
        if took_ms >= 0
        else f"{-took_ms:,} ms before it was born, by two clocks"
    )
    found, stated = record.body_crc(message.body), message.body_crc
    checked = (
        "right"
        if found == stated
        else f"WRONG: {stated & 0xFFFFFFFF:#010x} is stated, and the body has {found:#010x}"
    )
    name = next(
        (path.name for base, size, path in directory.log_files() if base <= message.log_offset < base + size),
        "",
    )
    return stop(
        "stored",
        "Stored",
        "done" if found == stated else "wrong",
        f"{message.size:,} bytes in commitlog/{name}, {later}; its CRC is {checked}.",
        at_ms=message.store_timestamp,
        offset=message.log_offset,
        pointer=to_log(message.log_offset),
    )


def on_disk(facts: StoreFacts, message: StoredMessage) -> Stop:
    known, end = facts.positions(), message.log_offset + message.size
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
        sentence = (
            f"In memory only: the log is on the disk up to {flushed:,}, {end - flushed:,} bytes "
            f"before its end."
        )
        return stop("disk", "On disk", "waiting", sentence, offset=flushed)
    sentence = f"The log is on the disk up to {flushed:,}"
    if covered is None or covered < end:
        sentence += ". The checkpoint does not cover it yet: a start after a crash reads it again."
        return stop("disk", "On disk", "done", sentence, offset=flushed)
    sentence += ", and the checkpoint covers it, with queues and index."
    return stop("disk", "On disk", "done", sentence, offset=flushed, pointer=CheckpointPointer())


def in_queue(directory: StoreDirectory, facts: StoreFacts, message: StoredMessage) -> Stop:
    found = references.unit_of(directory, facts, message)
    return stop(
        "queue",
        "In its queue",
        *_queue_words(facts, message, found),
        offset=message.queue_offset if message.is_queued else None,
        pointer=found.pointer,
    )


def _queue_words(facts: StoreFacts, message: StoredMessage, found: UnitReference) -> tuple[State, str]:
    if found.state == "unknown":
        return "waiting", f"Not yet: {found.why}."
    if found.state == "wrong":
        return "wrong", f"WRONG: {found.why}."
    if found.state == "absent":
        return "absent", f"Not there: {found.why}."
    span = facts.queue_span(message.topic, message.queue_id)
    where = f"Unit {message.queue_offset:,} of queue {message.queue_id} of {message.topic}"
    if span is not None and message.queue_offset < span[0]:
        return "absent", f"{where} is before the queue's minimum, which is {span[0]:,}: no reader gets it."
    if span is not None and message.queue_offset >= span[1]:
        return (
            "waiting",
            f"{where} is after the queue's end, which is {span[1]:,}: no reader gets it yet.",
        )
    return "done", f"{where}; {found.why}."


def in_index(directory: StoreDirectory, facts: StoreFacts, message: StoredMessage) -> list[Stop]:
    """Return a stop for each entry that the message should have in the index."""
    entries = references.entries_of(directory, facts, message, SHOWN_KEYS)
    if entries:
        return [_indexed(entry) for entry in entries]
    return [
        stop(
            "index",
            "In the index",
            "absent",
            "It has no message id, no key and no tag, so there is nothing to find it by.",
        )
    ]


def _indexed(entry: EntryReference) -> Stop:
    title = f"Indexed by {entry.of}"
    if entry.state != "there" or entry.number is None or entry.slot is None:
        state: State = "unknown" if entry.state == "unknown" else "absent"
        if entry.why == references.NOT_DISPATCHED:
            state = "waiting"
        return stop("index", title, state, f"{entry.text}: {entry.why}.", pointer=entry.pointer)
    newer = f"more than {references.MAX_NEAR:,}" if entry.depth is None else f"{entry.depth - 1:,}"
    deep = (
        "the newest of its chain"
        if entry.depth == 1
        else f"{newer} newer {'entry' if entry.depth == 2 else 'entries'} before it in the chain"
    )
    return stop(
        "index",
        title,
        "done",
        f"{entry.text}: entry {entry.number:,} of {entry.file}, slot {entry.slot:,}, {deep}.",
        offset=entry.number,
        pointer=entry.pointer,
    )
