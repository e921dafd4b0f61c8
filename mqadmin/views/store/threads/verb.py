"""manage.py store threads: what the threads and the loop did in the last minute."""

from __future__ import annotations

from broker_store.facts.distributions import Distribution
from broker_store.facts.threads import ThreadFacts
from broker_store.units import fact_of, fields_of

THREADS = {
    "name": "THREAD",
    "threads": "THREADS",
    "processor_ms": "PROCESSOR MS",
    "share": "SHARE",
    "waited_ms": "WAITED MS",
    "longest_step_us": "LONGEST STEP US",
}
WAITS = {
    "wait": "US OF WAITING",
    "p50": "HALF",
    "p99": "99 %",
    "p999": "99.9 %",
    "longest": "LONGEST EVER",
}
TURNS = {"at_ms": "BEGAN", "took_us": "TOOK US", "where": "WHERE"}
COLLECTIONS = {
    "generation": "GENERATION",
    "count": "COLLECTIONS",
    "total_us": "TOOK US",
    "longest_us": "LONGEST US",
}


def add(verb) -> None:
    verb("threads", "what each thread and the event loop did in the last minute")


def threads(command, options) -> None:
    found = command.ask(options, lambda broker: broker.get("/store/threads"))
    if command.as_json:
        command.show(found)
        return
    facts = fact_of(ThreadFacts, found)
    waits = [_row("for the loop", facts.loop), _row("for the interpreter lock", facts.lock)]
    command.show_table(waits, WAITS, empty="")
    for rows, columns in (
        (facts.loop.longest_turns, TURNS),
        (facts.collections, COLLECTIONS),
        (facts.threads, THREADS),
    ):
        command.stdout.write("")
        command.show_table(
            [fields_of(row) for row in rows], columns, empty="No turn of the loop was measured."
        )


def _row(wait: str, waits: Distribution) -> dict[str, object]:
    return {"wait": wait, **fields_of(waits.lately), "longest": waits.since_start.longest}


VERBS = {"threads": threads}
