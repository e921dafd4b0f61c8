"""Records by an id or by a place in a queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from broker_store.errors import FormatError, NotFoundError
from broker_store.facts import references
from broker_store.facts.directory import StoreDirectory
from broker_store.formats import index_file, queue_unit, timer_log
from broker_store.formats.message_id import decode_offset_id
from broker_store.formats.names import check_stored_topic
from broker_store.formats.record import StoredMessage
from broker_store.formats.topics import HALF_TOPIC, SCHEDULE_TOPIC

WAITING_TOPICS = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, timer_log.TIMER_TOPIC})
MAX_COPIES = 64
SEARCH_SECONDS = 0.5  # of one search; after that its result is not complete


def find(directory: StoreDirectory, id: str, topic: str = "") -> int:
    """Return the log offset of a message by its offset message id, or by its message id, of all topics or of
    one. NotFoundError if there is none."""
    try:
        _, log_offset = decode_offset_id(id)
    except FormatError:
        log_offset = -1
    if log_offset >= 0 and references.message_at(directory, log_offset) is not None:
        return log_offset
    topics = [topic] if topic else sorted({name for name, _ in directory.queues()})
    found, _ = of_id(directory, topics, id)
    if not found:
        raise NotFoundError(
            f"no message has the id {id:.60}"
            + (f" in topic {topic}" if topic else "; name its topic if it has one without a queue")
        )
    real = [stored for stored in found if stored.topic not in WAITING_TOPICS]
    return (real or found)[0].log_offset


def at_queue_offset(directory: StoreDirectory, topic: str, queue_id: int, offset: int) -> int:
    """Return the log offset of the message at a place in a queue. NotFoundError if there is none."""
    place = offset * queue_unit.SIZE
    for base, size, path in directory.queue_files(check_stored_topic(topic), queue_id):
        if base <= place < base + size:
            with directory.disk.open_reader(path) as reader:
                raw = reader.read(place - base, queue_unit.SIZE).ljust(queue_unit.SIZE, b"\0")
            unit = queue_unit.decode(raw)
            if unit.is_data and not unit.is_pre_blank:
                return unit.log_offset
    raise NotFoundError(f"queue {queue_id} of {topic} has no message at offset {offset:,}")


def of_id(directory: StoreDirectory, topics: Collection[str], key: str) -> tuple[list[StoredMessage], bool]:
    """Return the records of any of the topics with a message id, and whether these are all."""
    texts = [index_file.key_text(topic, key) for topic in topics]
    return of_texts(directory, texts, lambda stored: stored.unique_key == key and stored.topic in topics)


def of_texts(
    directory: StoreDirectory, texts: list[str], is_wanted: Callable[[StoredMessage], bool]
) -> tuple[list[StoredMessage], bool]:
    """Return the wanted records among those that the index has for some texts, in the order of the log, and
    whether the bounds left none out."""
    hashes = {index_file.key_hash(text) for text in texts}
    found: dict[int, StoredMessage] = {}
    complete, until = True, time.monotonic() + SEARCH_SECONDS
    for name, _, shape in reversed(directory.index_files()):
        if shape is None:
            complete = False
            continue
        with directory.disk.open_reader(directory.root / "index" / name) as reader:
            for hashed in hashes:
                for depth, _, entry in references.chain(reader, shape, hashed % shape.slots):
                    is_over = depth > references.MAX_CHAIN or len(found) > MAX_COPIES
                    if is_over or time.monotonic() > until:
                        complete = False
                        break
                    if entry.key_hash == hashed and entry.log_offset not in found:
                        stored = references.message_at(directory, entry.log_offset)
                        if stored is not None and is_wanted(stored):
                            found[entry.log_offset] = stored
    return [found[at] for at in sorted(found)], complete
