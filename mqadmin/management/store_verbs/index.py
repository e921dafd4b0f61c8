"""manage.py store index, explain: the hash index."""

from broker_store.formats.names import check_topic
from mqadmin.management.base import cell

FAR_AWAY_MS = (1 << 63) - 1
COLUMNS = {"name": "NAME", "entries": "ENTRIES", "max_entries": "OF", "slots_used": "SLOTS USED", "slots": "OF", "begin_ms": "FROM", "end_ms": "TO"}


def add(verb) -> None:
    verb("index", "the index files and how full they are")
    explain = verb("explain", "each step of a lookup by key")
    explain.add_argument("topic")
    explain.add_argument("key")
    explain.add_argument("--from-ms", type=int, default=0)
    explain.add_argument("--to-ms", type=int, default=FAR_AWAY_MS)
    explain.add_argument("--limit", type=int, default=32)


def index(command, options) -> None:
    files = command.ask(options, lambda broker: broker.get("/store/index")["items"], lambda store: store.index())
    command.show_table(files, COLUMNS, empty="There are no index files.")


def explain(command, options) -> None:
    topic, key, begin, end, limit = check_topic(options["topic"]), options["key"], options["from_ms"], options["to_ms"], options["limit"]
    asked = {"topic": topic, "key": key, "from_ms": str(begin), "to_ms": str(end), "limit": limit}
    steps = command.ask(
        options,
        lambda broker: broker.post("/store/index/explain", asked)["items"],
        lambda store: store.explain(topic, key, begin, end, limit),
    )
    command.show(steps, "\n".join(_words(step) for step in steps))


def _words(step: dict) -> str:
    """One step of a lookup for people: its name, its numbers, and why."""
    numbers = ", ".join(f"{name.replace('_', ' ')} {cell(value, name)}" for name, value in step.items() if name not in ("step", "why"))
    return f"{step['step']:<6}{numbers}" + (f": {step['why']}" if numbers and "why" in step else step.get("why", ""))


VERBS = {"index": index, "explain": explain}
