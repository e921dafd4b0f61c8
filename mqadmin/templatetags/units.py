"""Numbers with their units, and terms with their meaning.

None is always "unknown": an unmeasured value must not appear as 0. `static/js/live.js` writes the same
formats for live numbers; tests/mqadmin/test_browser.py compares the two.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from django import template
from django.urls import reverse
from django.utils.html import format_html

from broker_store.engine.status.store_state import LogPositions
from mqadmin.views.glossary.facts import terms
from mqadmin.views.sources import SOURCES

register = template.Library()

UNKNOWN = format_html('<span class="unknown" title="not measured, or unknown yet">{}</span>', "unknown")


@register.simple_tag
def word(name: str, shown: str = "", *, in_label: bool = False):
    """Show a term of docs/GLOSSARY.md with its meaning on hover and focus, as a link to the glossary. In the
    label of a field it is no link, since a click there must go to the field."""
    term = terms()[name]
    if in_label:
        return format_html(
            '<span class="word" tabindex="0" data-tip="{}">{}</span>', term.text, shown or name
        )
    return format_html(
        '<a class="word" href="{}#{}" data-tip="{}">{}</a>',
        reverse("glossary"),
        term.anchor,
        term.text,
        shown or name,
    )


@register.filter
def count(value):
    """An exact number: 1,804,221."""
    return UNKNOWN if value is None else f"{int(value):,}"


@register.filter
def plain(value):
    """An exact number as plain text, for places without markup."""
    return "unknown" if value is None else f"{int(value):,}"


@register.filter
def size(value):
    """Bytes in the unit that leaves three or four digits: 340.4 MiB."""
    return UNKNOWN if value is None else bytes_text(float(value))


def bytes_text(value: float) -> str:
    if abs(value) < 1024:
        return f"{value:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if abs(value) < 1024 or unit == "TiB":
            break
    return f"{value:.1f} {unit}" if abs(value) < 1000 else f"{value:,.0f} {unit}"


@register.filter
def rate(value):
    """Events per second: 412/s, 0.4/s."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}/s" if value >= 100 or value == 0 else f"{value:.1f}/s"


@register.filter
def duration(value):
    """A length of time, given in milliseconds: 12 ms, 3.4 s, 5 min 2 s, 3 h 4 min."""
    return UNKNOWN if value is None else duration_text(float(value))


@register.filter
def micros(value):
    """Microseconds, below 10 with a decimal."""
    return UNKNOWN if value is None else micros_text(float(value))


@register.filter
def micros_or(value, otherwise):
    """Microseconds, with the text `otherwise` for None: a thing that did not happen is not unknown."""
    return otherwise if value is None else micros_text(float(value))


def micros_text(us: float) -> str:
    if us < 9.95:
        return f"{us:.1f} µs"
    return f"{us:.0f} µs" if us < 999.5 else duration_text(us / 1000)


