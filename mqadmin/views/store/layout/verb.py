"""manage.py store layout: the places of topics in the log, and what a replay reads."""

from django.core.management.base import CommandError

from broker_store.facts.directory import StoreDirectory
from broker_store.facts.layout import LayoutOfEach, LayoutOfTopics, TopicLayout
from broker_store.units import fact_of, fields_of
from mqadmin.facts.layout import check, scan
from mqadmin.management.base import TIME_HELP, moment_option, with_integers

COLUMNS = {
    "topic": "TOPIC",
    "messages": "MESSAGES",
    "bytes": "BYTES",
    "page_bytes": "READ IN PAGES",
    "page_per_byte": "PER BYTE",
    "ahead_bytes": "WITH READ-AHEAD",
    "mean_jump": "JUMP",
    "p50_jump": "P50",
    "p99_jump": "P99",
    "resident_share": "IN MEMORY",
}


def add(verb) -> None:
    layout = verb(
        "layout",
        "how messages lie in the log and what reading them again costs; of every topic when none is named",
    )
    layout.add_argument("topic", nargs="?")
    layout.add_argument("--group", help="what a group reads, from where it stands")
    layout.add_argument(
        "--from-ms",
        "--from",
        dest="from_ms",
        type=moment_option,
        metavar="TIME",
        help=f"begin with what was stored then: {TIME_HELP}",
    )
    layout.add_argument("--from-offset", type=int, help="begin at this place of the log")


def layout(command, options) -> None:
    asked = {name: options[name] for name in ("topic", "group", "from_ms", "from_offset")}
    try:
        check(**asked)
    except ValueError as error:
        raise CommandError(str(error)) from None

    def offline(store: StoreDirectory) -> LayoutOfTopics | LayoutOfEach:
        return scan(store, store.group_offsets(), **asked)

    found = command.ask(options, lambda broker: broker.get("/store/layout", **asked), offline)
    if command.as_json:
        command.show(found)
    elif "items" in found:
        items = fact_of(LayoutOfEach, found).items
        command.show_table([_row(item) for item in items], COLUMNS, empty="There is no queue yet.")
    else:
        facts = with_integers(LayoutOfTopics, found)
        command.show_facts({name: value for name, value in facts.items() if name != "cell_bytes"})


def _row(item: TopicLayout) -> dict[str, object]:
    return fields_of(item) | {
        "page_bytes": item.pages.bytes,
        "page_per_byte": item.pages.per_byte,
        "ahead_bytes": item.ahead.bytes,
        "mean_jump": item.jumps.mean,
        "p50_jump": item.jumps.p50,
        "p99_jump": item.jumps.p99,
    }


VERBS = {"layout": layout}
