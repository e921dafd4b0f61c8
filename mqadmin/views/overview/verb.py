"""manage.py store condition."""


def add(verb) -> None:
    verb("condition", "how the broker is: one sentence, and each thing that is not as it should be")


def condition(command, options) -> None:
    with command.broker() as broker:
        found = broker.get("/condition")
    lines = [f"{notice['severity']:<8} {notice['sentence']}" for notice in found["notices"]]
    command.show(found, "\n".join([f"{found['severity']}: {found['sentence']}", *lines]))


VERBS = {"condition": condition}
