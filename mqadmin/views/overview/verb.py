"""manage.py store condition."""

from broker_store.units import fact_of
from mqadmin.facts.condition import Condition
from mqadmin.process.program_name import with_program


def add(verb) -> None:
    verb("condition", "the condition of the broker: one sentence, and notices of what is wrong")


def condition(command, options) -> None:
    with command.broker() as broker:
        found = broker.get("/condition")
    facts = fact_of(Condition, found)
    lines = [f"{notice.severity:<8} {notice.sentence}" for notice in facts.notices]
    command.show(found, with_program("\n".join([f"{facts.severity}: {facts.sentence}", *lines])))


VERBS = {"condition": condition}
