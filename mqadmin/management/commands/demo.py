"""manage.py demo: traffic to try the dashboard with; --clean removes its topics and groups.

Producers send orders, payments and page views, a few hundred a second. A customer's orders stay in order, and
a payment is visible once its transaction is committed. One group keeps up, and sometimes sends a message back
or gives one up; the other is slow, so that its lag grows.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import signal
import ssl
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from broker_store.client import (
    ClientError,
    Credentials,
    GiveUp,
    Outgoing,
    PushConsumer,
    RetryLater,
    TransactionProducer,
)
from broker_store.errors import MisuseError
from broker_store.formats.names import dead_letter_topic, retry_topic
from broker_store.units import fact_of
from mqadmin.facts.groups import Group
from mqadmin.facts.topics import Topic
from mqadmin.management import replica
from mqadmin.management.plain import PlainCommand
from mqadmin.process import run_file
from mqadmin.process.program_name import program
from mqadmin.process.rest_client import NotRunningError, RestClient, RestError, segment

ORDERS, PAYMENTS, VIEWS = TOPICS = ("demo-orders", "demo-payments", "demo-page-views")
QUICK, SLOW = GROUPS = ("demo-billing", "demo-reports")
QUEUES = 4
TURN_SECONDS = 0.05  # between two batches of sends
RETRY_SECONDS = 1.0  # between two tries while the broker does not answer
SHARES = ((ORDERS, 0.3), (PAYMENTS, 0.2), (VIEWS, 0.5))
SLOW_SECONDS = 0.1  # time of the slow group for a message
SLOW_CONCURRENCY = 2  # so the slow group consumes 20 messages a second
MESSAGES_PER_SEND_BACK = 400
MESSAGES_PER_DEAD_LETTER = 5_000
SHOPS = ("berlin", "paris", "madrid", "oslo")
PAGES = ("/", "/shoes", "/shoes/42", "/cart", "/checkout")


@dataclass(slots=True)
class Counts:
    """Messages so far."""

    sent: int = 0
    read: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GROUPS, 0))  # by group


class Command(PlainCommand):
    help = (
        "Creates three topics, sends a few hundred messages a second, and consumes them in two groups, of "
        "which one is slow; until it is stopped."
    )
    requires_system_checks = ()

    def add_arguments(self, parser) -> None:
        parser.add_argument("--data", metavar="DIR", help="the broker's data directory")
        parser.add_argument("--rate", type=int, default=300, help="messages a second (default: 300)")
        parser.add_argument("--seconds", type=float, help="stop after this time")
        parser.add_argument(
            "--credentials",
            metavar="FILE",
            help='{"accessKey": "..", "secretKey": ".."}, with which requests are signed (default: the '
            "broker's innerClientAuthenticationCredentials)",
        )
        parser.add_argument(
            "--tls",
            action="store_true",
            help="all connections have TLS, also if the broker takes plain ones (with tls.server.mode "
            "enforcing they have it anyway)",
        )
        parser.add_argument(
            "--replica",
            action="store_true",
            help="start a second broker on this machine, a slave that copies the log of the running one",
        )
        parser.add_argument("--clean", action="store_true", help="remove the demo's topics and groups")
        parser.add_argument("--json", action="store_true", help="print counts as JSON lines")

    def handle(self, *arguments: str, **options: Any) -> None:
        data = Path(options["data"] or settings.DATA_DIRECTORY)
        if not 1 <= options["rate"] <= 20_000:
            raise CommandError(f"--rate {options['rate']}: expected 1 to 20,000 messages a second")
        try:
            with RestClient.of_data_directory(data) as broker:
                if options["clean"]:
                    replica.remove(data)
                    self._clean(broker)
                    return
                run = run_file.read(data)
                if run is None or not run.nameserver:
                    raise CommandError(
                        "this broker runs without a name server of its own, and the demo needs one"
                    )
                _make_topics(broker)
                copy = replica.Replica(data, run, broker) if options["replica"] else None
        except (NotRunningError, RestError, MisuseError, OSError) as error:
            raise CommandError(str(error)) from None
        try:
            if copy is not None and not options["json"]:
                self.stdout.write(
                    "A second broker copies the log; Replication (Store) and "
                    f"`{program()} store replication` show it."
                )
            signer = self._credentials(options["credentials"], data)
            tls = run_file.tls_of(run, wanted=options["tls"])
            asyncio.run(self._live(run.nameserver, signer, tls, options))
        except MisuseError as error:
            raise CommandError(str(error)) from None
        except ClientError as error:
            raise CommandError(f"the broker did not answer: {error}") from None
        finally:
            if copy is not None:
                copy.stop()

    def _credentials(self, file: str | None, data: Path) -> Credentials | None:
        """Return what requests are signed with. Raises CommandError."""
        try:
            found = run_file.own_credentials(data) if file is None else run_file.credentials(Path(file))
        except MisuseError as error:
            raise CommandError(str(error)) from None
        if file is not None and found is None:
            raise CommandError(f"--credentials {file}: there is no such file")
        return found

    def _clean(self, broker: RestClient) -> None:
        groups = {fact_of(Group, found).name for found in broker.pages("/groups")}
        topics = {fact_of(Topic, found).name for found in broker.pages("/topics")}
        for group in groups.intersection(GROUPS):
            broker.delete(f"/groups/{segment(group)}", confirm=group)
        mine = {
            *TOPICS,
            *(retry_topic(group) for group in GROUPS),
            *(dead_letter_topic(group) for group in GROUPS),
        }
        for topic in sorted(topics & mine):
            broker.delete(f"/topics/{segment(topic)}", confirm=topic)
        self.stdout.write(
            f"{len(topics & mine)} topics and {len(groups.intersection(GROUPS))} groups of the demo "
            f"are deleted."
        )

    async def _live(
        self,
        nameserver: str,
        signer: Credentials | None,
        tls: ssl.SSLContext | None,
        options: dict[str, Any],
    ) -> None:
        # Messages are sent back on purpose: these need no log line
        logging.getLogger("broker_store.client").setLevel(logging.WARNING)
        counts = Counts()
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)

        async def bill(message) -> None:
            if message.attempt == 1 and random.randrange(MESSAGES_PER_SEND_BACK) == 0:
                raise RetryLater
            if random.randrange(MESSAGES_PER_DEAD_LETTER) == 0:
                raise GiveUp
            counts.read[QUICK] += 1

        async def report(message) -> None:
            await asyncio.sleep(SLOW_SECONDS)
            counts.read[SLOW] += 1

        quick = (
            PushConsumer(QUICK, nameserver, credentials=signer, tls=tls)
            .subscribe(ORDERS)
            .subscribe(PAYMENTS, "paid || refunded")
        )
        slow = PushConsumer(
            SLOW,
            nameserver,
            concurrency=SLOW_CONCURRENCY,
            consume_from="first",
            credentials=signer,
            tls=tls,
        ).subscribe(VIEWS)
        # A payment whose transaction was stored was made.
        async with (
            TransactionProducer(
                nameserver, "demo-shop", lambda message: True, credentials=signer, tls=tls
            ) as producer,
            quick,
            slow,
        ):
            await quick.start(bill)
            await slow.start(report)
            showing = asyncio.create_task(self._keep_showing(counts, options["json"]))
            try:
                await _send(producer, options["rate"], options["seconds"], counts, stopped, self._note)
            finally:
                showing.cancel()
        self._show(counts, options["json"], last=True)

    async def _keep_showing(self, counts: Counts, as_json: bool) -> None:
        if not as_json:
            self.stdout.write("The demo runs; Ctrl-C ends it, and --clean deletes its topics and groups.")
        while True:
            self._show(counts, as_json)
            await asyncio.sleep(1.0)

    def _note(self, text: str) -> None:
        self.stderr.write(("\n" if self.stderr.isatty() else "") + text)

    def _show(self, counts: Counts, as_json: bool, last: bool = False) -> None:
        if as_json:
            self.stdout.write(json.dumps({"sent": counts.sent, **counts.read}))
        elif last or sys.stdout.isatty():
            line = (
                f"{counts.sent:,} sent   {QUICK} {counts.read[QUICK]:,} read   {SLOW} "
                f"{counts.read[SLOW]:,} read, slowly"
            )
            self.stdout.write(("\r" if sys.stdout.isatty() else "") + line, ending="\n" if last else "")
        self.stdout.flush()


def _make_topics(broker: RestClient) -> None:
    for topic in TOPICS:
        try:
            broker.post("/topics", {"name": topic, "read_queues": QUEUES, "write_queues": QUEUES})
        except RestError as error:
            if error.code != "conflict":
                raise


async def _send(
    producer: TransactionProducer,
    rate: int,
    seconds: float | None,
    counts: Counts,
    stopped: asyncio.Event,
    note: Callable[[str], None],
) -> None:
    """Send messages at `rate` a second, in turns. Those that a slow or stopped broker could not take are not
    sent later."""
    began = turn = time.monotonic()
    number = owed = 0.0
    is_away = False
    while not stopped.is_set() and (seconds is None or turn - began < seconds):
        owed += rate * TURN_SECONDS
        sends = []
        for _ in range(int(owed)):
            number += 1
            sends.append(_one(producer, int(number)))
        owed -= int(owed)
        failed = [
            answer
            for answer in await asyncio.gather(*sends, return_exceptions=True)
            if isinstance(answer, BaseException)
        ]
        counts.sent += len(sends) - len(failed)
        for error in failed:
            if not isinstance(error, ClientError) or not counts.sent:
                raise error
        if bool(failed) != is_away:
            is_away = bool(failed)
            note(
                f"The broker does not answer ({failed[0]}); the demo goes on when it is back."
                if is_away
                else "The broker is back."
            )
        if is_away:
            turn += RETRY_SECONDS
        turn = max(turn + TURN_SECONDS, time.monotonic() - 1.0)
        try:
            await asyncio.wait_for(stopped.wait(), max(0.0, turn - time.monotonic()))
        except TimeoutError:
            pass


async def _one(producer: TransactionProducer, number: int) -> None:
    keys: tuple[str, ...]
    (topic,) = random.choices([topic for topic, _ in SHARES], [share for _, share in SHARES])
    customer = f"c-{random.randrange(500)}"
    if topic == ORDERS:
        body = {
            "order": number,
            "customer": customer,
            "amount": round(random.uniform(5, 400), 2),
            "currency": "EUR",
        }
        tag, keys = random.choice(("created", "changed")), (f"order-{number}", customer)
    elif topic == PAYMENTS:
        body = {"payment": number, "customer": customer, "amount": round(random.uniform(5, 400), 2)}
        tag, keys = random.choice(("paid", "paid", "refunded", "failed")), (f"payment-{number}", customer)
    else:
        body = {"page": random.choice(PAGES), "customer": customer, "ms": random.randrange(20, 900)}
        tag, keys = "view", (customer,)
    message = Outgoing(json.dumps(body).encode(), tag, keys, {"shop": random.choice(SHOPS)})
    if topic == PAYMENTS:
        async with producer.transaction(topic, message):
            pass  # a real shop would take the money here
    else:
        await producer.send(topic, message, ordering_key=customer if topic == ORDERS else None)
