"""The bytes of a stretch as a page shows them: lines of runs, and fields with addresses."""

from __future__ import annotations

from urllib.parse import urlencode

from django.urls import reverse

from mqadmin.templatetags.units import moment_text

LINE = 16
SHOWN_BYTES = 4 << 10  # of one look on a page; more by REST and command
COLOURS = 8


def shown(look: dict) -> dict:
    """What the templates hex.html and fields.html take: the look with addresses, and the lines
    of its bytes."""
    number = 0
    for piece in look["pieces"]:
        for field in piece["fields"]:
            # Each field once a page by a name of its own, so that its bytes and its row find each other.
            field |= {
                "id": field["name"] if piece is look["pieces"][0] else f"{field['name']}-{number}",
                "colour": number % COLOURS,
            }
            field |= {"href": address(field["pointer"]), "from": field["at"] - piece["at"]}
            number += 1
    places = {name: look.get(name) and address(look[name]) for name in ("before", "behind")}
    jumps = [one | {"href": address(one["pointer"])} for one in look.get("jumps", ())]
    measured = (
        f"Read by position at {moment_text(look.get('at_ms'))} UTC; how far the store is written, "
        f"dispatched and on the disk was {look.get('source')}."
    )
    first = look["pieces"][0]
    is_message = first["what"] == "record" and first["tone"] != "bad"
    return {
        "look": look,
        "lines": lines(look),
        "jumps": jumps,
        "measured": measured,
        "says": first if first["sentence"] and (first["tone"] or not first["fields"]) else None,
        "message_at": first["at"] if is_message else None,
        **places,
    }


def address(pointer: dict | None) -> str:
    return "" if pointer is None else f"{reverse('bytes')}?{urlencode(pointer)}"


def lines(look: dict) -> list[dict]:
    """[{"at", "runs": [{"id", "title", "colour", "href", "first", "hex", "text"}], "pad"}]: a run is the
    bytes of one field in one line."""
    data, start = bytes.fromhex(look["hex"]), look["at"]
    width = len(f"{start + len(data):,}")
    owners: list[dict | None] = [None] * len(data)
    for piece in look["pieces"]:
        for field in piece["fields"]:
            first, last = max(field["at"] - start, 0), min(field["at"] + field["length"] - start, len(data))
            if last > first:
                owners[first:last] = [field] * (last - first)
    found, begun = [], set()
    for at in range(0, len(data), LINE):
        runs: list[dict] = []
        for place in range(at, min(at + LINE, len(data))):
            owner = owners[place]
            if not runs or runs[-1]["owner"] is not owner:
                runs.append({"owner": owner, "hex": [], "text": "", **_look_of(owner, begun)})
            runs[-1]["hex"].append(f"{data[place]:02x}")
            runs[-1]["text"] += chr(data[place]) if 0x20 <= data[place] < 0x7F else "·"
        for run in runs:
            run["hex"] = " ".join(run["hex"])
        found.append(
            {"at": f"{start + at:>{width},}", "runs": runs, "pad": " " * (3 * max(0, at + LINE - len(data)))}
        )
    return found


def _look_of(field: dict | None, begun: set[str]) -> dict:
    if field is None:
        return {"id": ""}
    is_first = field["id"] not in begun
    begun.add(field["id"])
    return {
        "id": field["id"],
        "title": field["title"],
        "colour": field["colour"],
        "href": field["href"],
        "first": is_first,
        "wrong": field["right"] is False,
    }
