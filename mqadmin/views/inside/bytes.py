"""The byte viewer: hex and text of any stretch of any file of the store, with its fields and where they
lead."""

from __future__ import annotations

import shlex
from urllib.parse import urlencode

from django.urls import reverse

from broker_store.errors import FieldError, NameError_, NotFoundError
from broker_store.facts.bytes import KINDS, Place
from mqadmin import clusters
from mqadmin.templatetags.units import moment_text
from mqadmin.views.asked import one_of, text, whole
from mqadmin.views.page import capital, draw, page, said

LINE = 16
SHOWN_BYTES = 4 << 10  # of one look on a page; more by REST and command
COLOURS = 8
NUMBERS = ("offset", "unit", "slot", "entry", "queue", "length")
# Which fields of the form belong to which kind of file, in the words of page.js; the rest have only an
# offset.
KIND_TITLES = {
    "commitlog": "Commit log",
    "consumequeue": "Consume queue",
    "index": "Index",
    "checkpoint": "Checkpoint",
    "timerlog": "Timer log",
    "timerwheel": "Timer wheel",
    "timercheck": "Timer checkpoint",
}


@page(takes={"kind": one_of(*KINDS), **dict.fromkeys(("topic", "name", *NUMBERS), text)})
async def bytes_page(request):
    cluster = clusters.current()
    asked = {name: request.GET.get(name, "").strip() for name in ("kind", "topic", "name", *NUMBERS)}
    asked["kind"] = asked["kind"] or KINDS[0]
    given = {name: value for name, value in asked.items() if value}
    context = {
        "tab": "bytes",
        "asked": asked,
        "kinds": KIND_TITLES.items(),
        "problem": "",
        "look": None,
        "rest": f"/api/v1/store/bytes?{urlencode(given)}",
    }
    context["command"] = "hex " + " ".join(f"--{name} {shlex.quote(value)}" for name, value in given.items())
    try:
        look = await cluster.look_at(place_of(asked), SHOWN_BYTES)
        return await draw(request, "inside/bytes.html", lambda: context | shown(look))
    except ValueError as error:
        return await draw(request, "inside/bytes.html", context | {"problem": f"{error}."}, status=400)
    except (FieldError, NameError_, NotFoundError) as error:
        context["problem"] = f"{capital(said(error))}."
    return await draw(request, "inside/bytes.html", context, status=404 if len(request.GET) else 200)


def place_of(asked: dict[str, str]) -> Place:
    """The place that a query string names. ValueError for what is no number."""
    numbers = {name: whole(asked[name], None) for name in NUMBERS}
    return Place(
        asked["kind"], topic=asked["topic"], name=asked["name"], **numbers | {"queue": numbers["queue"] or 0}
    )


def shown(look: dict) -> dict:
    """What the templates inside/hex.html and inside/fields.html take: the look with addresses, and the lines
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
