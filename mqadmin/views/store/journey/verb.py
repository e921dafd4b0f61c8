"""manage.py store journey: the stops of one message."""

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from broker_store.facts.directory import StoreDirectory
from broker_store.facts.journey.journey import journey as journey_in
from broker_store.facts.journey.search import at_queue_offset, find
from broker_store.facts.journey.stop import Journey
from broker_store.facts.store_facts import FileFacts
from broker_store.rest.problems import Problem
from broker_store.units import fact_of
from mqadmin.management.base import cell

STATES = {
    "done": "done",
    "waiting": "waiting",
    "absent": "not there",
    "unknown": "not known",
    "wrong": "WRONG",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The place where a message is stored."""

    queue_offset: int
    log_offset: int


def add(verb) -> None:
    asked = verb(
        "journey", "where one message has been: bytes, disk, queue, index, readers, retries, dead letter"
    )
    asked.add_argument(
        "place",
        nargs="*",
        metavar="ID | TOPIC QUEUE OFFSET",
        help="a message id of either kind, or a place in a queue",
    )
    asked.add_argument("--log-offset", type=int, help="its position in the commit log")
    asked.add_argument("--topic", help="of a message id: without it every topic is searched")


def journey(command, options) -> None:
    place, log_offset, topic = options["place"], options["log_offset"], options["topic"] or ""
    if (log_offset is None) == (len(place) not in (1, 3)) or (
        len(place) == 3 and not (place[1].isdecimal() and place[2].isdecimal())
    ):
        raise Problem("invalid", "name one message: an ID, or TOPIC QUEUE OFFSET, or --log-offset N")

    def offline(store: StoreDirectory) -> Journey:
        if log_offset is not None:
            at = log_offset
        elif len(place) == 3:
            at = at_queue_offset(store, place[0], int(place[1]), int(place[2]))
        else:
            at = find(store, place[0], topic)
        return journey_in(store, FileFacts(store), at)

    def online(broker):
        if log_offset is not None:
            return broker.get("/store/journey", log_offset=log_offset)
        if len(place) == 3:
            at = _place_in_queue(broker, place[0], int(place[1]), int(place[2]))
            return broker.get("/store/journey", log_offset=at)
        return broker.get(f"/messages/{quote(place[0], safe='')}/journey", topic=topic or None)

    found = command.ask(options, online, offline)
    if command.as_json:
        command.show(found)
    else:
        command.stdout.write("\n".join(_lines(fact_of(Journey, found))))


def _place_in_queue(broker, topic: str, queue: int, offset: int) -> int:
    """Return the log offset of the message at a place in a queue of the running broker."""
    path = f"/topics/{quote(topic, safe='')}/queues/{queue}/messages"
    found = broker.get(path, offset=offset, limit=1).get("messages")
    place = fact_of(_Place, found[0]) if found else None
    if place is None or place.queue_offset != offset:
        raise Problem("message_not_found", f"queue {queue} of {topic} has no message at offset {offset:,}")
    return place.log_offset


def _lines(found: Journey) -> Iterator[str]:
    message = found.message
    yield (
        f"{message.message_id}: {message.topic}, queue {message.queue_id}, offset "
        f"{message.queue_offset} ({found.source})"
    )
    width = max(len(stop.title) for stop in found.stops)
    for stop in found.stops:
        when = "" if stop.at_ms is None else cell(stop.at_ms, "at_ms")
        yield f"{stop.title:<{width}}  {STATES[stop.state]:<9}  {when:<23}  {stop.sentence}"
    if message.keys_left_out:
        yield f"{message.keys_left_out:,} more keys were not looked up."
    if not found.complete:
        yield f"Perhaps not all: {found.reason}."


VERBS = {"journey": journey}
