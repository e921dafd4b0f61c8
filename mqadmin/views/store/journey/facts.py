"""The stops of one message as its page shows them."""

from __future__ import annotations

from mqadmin.templatetags.units import moment_text
from mqadmin.views.store.bytes.facts import address

# How a state is shown: the tone of its pill, and the word in it.
STATES = {
    "done": ("good", "done"),
    "waiting": ("warn", "waiting"),
    "absent": ("", "not there"),
    "unknown": ("", "not known"),
    "wrong": ("bad", "wrong"),
}
# What the picture calls a stop, where its title is too long for it.
SHORT = {"disk": "On disk", "queue": "Queue", "index": "Index", "group": "Readers", "trace": "Traces"}
# Of several stops of a kind the picture shows one, in the worst of their states.
_WORST = ("wrong", "absent", "unknown", "waiting", "done")


def journey_context(found: dict) -> dict:
    stops = []
    for one in found["stops"]:
        tone, word = STATES[one["state"]]
        stops.append(one | {"tone": tone, "word": word, "href": address(one["pointer"])})
    message = found["message"]
    return {
        "journey": found,
        "stops": stops,
        "picture": picture(stops),
        "journey_measured": f"At {moment_text(found['at_ms'])} UTC, {found['source']}.",
        "journey_rest": f"/api/v1/messages/{message['offset_message_id']}/journey",
        "journey_command": f"journey --log-offset {message['log_offset']}",
    }


def picture(stops: list[dict]) -> list[dict]:
    """[{"title", "state", "tone", "word", "took_ms", "count"}]: a dot for each kind of stop; `took_ms` from
    the dot before that has a time."""
    dots: list[dict] = []
    for one in stops:
        title = SHORT.get(one["stop"], one["title"])
        if dots and dots[-1]["title"] == title:
            last = dots[-1]
            last["count"] += 1
            if _WORST.index(one["state"]) < _WORST.index(last["state"]):
                last |= {"state": one["state"], "tone": one["tone"], "word": one["word"]}
            continue
        dots.append(
            {
                "title": title,
                "state": one["state"],
                "tone": one["tone"],
                "word": one["word"],
                "at_ms": one["at_ms"],
                "took_ms": None,
                "count": 1,
            }
        )
    timed = [dot for dot in dots if dot["at_ms"] and dot["title"] != SHORT["trace"]]
    for before, dot in zip(timed, timed[1:], strict=False):
        dot["took_ms"] = dot["at_ms"] - before["at_ms"] if dot["at_ms"] >= before["at_ms"] else None
    return dots
