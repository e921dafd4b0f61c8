"""The stops of one message as its page shows them."""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.facts.journey.stop import Journey, State, Stop, StopKind
from broker_store.units import fields_of
from mqadmin.templatetags.units import moment_text
from mqadmin.views.store.bytes.facts import address

# How a state is shown: the tone of its pill, and the word in it.
STATES: dict[State, tuple[str, str]] = {
    "done": ("good", "done"),
    "waiting": ("warn", "waiting"),
    "absent": ("", "not there"),
    "unknown": ("", "not known"),
    "wrong": ("bad", "wrong"),
}
# What the picture calls a stop, where its title is too long for it.
SHORT: dict[StopKind, str] = {
    "disk": "On disk",
    "queue": "Queue",
    "index": "Index",
    "group": "Readers",
    "pop": "Popped",
    "trace": "Traces",
}
# Of several stops of a kind the picture shows one, in the worst of their states.
_WORST: tuple[State, ...] = ("wrong", "absent", "unknown", "waiting", "done")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownStop(Stop):
    """A stop with how it is shown."""

    tone: str
    word: str
    href: str  # of its bytes; "": it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """Neighbouring stops of a kind in the picture."""

    title: str
    state: State
    word: str
    count: int  # stops
    took_ms: int | None  # since the dot before that has a time; None: not known


# Without slots, so that one class can be made of it and another
@dataclass(frozen=True, kw_only=True)
class ShownJourney:
    """The data of stops.html."""

    journey: Journey
    stops: list[ShownStop]
    picture: list[Dot]
    journey_measured: str
    journey_rest: str  # the address that gives the same
    journey_command: str  # of manage.py store


def shown_journey(found: Journey) -> ShownJourney:
    """Return what the page of a message shows of its journey."""
    stops = [_shown_stop(one) for one in found.stops]
    return ShownJourney(
        journey=found,
        stops=stops,
        picture=_picture(found.stops),
        journey_measured=f"At {moment_text(found.at_ms)} UTC, {found.source}.",
        journey_rest=f"/api/v1/messages/{found.message.offset_message_id}/journey",
        journey_command=f"journey --log-offset {found.message.log_offset}",
    )


def _shown_stop(one: Stop) -> ShownStop:
    tone, word = STATES[one.state]
    return ShownStop(**fields_of(one), tone=tone, word=word, href=address(one.pointer))


def _picture(stops: list[Stop]) -> list[Dot]:
    """Return a dot for each kind of stop."""
    groups: list[tuple[str, list[Stop]]] = []
    for one in stops:
        title = SHORT.get(one.stop, one.title)
        if groups and groups[-1][0] == title:
            groups[-1][1].append(one)
        else:
            groups.append((title, [one]))
    dots: list[Dot] = []
    before_ms: int | None = None
    for title, group in groups:
        # Traces have the times of clients, by clocks of their own
        at_ms = None if group[0].stop == "trace" else group[0].at_ms
        state = min((one.state for one in group), key=_WORST.index)
        dots.append(
            Dot(
                title=title,
                state=state,
                word=STATES[state][1],
                count=len(group),
                took_ms=at_ms - before_ms if at_ms and before_ms and at_ms >= before_ms else None,
            )
        )
        before_ms = at_ms or before_ms
    return dots