def duration_text(ms: float) -> str:
    if 0 < ms < 0.1:
        return "< 0.1 ms"
    if ms < 10 and ms != int(ms):
        return f"{ms:.1f} ms"
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1_000:.1f} s"
    minutes = int(ms // 60_000)
    if minutes < 60:
        return f"{minutes} min {int(ms % 60_000 // 1_000)} s"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


@register.filter
def percent(value):
    """A share of 1 in per cent."""
    return UNKNOWN if value is None else f"{value * 100:.1f} %"


@register.filter
def percent_whole(value):
    """A share of 1 in whole per cent."""
    return f"{value * 100:.0f} %"


@register.filter
def decimal(value):
    """A mean, with two decimals."""
    return UNKNOWN if value is None else f"{value:,.2f}"


@register.filter
def count_about(value):
    """An estimate: whole from 100 on, else with one decimal."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 0.05 else "0"


@register.filter
def microseconds(value):
    """A time too short for milliseconds."""
    return (
        UNKNOWN if value is None else f"{value:,.0f} µs" if value < 10_000 else duration_text(value / 1_000)
    )


@register.filter
def other(count, listed):
    """The number of items that are not in a list: `count` less its length."""
    return count - len(listed)


@register.filter
def moment(value):
    """A time in UTC, exact to the millisecond."""
    text = moment_text(value)
    if text is None:
        return UNKNOWN
    date, _, clock = text.partition(" ")
    return format_html(
        '<time datetime="{}T{}Z" title="{} UTC"><span class="date">{}</span> {}</time>',
        date,
        clock,
        text,
        date,
        clock,
    )


@register.filter
def moment_short(value):
    """A time in UTC to the minute, for what comes on the minute."""
    text = moment_text(value)
    return (
        UNKNOWN
        if text is None
        else format_html(
            '<time datetime="{}Z" title="{} UTC">{}</time>', text.replace(" ", "T"), text, text[:16]
        )
    )


@register.filter
def moment_among(value, moments):
    """A time of an axis in UTC, to the minute; only the time of day, to the second or finer, where the axis
    has two times within a minute."""
    text, texts = moment_text(value), [moment_text(each) or "" for each in moments]
    if text is None:
        return UNKNOWN
    shown = next(
        (cut for cut in (slice(16), slice(11, 19)) if len({each[cut] for each in texts}) == len(texts)),
        slice(11, None),
    )
    return format_html(
        '<time datetime="{}Z" title="{} UTC">{}</time>', text.replace(" ", "T"), text, text[shown]
    )


def moment_given(value: int) -> str:
    """A time from a form: to the minute, or finer if it has seconds; the number of ms if no calendar has
    it."""
    text = (moment_text(value) or f"{value} ms").removesuffix(".000")
    return text.removesuffix(":00") if "." not in text else text


@register.filter
def stamp(value):
    """A time of the checkpoint, which has none before the first message was synced."""
    return "none yet" if value == 0 else moment(value)


def moment_text(value: int | None) -> str | None:
    if value is None or not 0 < value < 253_402_300_800_000:
        return None
    return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


@register.filter
def ago(value):
    """The time since a moment; live.js updates it."""
    text = moment_text(value)
    if text is None:
        return UNKNOWN
    age = max(0, int(time.time() * 1000) - value)
    return format_html(
        '<time datetime="{}Z" data-ago="{}" title="{} UTC">{} ago</time>',
        text.replace(" ", "T"),
        value,
        text,
        duration_text(age),
    )


@register.filter
def ago_text(value):
    """The time since a moment as text, inside an element that a stream updates."""
    return (
        UNKNOWN
        if moment_text(value) is None
        else f"{duration_text(max(0, int(time.time() * 1000) - value))} ago"
    )


@register.filter
def until(value):
    """The time left until a moment; live.js updates it."""
    text = moment_text(value)
    if text is None:
        return UNKNOWN
    left = value - int(time.time() * 1000)
    said = f"in {duration_text(left)}" if left > 0 else "now"
    return format_html(
        '<time datetime="{}Z" data-until="{}" title="{} UTC">{}</time>',
        text.replace(" ", "T"),
        value,
        text,
        said,
    )


@register.filter
def duration_short(value):
    """A length of time in its largest unit: 1 s, 10 min, 2 h."""
    for unit, name in ((3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if value >= unit and value % unit == 0:
            return f"{value // unit} {name}"
    return duration_text(value)


@register.filter
def permission(value):
    """The permission bits of a topic in words."""
    if value is None:
        return UNKNOWN
    return {6: "read and write", 4: "read only", 2: "write only"}.get(value & 6, "closed")


@register.filter
def share(part, whole):
    """`part` of `whole` in per cent for a bar's width, 0 to 100, "0" when either is unknown."""
    if not part or not whole:
        return "0"
    return f"{min(100.0, max(0.0, part * 100 / whole)):.3f}"


@register.filter
def share_seen(part, whole):
    """The same as `share`, but at least 0.6, so that the bar is visible."""
    return f"{max(0.6, float(share(part, whole))):.3f}"


@register.filter
def ratio(part, whole):
    """`part` of `whole` as text in per cent."""
    if part is None or not whole:
        return UNKNOWN
    share = part * 100 / whole
    return "< 0.1 %" if 0 < share < 0.05 else f"{share:.1f} %"


@register.filter
def minus(value, other):
    """A difference, unknown when either is."""
    return None if value is None or other is None else value - other


TRACKS = (
    ("wrote", "Wrote"),
    ("confirmed", "Confirmed"),
    ("dispatched", "Dispatched"),
    ("committed", "Committed"),
    ("flushed", "Flushed"),
    ("checkpoint_position", "Checkpoint"),
)


@register.inclusion_tag("tracks.html")
def tracks(positions: LogPositions):
    """The positions, drawn from the checkpoint (the last of them) to the end of the log (the first)."""
    low, high = positions.checkpoint_position or 0, positions.wrote
    rows = []
    for key, title in TRACKS:
        at = getattr(positions, key)
        if at is None and key == "committed":
            continue  # without a pool of buffers there is no such position
        if at is None or high is None:
            width = "0"
        elif high > low:
            width = share(at - low, high - low)
        else:
            width = "100" if at >= high > 0 else "0"
        rows.append(
            {
                "key": key,
                "tone": key.removesuffix("_position"),
                "title": title,
                "at": at,
                "lag": minus(high, at),
                "width": width,
            }
        )
    return {"rows": rows, "low": low, "high": high}


@register.filter
def running_for(started_ms):
    """The time since a start."""
    return UNKNOWN if started_ms is None else duration_text(max(0, int(time.time() * 1000) - started_ms))


@register.filter
def in_unit(value, unit):
    """A job's progress: bytes in their own units, else the number with its noun."""
    return size(value) if unit == "bytes" else format_html("{} {}", count(value), unit or "")


@register.filter
def source_of(view: str) -> str:
    """The sentence of mqadmin/views/sources.py on a view."""
    return SOURCES[view]
