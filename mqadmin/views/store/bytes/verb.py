"""manage.py store hex: the bytes of any file of the store, with their fields."""

from broker_store.errors import FormatError
from broker_store.facts.bytes import KINDS, MAX_BYTES, Place, Viewer
from broker_store.facts.directory import StoreDirectory, hex_dump
from broker_store.formats import record
from broker_store.rest.documents import message_document


def add(verb) -> None:
    hexed = verb("hex", "bytes of any file, with their fields and where they lead")
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

    def offline(store: StoreDirectory) -> dict:
        return Viewer(store).look(place)

    look = command.ask(options, lambda broker: broker.get("/store/bytes", **asked), offline)
    look["message"] = _message(look) if place.kind == "commitlog" else None
    if command.as_json:
        command.show(look)
        return
    command.stdout.write(
        "\n".join(
            [
                f"{look['file']}, {look['length']} bytes from {look['at']} on",
                *hex_dump(bytes.fromhex(look["hex"]), int(look["at"])),
            ]
        )
    )
    for piece in look["pieces"]:
        command.stdout.write(
            "\n" + ": ".join(filter(None, (f"{int(piece['at']):>16,}  {piece['title']}", piece["sentence"])))
        )
        width = max((len(field["title"]) for field in piece["fields"]), default=0)
        for field in piece["fields"]:
            command.stdout.write(
                f"{int(field['at']):>16,}  {field['title']:<{width}}  "
                f"{field['value']}{_arrow(field['pointer'])}"
            )
    for jump in look["jumps"]:
        command.stdout.write(
            f"{'':16}  {jump['title']}{_arrow(jump['pointer'])}"
            + (f" ({jump['why']})" if jump["why"] else "")
        )
    if look["message"] is not None:
        command.stdout.write("")
        command.show_facts(look["message"])


def _arrow(pointer: dict | None) -> str:
    """Where a pointer leads, as the options that go there."""
    return (
        "" if pointer is None else "  → " + " ".join(f"--{name} {value}" for name, value in pointer.items())
    )


def _message(look: dict) -> dict | None:
    """The message of the first piece, when all of its record is shown and a reader would take it."""
    try:
        return message_document(record.decode(bytes.fromhex(look["hex"]), log_offset=int(look["at"])))
    except FormatError:
        return None


VERBS = {"hex": hex}
