"""manage.py message: send, get, tail."""

import base64
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from broker_store.rest.answers import Message, NotStored, Pulled, Receipt, Searched, SeveralSent
from broker_store.rest.http import MAX_LIMIT
from broker_store.sql92.oddities import explained
from broker_store.units import Document, fact_of
from mqadmin.facts.topics import Queue
from mqadmin.management.base import TIME_HELP, BrokerCommand, cell, moment_option, printable
from mqadmin.process.rest_client import RestClient, RestError, segment

BATCH = 500  # messages sent in one request
WAIT_MS = 2_000  # of one long pull of `tail`; with several queues it goes round them


class Command(BrokerCommand):
    help = "Messages of the running broker."

    def verbs(self, add) -> None:
        send = add("send", "send a message, or several")
        send.add_argument("topic")
        send.add_argument("body", nargs="?", help="the text; without it standard input is sent")
        send.add_argument("--file", type=Path, help="send the bytes of a file")
        send.add_argument("--lines", action="store_true", help="each line of the input is a message")
        send.add_argument("--tag", default="")
        send.add_argument("--key", action="append", default=[], help="may be given several times")
        send.add_argument("--property", action="append", default=[], metavar="NAME=VALUE")
        send.add_argument("--queue", type=int, help="the queue; the broker chooses when absent")
        send.add_argument("--count", type=int, default=1, help="send it this number of times")
        send.add_argument(
            "--create",
            action="store_true",
            help="create the topic first, with 8 queues, if it does not exist",
        )
        get = add("get", "one message by its id, or messages with a key, at an offset or of a time")
        get.add_argument(
            "id", nargs="?", help="message id (with --topic it is found faster) or offset message id"
        )
        get.add_argument("--topic")
        get.add_argument("--key")
        get.add_argument("--queue", type=int)
        get.add_argument("--offset", type=int)
        get.add_argument(
            "--from",
            dest="from_ms",
            type=moment_option,
            metavar="TIME",
            help=f"with --topic, and perhaps --key: stored from then on, oldest first: {TIME_HELP}",
        )
        get.add_argument("--to", dest="to_ms", type=moment_option, metavar="TIME", help="stored up to then")
        get.add_argument(
            "--limit", type=int, default=32, help=f"at most so many; by key and the newest, up to {MAX_LIMIT}"
        )
        get.add_argument(
            "--sql",
            metavar="EXPRESSION",
            help="with --topic and times or --key: only messages that a SQL92 expression passes, as in "
            "\"a > 5 AND b = 'x'\"",
        )
        get.add_argument("--body", action="store_true", help="write only the body, byte for byte")
        tail = add("tail", "messages of a topic as they come, until stopped")
        tail.add_argument("topic")
        tail.add_argument("--queue", type=int, help="only this queue")
        tail.add_argument(
            "--from-start", action="store_true", help="begin at the lowest offset of each queue"
        )
        tail.add_argument("--count", type=int, help="end after this number of messages")

    def do_send(self, options) -> None:
        message = {
            "tag": options["tag"],
            "keys": options["key"],
            "properties": dict(_pair(text) for text in options["property"]),
        }
        if options["queue"] is not None:
            message["queue_id"] = options["queue"]
        messages = [message | _body(raw) for raw in _bodies(options)] * options["count"]
        if not messages:
            raise CommandError("there is nothing to send")
        path = f"/topics/{segment(options['topic'])}/messages"
        with self.broker() as broker:
            if options["create"]:
                _ensure(broker, options["topic"])
            if len(messages) == 1:
                answer = broker.post(path, messages[0])
                receipt = fact_of(Receipt, answer)
                self.show(
                    answer, f"{receipt.message_id} in queue {receipt.queue_id} at {receipt.queue_offset}"
                )
                return
            stored = 0
            for at in range(0, len(messages), BATCH):
                sent = fact_of(SeveralSent, broker.post(path, messages[at : at + BATCH]))
                stored += sent.stored
                if not sent.complete:
                    reason = next(one.problem for one in sent.results if isinstance(one, NotStored))
                    raise CommandError(
                        f"{stored} of {len(messages)} messages are stored, then: "
                        f"{reason.detail}. {reason.hint}"
                    )
        self.show({"stored": stored}, f"{stored} messages are stored.")

    def do_get(self, options) -> None:
        with self.broker() as broker:
            messages = self._find(broker, options)
        if options["body"]:
            self.stdout.flush()
            for message in messages:
                sys.stdout.buffer.write(_raw_body(fact_of(Message, message)))
            return
        if self.as_json:
            self.show(messages[0] if options["id"] else messages)
            return
        if not messages:
            raise CommandError("no message was found")
        for message in messages:
            self.show_facts(message)
            self.stdout.write("")

    def _find(self, broker: RestClient, options: dict[str, Any]) -> list[Document]:
        """Return the messages that the options name, as REST gives them."""
        topic = options["topic"]
        times = {name: options[name] for name in ("from_ms", "to_ms", "sql")}
        if options["sql"] is not None and (not topic or options["id"] or options["queue"] is not None):
            raise CommandError("--sql needs --topic, and perhaps --key, --from or --to")
        if options["sql"] is not None:
            if not options["sql"].strip():
                raise CommandError("--sql needs an expression, as in \"a > 5 AND b = 'x'\"")
            for oddity in explained(options["sql"]).oddities:
                self.stderr.write(f"--sql: {oddity}")
        if options["id"]:
            return [broker.get(f"/messages/{segment(options['id'])}", topic=topic)]
        if topic and options["key"]:
            return self._of_search(
                broker.get("/messages", topic=topic, key=options["key"], limit=options["limit"], **times)
            )
        if topic and options["queue"] is not None:
            return list(
                _of_queue(
                    broker,
                    f"/topics/{segment(topic)}/queues/{options['queue']}/messages",
                    options["offset"],
                    options["limit"],
                )
            )
        if topic:
            return self._of_search(
                broker.get(f"/topics/{segment(topic)}/messages", limit=options["limit"], **times)
            )
        raise CommandError(
            "give an id, or --topic with --key, with --queue and --offset, with --from, or alone for "
            "the newest"
        )

    def _of_search(self, answer: Document) -> list[Document]:
        """Return the messages; print on standard error why there may be more, or what is unusual."""
        found = fact_of(Searched, answer)
        if found.reason:
            self.stderr.write(found.reason if found.complete else f"There may be more: {found.reason}.")
        return found.messages

    def do_tail(self, options) -> None:
        topic, left = options["topic"], options["count"]
        with self.broker() as broker:
            queues = [fact_of(Queue, one) for one in broker.pages(f"/topics/{segment(topic)}/queues")]
            wanted = [queue for queue in queues if options["queue"] in (None, queue.queue_id)]
            if not wanted:
                raise CommandError(f"topic {topic} has no queue {options['queue']}")
            places = {
                queue.queue_id: (queue.min_offset if options["from_start"] else queue.max_offset) or 0
                for queue in wanted
            }
            # While some queue has messages, no pull waits; when none has, each queue is polled in turn.
            idle = False
            while left is None or left > 0:
                given = 0
                for queue_id in places:
                    wait_ms = max(50, WAIT_MS // len(places)) if idle else 0
                    limit = MAX_LIMIT if left is None else min(MAX_LIMIT, left)
                    if limit < 1:
                        break
                    path = f"/topics/{segment(topic)}/queues/{queue_id}/messages"
                    answer = broker.get(path, offset=places[queue_id], limit=limit, wait_ms=wait_ms)
                    page = fact_of(Pulled, answer)
                    places[queue_id] = page.next_offset
                    for message in page.messages:
                        self.show_line(message, _line(fact_of(Message, message)))
                    given += len(page.messages)
                    left = None if left is None else left - len(page.messages)
                    if page.messages:
                        idle = False
                idle = given == 0


def _ensure(broker: RestClient, topic: str) -> None:
    """Create the topic unless it exists."""
    try:
        broker.get(f"/topics/{segment(topic)}")
    except RestError as error:
        if error.code != "topic_not_found":
            raise
        broker.post("/topics", {"name": topic})


def _of_queue(broker: RestClient, path: str, offset: int | None, limit: int) -> Iterator[Document]:
    """Yield up to `limit` messages of a queue, page after page."""
    while limit > 0:
        page = fact_of(Pulled, broker.get(path, offset=offset, limit=min(MAX_LIMIT, limit)))
        yield from page.messages
        limit -= len(page.messages)
        if not page.messages:
            return
        offset = page.next_offset


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator and value):
        raise CommandError(f"--property {text}: expected NAME=VALUE")
    return name, value


def _bodies(options) -> list[bytes]:
    if options["file"] is not None:
        raw = options["file"].read_bytes()
    elif options["body"] is not None:
        raw = options["body"].encode()
    else:
        raw = sys.stdin.buffer.read()
    return [line for line in raw.split(b"\n") if line] if options["lines"] else [raw]


def _body(raw: bytes) -> Document:
    """Return the fields of a new message for these bytes."""
    try:
        return {"body": raw.decode()}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(raw).decode(), "body_encoding": "base64"}


def _raw_body(message: Message) -> bytes:
    return message.body.encode() if message.body_encoding == "utf-8" else base64.b64decode(message.body)


def _line(message: Message) -> str:
    tag = f" [{printable(message.tag)}]" if message.tag else ""
    return (
        f"{cell(message.store_time_ms, 'store_time_ms')}  "
        f"{message.queue_id}/{message.queue_offset}{tag}  {printable(message.body[:300])}"
    )
