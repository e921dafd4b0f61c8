"""manage.py store hex: the bytes of the log."""

from broker_store.errors import FormatError
from broker_store.formats import record
from broker_store.inside.directory import MAX_HEX_BYTES, hex_dump
from broker_store.server.documents import message_document


def add(verb) -> None:
    hexed = verb("hex", "bytes of the commit log, and the message that begins there")
    hexed.add_argument("position", type=int, help="log offset")
    hexed.add_argument("--length", type=int, help=f"bytes, at most {MAX_HEX_BYTES}; the whole record when absent")


def hex(command, options) -> None:
    store, position = command.directory(options), options["position"]
    if options["length"]:
        raw = store.bytes_at(position, min(options["length"], MAX_HEX_BYTES))
    else:
        raw = store.record_at(position)
    try:
        message = message_document(record.decode(raw, log_offset=position))
    except FormatError as error:
        message = {"none": str(error)}
    if command.as_json:
        command.show({"position": position, "hex": raw.hex(), "message": message})
        return
    command.stdout.write("\n".join(hex_dump(raw[:MAX_HEX_BYTES], position)))
    command.stdout.write("")
    command.show_facts(message)


VERBS = {"hex": hex}
