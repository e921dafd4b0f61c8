"""manage.py store hex: the bytes of any file of the store, with their fields."""

from collections.abc import Iterator

from broker_store.errors import FormatError
from broker_store.facts.bytes.pieces import FileBytes
from broker_store.facts.bytes.place import KINDS, MAX_BYTES, Place
from broker_store.facts.bytes.viewer import Viewer
from broker_store.facts.directory import StoreDirectory, hex_dump
from broker_store.facts.pointers import Pointer
from broker_store.formats import record
from broker_store.rest.documents import message_document
from broker_store.units import fact_of, fields_of


def add(verb) -> None:
    hexed = verb("hex", "the bytes of any file, with their fields and the places to which they point")
    hexed.add_argument("position", type=int, nargs="?", help="the same as --offset")
    hexed.add_argument("--kind", choices=KINDS, default="commitlog")
    hexed.add_argument(
        "--offset",
        type=int,
        help="position in the log, the queue or the timer log; in one file for the others",
    )
    hexed.add_argument("--topic", help="of a consume queue")
    hexed.add_argument("--queue", type=int, default=0, help="of a consume queue")
    hexed.add_argument("--unit", type=int, help="offset in the queue")
    hexed.add_argument("--name", default="", help="of an index file; the newest when absent")
    hexed.add_argument("--slot", type=int, help="of an index file or of the timer wheel")
    hexed.add_argument("--entry", type=int, help="of an index file")
    hexed.add_argument(
        "--length",
        type=int,
        help=f"bytes, at most {MAX_BYTES}; the whole record, or a few units, when absent",
    )


def hex(command, options) -> None:
    offset = options["offset"] if options["position"] is None else options["position"]
    place = Place(
        options["kind"],
        offset,
        options["topic"] or "",
        options["queue"],
        options["unit"],
        options["name"],
        options["slot"],
        options["entry"],
        options["length"],
    ).check()
    asked = {name: value for name in Place.__slots__ if (value := getattr(place, name)) not in (None, "")}

    def offline(store: StoreDirectory) -> FileBytes:
        return Viewer(store).read(place)

    found = command.ask(options, lambda broker: broker.get("/store/bytes", **asked), offline)
    stretch = fact_of(FileBytes, found)
    message = _message(stretch) if place.kind == "commitlog" else None
    if command.as_json:
        command.show(found | {"message": message})
        return
    command.stdout.write("\n".join(_lines(stretch)))
    if message is not None:
        command.stdout.write("")
        command.show_facts(message)


def _lines(stretch: FileBytes) -> Iterator[str]:
    yield f"{stretch.file}, {stretch.length} bytes from {stretch.at} on"
    yield from hex_dump(bytes.fromhex(stretch.hex), stretch.at)
    for piece in stretch.pieces:
        yield ""
        yield ": ".join(filter(None, (f"{piece.at:>16,}  {piece.title}", piece.sentence)))
        width = max((len(field.title) for field in piece.fields), default=0)
        for field in piece.fields:
            yield f"{field.at:>16,}  {field.title:<{width}}  {field.value}{_arrow(field.pointer)}"
    for jump in stretch.jumps:
        yield f"{'':16}  {jump.title}{_arrow(jump.pointer)}" + (f" ({jump.why})" if jump.why else "")


def _arrow(pointer: Pointer | None) -> str:
    """Return the options of this verb that show the place to which a pointer points."""
    if pointer is None:
        return ""
    return "  → " + " ".join(f"--{name} {value}" for name, value in fields_of(pointer).items())


def _message(stretch: FileBytes) -> dict[str, object] | None:
    """Return the message of the first piece, if its whole record is shown and can be read."""
    try:
        return message_document(record.decode(bytes.fromhex(stretch.hex), log_offset=stretch.at))
    except FormatError:
        return None


VERBS = {"hex": hex}
