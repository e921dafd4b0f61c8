"""manage.py topic: list, show, create, update, delete."""

from django.core.management.base import CommandError

from broker_store.broker.topics import MAX_QUEUES
from broker_store.formats.topics import SERVED_TYPES
from broker_store.units import fact_of
from mqadmin.facts.topics import Topic
from mqadmin.management.base import BrokerCommand
from mqadmin.process.rest_client import segment

PERMISSIONS = {"rw": 6, "r": 4, "w": 2}


class Command(BrokerCommand):
    help = "Topics of the running broker."

    def verbs(self, add) -> None:
        listing = add("list", "all topics")
        listing.add_argument("--kind", choices=("normal", "retry", "dlq", "system"))
        add("show", "one topic with its queues and readers").add_argument("topic")
        for verb, help in (("create", "create a topic"), ("update", "change the given settings of a topic")):
            parser = add(verb, help)
            parser.add_argument("topic")
            parser.add_argument("--queues", type=int, help="number of read and write queues")
            parser.add_argument("--read-queues", type=int, help="number of queues that are read")
            parser.add_argument("--write-queues", type=int, help="number of queues that are written")
            parser.add_argument("--perm", choices=PERMISSIONS, help="r: read, w: write, rw: both")
            parser.add_argument("--order", choices=("yes", "no"))
            parser.add_argument(
                "--type",
                choices=SERVED_TYPES,
                help="the messages that gRPC clients may send to it (NORMAL if none is given). MIXED: all; "
                "it needs the setting enableMixedMessageType",
            )
        delete = add("delete", "delete a topic and its messages")
        delete.add_argument("topic")
        delete.add_argument("--confirm", metavar="NAME", help="the topic's name again")

    def do_list(self, options) -> None:
        with self.broker() as broker:
            items = list(broker.pages("/topics", kind=options["kind"]))
        columns = {
            "name": "TOPIC",
            "kind": "KIND",
            "message_type": "TYPE",
            "read_queues": "READ",
            "write_queues": "WRITE",
            "messages": "MESSAGES",
            "in_per_s": "IN/S",
            "out_per_s": "OUT/S",
            "groups": "GROUPS",
        }
        self.show_table(items, columns, empty="There are no topics.")

    def do_show(self, options) -> None:
        with self.broker() as broker:
            self.show_facts(broker.get(f"/topics/{segment(options['topic'])}"))

    def do_create(self, options) -> None:
        with self.broker() as broker:
            made = broker.post("/topics", {"name": options["topic"]} | self._settings(options))
        topic = fact_of(Topic, made)
        self.show(made, f"Topic {topic.name} is created, with {topic.write_queues} queues.")

    def do_update(self, options) -> None:
        with self.broker() as broker:
            changed = broker.patch(f"/topics/{segment(options['topic'])}", self._settings(options))
        topic = fact_of(Topic, changed)
        self.show(
            changed,
            f"Topic {topic.name}: {topic.read_queues} queues to read, {topic.write_queues} to write, "
            f"permission {topic.perm}, {topic.message_type} messages.",
        )

    def do_delete(self, options) -> None:
        with self.broker() as broker:
            broker.delete(f"/topics/{segment(options['topic'])}", confirm=options["confirm"])
        self.show({"deleted": options["topic"]}, f"Topic {options['topic']} is deleted.")

    def _settings(self, options) -> dict[str, int | bool | str]:
        for name in ("queues", "read_queues", "write_queues"):
            if options[name] is not None and not 1 <= options[name] <= MAX_QUEUES:
                raise CommandError(
                    f"--{name.replace('_', '-')} {options[name]}: a topic has from 1 to {MAX_QUEUES} queues"
                )
        settings = {
            "read_queues": options["read_queues"] or options["queues"],
            "write_queues": options["write_queues"] or options["queues"],
            "perm": PERMISSIONS.get(options["perm"]),
            "order": None if options["order"] is None else options["order"] == "yes",
            "message_type": options["type"],
        }
        return {name: value for name, value in settings.items() if value is not None}
