"""manage.py store status."""

import time


def add(verb) -> None:
    verb("status", "positions, flags, what is behind").add_argument(
        "--watch", action="store_true", help="again each second, until stopped"
    )


def status(command, options) -> None:
    while True:
        command.show_facts(
            command.ask(options, lambda broker: broker.get("/store"), lambda store: store.status())
        )
        if not options["watch"]:
            return
        command.stdout.write("")
        time.sleep(1)


VERBS = {"status": status}
