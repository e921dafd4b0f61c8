"""manage.py store index, slots, chains, explain: the hash index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from broker_store.engine.status.store_state import IndexFileFacts
from broker_store.errors import NotFoundError
from broker_store.facts.chains import ChainKey, Chains
from broker_store.facts.chains import chains as chains_of
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.explain import ExplainedLookup, HashStep, LookupStep
from broker_store.facts.explain import explain as explain_in
from broker_store.facts.slots import HeatMap, heat_map
from broker_store.formats.index_file import FOR_EVER_MS, check_name
from broker_store.formats.names import check_topic
from broker_store.units import fact_of, fields_of
from mqadmin.management.base import TIME_HELP, cell, moment_option, printable

COLUMNS = {
    "name": "NAME",
    "entries": "ENTRIES",
    "max_entries": "OF",
    "slots_used": "SLOTS USED",
    "slots": "OF",
    "begin_ms": "FROM",
    "end_ms": "TO",
}
LEVELS = " ▁▂▃▄▅▆▇█"  # of a share, eighths
BAR = 40  # characters of the longest
MAX_KEY_TEXT = 60  # characters of a key
NOT_SHOWN = {"step", "why", "us", "total_us", "counts", "message_id"}  # with the numbers of a step


def add(verb) -> None:
    verb("index", "the index files and how full they are")
    for name, help in (
        ("slots", "heat map of an index file: which share of its slots is used"),
        ("chains", "chains of an index file by length, and the longest"),
    ):
        verb(name, help).add_argument("file", nargs="?", help="its name, 17 digits; the newest when absent")
    explain = verb("explain", "each step of a lookup by key")
    explain.add_argument("topic")
    explain.add_argument("key")
    explain.add_argument(
        "--from-ms", "--from", dest="from_ms", type=moment_option, default=0, metavar="TIME", help=TIME_HELP
    )
    explain.add_argument("--to-ms", "--to", dest="to_ms", type=moment_option, metavar="TIME", help=TIME_HELP)
    explain.add_argument(
        "--limit",
        type=int,
        default=64,
        help="entries that end the lookup, as maxMsgsNumBatch does (%(default)s)",
    )


def index(command, options) -> None:
    files = command.ask(
        options, lambda broker: list(broker.pages("/store/index")), lambda store: store.index()
    )
    command.show_table(files, COLUMNS, empty="There are no index files.")


def slots(command, options) -> None:
    _show_file(command, options, "slots", heat_map, lambda found: _heat_map(fact_of(HeatMap, found)))


def chains(command, options) -> None:
    _show_file(command, options, "chains", chains_of, lambda found: _chains(fact_of(Chains, found)))


def _show_file(
    command,
    options,
    part: str,
    scan: Callable[[StoreDirectory, str], object],
    lines: Callable[[dict[str, Any]], Iterator[str]],
) -> None:
    """Show what `scan` finds in the file that was named, or in the newest: as JSON, or as the lines of its
    document."""
    wanted = options["file"] and check_name(options["file"])

    def online(broker) -> object:
        files = [] if wanted else broker.pages("/store/index")
        name = wanted or _newest([fact_of(IndexFileFacts, file).name for file in files])
        return broker.get(f"/store/index/{name}/{part}")

    def offline(store: StoreDirectory) -> object:
        return scan(store, wanted or _newest([file.name for file in store.index()]))

    found = command.ask(options, online, offline)
    command.show(found, None if command.as_json else "\n".join(lines(found)))


def _newest(names: list[str]) -> str:
    if not names:
        raise NotFoundError("there are no index files")
    return names[-1]


def _heat_map(picture: HeatMap) -> Iterator[str]:
    cells, columns, slots, per_cell = (
        picture.cells or [],
        picture.columns,
        picture.slots,
        picture.cell_slots,
    )
    counted = picture.counted
    yield (
        f"Index file {picture.name}: {counted:,} of {slots:,} slots are used ({counted / slots:.1%}), "
        f"the header says {picture.slots_used:,}."
    )
    yield (
        f"{picture.entries:,} of {picture.max_entries:,} entries; as many different "
        f"keys would use {picture.expected_share:.1%}."
        f" Cells differ by {picture.spread:.2%} (standard deviation), by chance "
        f"{picture.expected_spread:.2%}."
    )
    yield from picture.findings
    yield ""
    # Two rows of cells are one of characters, which are twice as high as wide.
    for row in range(0, picture.rows, 2):
        line = ""
        for column in range(columns):
            pair = [n for n in (row * columns + column, (row + 1) * columns + column) if n < len(cells)]
            room = sum(min(per_cell, slots - n * per_cell) for n in pair)
            line += LEVELS[min(8, -(-8 * sum(cells[n] for n in pair) // room))] if room else ""
        yield line.rstrip()
    yield ""
    yield (
        f"A character is {2 * per_cell:,} slots: blank none used, ▁ up to an eighth, █ more than seven "
        f"eighths."
    )
    for share in picture.shares:
        if share.cells:
            yield f"{share.from_:>4.0%} to {share.to:>4.0%}  {share.cells:>6,} cells"


def _chains(found: Chains) -> Iterator[str]:
    slots, entries = found.slots, found.entries
    yield f"Index file {found.name}: {entries:,} entries in {slots:,} slots, {found.mean:.2f} a slot."
    if found.touched_by_hit is not None:
        yield (
            f"A lookup of a key that is there touches {found.touched_by_hit:.2f} entries (an even "
            f"hash: {found.even_touched_by_hit:.2f}),"
            f" of one that is not {found.touched_by_miss:.2f}."
        )
    yield from found.findings
    yield ""
    most = max(max(row.slots, row.expected) for row in found.lengths)
    yield f"{'LENGTH':>11}  {'SLOTS':>10}  {'EVEN':>12}"
    for row in found.lengths:
        low, high, have = row.from_, row.to, row.slots
        length = f"{low:,}" if low == high else f"{low:,}–{high:,}"
        expected = round(BAR * row.expected / most)
        bar = "█" * round(BAR * have / most)
        bar = (
            bar.ljust(expected) + "│" if len(bar) <= expected else bar[:expected] + "│" + bar[expected + 1 :]
        )
        yield f"{length:>11}  {have:>10,}  {row.expected:>12,.1f}  {bar}"
    yield "│ marks what an even hash would give."
    for chain in found.longest:
        keys = "; ".join(f"{key.entries:,} of {_key(key)}" for key in chain.keys)
        yield (
            f"slot {chain.slot:,}: {chain.entries:,} entries, {chain.foreign:,} "
            f"of {chain.looked_at:,} that were read are foreign: {keys}"
        )


def _key(key: ChainKey) -> str:
    return f"hash {key.hash}" if key.key is None else printable(f"{key.topic}#{key.key}"[:MAX_KEY_TEXT])


def explain(command, options) -> None:
    topic, key, begin, end, limit = (
        check_topic(options["topic"]),
        options["key"],
        options["from_ms"],
        options["to_ms"],
        options["limit"],
    )
    asked = {
        "topic": topic,
        "key": key,
        "from_ms": str(begin),
        "to_ms": None if end is None else str(end),
        "limit": limit,
    }
    steps = command.ask(
        options,
        lambda broker: broker.post_for_items("/store/index/explain", asked),
        lambda store: explain_in(store, topic, key, begin, FOR_EVER_MS if end is None else end, limit),
    )
    lines = [] if command.as_json else map(_words, fact_of(ExplainedLookup, {"items": steps}).items)
    command.show(steps, "\n".join(lines))


def _words(step: LookupStep) -> str:
    """Return one step of a lookup for people: its name, the time it took, its numbers, and why."""
    numbers = ", ".join(
        f"{name.replace('_', ' ')} {_number(value, name)}"
        for name, value in fields_of(step).items()
        if name not in NOT_SHOWN
    )
    why = "" if isinstance(step, HashStep) else printable(step.why)
    return f"{step.step:<10}{step.us:>8,.0f} µs  {numbers}{': ' if numbers and why else ''}{why}"


def _number(value: object, name: str) -> str:
    """Return a value as `cell` does. Digits that name something, as a hash or a slot, are not grouped."""
    return cell(f"{value}" if type(value) is int else value, name)


VERBS = {"index": index, "slots": slots, "chains": chains, "explain": explain}
