"""manage.py store journey: the stops of one message."""

from urllib.parse import quote

from broker_store.facts import journey as inside
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.knowing import FromFiles
from broker_store.rest.problems import Problem
from mqadmin.management.base import cell

STATES = {
    "done": "done",
    "waiting": "waiting",
    "absent": "not there",
    "unknown": "not known",
    "wrong": "WRONG",
}


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
    asked.add_argument("--topic", help="of a message id: without it every topic is looked through")


def journey(command, options) -> None:
    place, log_offset, topic = options["place"], options["log_offset"], options["topic"] or ""
    if (log_offset is None) == (len(place) not in (1, 3)) or (
        len(place) == 3 and not (place[1].isdigit() and place[2].isdigit())
    ):
        raise Problem("invalid", "name one message: an ID, or TOPIC QUEUE OFFSET, or --log-offset N")

    def offline(store: StoreDirectory) -> dict:
        knows = FromFiles(store)
        if log_offset is not None:
            return inside.journey(store, knows, log_offset)
        if len(place) == 3:
            return inside.journey(
                store, knows, inside.at_queue_offset(store, place[0], int(place[1]), int(place[2]))
            )
        return inside.journey(store, knows, inside.find(store, knows, place[0], topic))

    def online(broker) -> dict:
        if log_offset is not None:
            return broker.get("/store/journey", log_offset=log_offset)
        if len(place) == 3:
            found = broker.get(
                f"/topics/{quote(place[0], safe='')}/queues/{place[1]}/messages", offset=place[2], limit=1
            )["messages"]
            if not found or found[0]["queue_offset"] != place[2]:
                raise Problem(
                    "message_not_found", f"queue {place[1]} of {place[0]} has no message at offset {place[2]}"
                )
            return broker.get("/store/journey", log_offset=found[0]["log_offset"])
        return broker.get(f"/messages/{quote(place[0], safe='')}/journey", topic=topic or None)

    found = command.ask(options, online, offline)
    if command.as_json:
        command.show(found)
        return
    message = found["message"]
    command.stdout.write(
        f"{message['message_id']}: {message['topic']}, queue {message['queue_id']}, offset "
        f"{message['queue_offset']} ({found['source']})"
    )
    width = max(len(stop["title"]) for stop in found["stops"])
    for stop in found["stops"]:
        when = "" if stop["at_ms"] is None else cell(stop["at_ms"], "at_ms")
        command.stdout.write(
            f"{stop['title']:<{width}}  {STATES[stop['state']]:<9}  {when:<23}  {stop['sentence']}"
        )
    if int(message["keys_left_out"]):
        command.stdout.write(f"{int(message['keys_left_out']):,} more keys were not looked up.")
    if not found["complete"]:
        command.stdout.write(f"Perhaps not all: {found['reason']}.")


VERBS = {"journey": journey}
