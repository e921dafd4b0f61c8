"""manage.py store memory: what the memory of the broker's process is used for."""

from __future__ import annotations

from broker_store.facts.memory import MemoryFacts
from broker_store.units import fact_of, fields_of

PARTS = {
    "name": "PART",
    "kind": "KIND",
    "bytes": "BYTES",
    "how": "MEASURED",
    "bound_bytes": "BOUND",
    "bound": "BY",
    "at_bound": "AT THE BOUND",
}


def add(verb) -> None:
    verb("memory", "what the memory of the broker's process is used for")


def memory(command, options) -> None:
    found = command.ask(options, lambda broker: broker.get("/store/memory"))
    if command.as_json:
        command.show(found)
        return
    facts = fact_of(MemoryFacts, found)
    command.show_table([fields_of(part) for part in facts.parts], PARTS, empty="")
    command.stdout.write(
        f"\n{facts.rss_bytes:,} bytes resident, {facts.maps:,} of {facts.max_maps:,} maps, "
        f"{facts.descriptors:,} of {facts.max_descriptors:,} descriptors; "
        f"{facts.limit_source}: {facts.limit_bytes:,} bytes"
    )
    if facts.warning:
        command.stdout.write(f"Warning: {facts.warning}")


VERBS = {"memory": memory}
