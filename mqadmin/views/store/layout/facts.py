"""The layout of topics in the log as page and stream show it, and the choices of the form."""

from __future__ import annotations

from dataclasses import dataclass, replace

from broker_store.errors import LookupNameError
from broker_store.formats import names
from broker_store.units import Small
from mqadmin.facts.layout import Both

SHOWN_TOPICS = 100
CHECKS = {"topic": names.check_topic, "group": names.check_group}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown(Both):
    """The data of page and stream."""

    more: Small  # topics that are left out of `each`


def check_choice(name: str) -> str:
    """The name of the watched stream: "" for every topic, topic/NAME or group/NAME."""
    kind, _, chosen = name.partition("/")
    if name:
        if kind not in CHECKS:
            raise LookupNameError("it is topic/NAME or group/NAME, or nothing for every topic")
        CHECKS[kind](chosen)
    return name


def choice_of(name: str) -> tuple[str | None, str | None]:
    """(topic, group) of such a name."""
    kind, _, chosen = name.partition("/")
    return (chosen if kind == "topic" else None, chosen if kind == "group" else None)


def for_page(both: Both) -> Shown:
    """As page and stream show it: the topics that cost most to read."""
    each = both.each
    return Shown(
        one=both.one,
        each=replace(each, items=each.items[:SHOWN_TOPICS]),
        more=max(0, len(each.items) - SHOWN_TOPICS),
    )
