"""manage.py store cache: the parts of the files that are in memory."""

from dataclasses import dataclass

from broker_store.facts import cache as inside
from broker_store.facts.directory import StoreDirectory
from broker_store.units import document_of, fact_of, fields_of

FILES = {
    "kind": "KIND",
    "topic": "TOPIC",
    "queue_id": "QUEUE",
    "name": "NAME",
    "size": "SIZE",
    "resident_bytes": "IN MEMORY",
    "share": "SHARE",
}
GROUPS = {
    "group": "GROUP",
    "cold_reads": "COLD READS",
    "reads": "OF",
    "cold_per_s": "COLD/S",
    "per_s": "ALL/S",
    "lag_bytes": "LAG, BYTES",
    "lag_messages": "MESSAGES",
    "log_offset": "READS AT",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """A row of GROUPS. Without a broker only the offsets are known."""

    group: str
    cold_reads: int | None = None
    reads: int | None = None
    cold_per_s: float | None = None
    per_s: float | None = None
    lag_bytes: int | None = None
    lag_messages: int | None = None
    log_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cache(inside.Residency):
    """The facts that a running broker and the files of a store both give."""

    groups: list[_Group]


def add(verb) -> None:
    cache = verb(
        "cache",
        "the parts of the files that are in memory, the groups that read other parts, and their offsets",
    )
    cache.add_argument("--topic", help="only queue files of this topic")
    cache.add_argument(
        "--queue-files",
        type=int,
        default=50,
        help="most queue files that are shown, those with most in memory first (default: 50)",
    )


def cache(command, options) -> None:
    topic, most = options["topic"], min(max(options["queue_files"], 0), inside.MAX_QUEUE_FILES)

    def offline(store: StoreDirectory) -> inside.ResidencyOfFiles:
        return inside.of_files(store, most, topic)

    found = command.ask(
        options, lambda broker: broker.get("/store/cache", topic=topic, queue_files=most), offline
    )
    if command.as_json:
        command.show(found)
        return
    facts = fact_of(_Cache, found)
    command.show_table([fields_of(file) for file in facts.files], FILES, empty="There are no files.")
    command.stdout.write("")
    command.show_facts(
        document_of({**facts.totals, "memory": facts.memory})
        | ({} if facts.complete else {"not complete": facts.reason})
    )
    command.stdout.write("")
    command.show_table(
        [fields_of(group) for group in facts.groups], GROUPS, empty="No group has read anything."
    )


VERBS = {"cache": cache}
