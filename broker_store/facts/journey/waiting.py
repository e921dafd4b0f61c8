"""Messages that wait for their real topic in one of the broker's own: delayed, prepared, timed."""

from __future__ import annotations

from broker_store.errors import NameError_
from broker_store.facts.journey.stop import Form, State, Stop, clock_text, stop
from broker_store.facts.store_facts import StoreFacts
from broker_store.formats import properties, timer_log, traces
from broker_store.formats.names import check_stored_topic
from broker_store.formats.record import StoredMessage
from broker_store.formats.topics import CHECK_MAX_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC

CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
FORMS: dict[str, Form] = {
    SCHEDULE_TOPIC: "delayed",
    HALF_TOPIC: "prepared",
    timer_log.TIMER_TOPIC: "timed",
}
_TITLES: dict[Form, str] = {"delayed": "Delayed", "prepared": "Prepared", "timed": "Timed"}


def waits(facts: StoreFacts, message: StoredMessage, later: list[StoredMessage]) -> Stop | None:
    """Return what a message in such a topic waits for; None for a message of another topic."""
    form = FORMS.get(message.topic)
    if form is None:
        return None
    return stop("waits", title_of(form, message), *words_of(form, message, facts, later))


def title_of(form: Form, message: StoredMessage) -> str:
    return "Recall" if _is_recall(message) else _TITLES[form]


def words_of(
    form: Form, message: StoredMessage, facts: StoreFacts, others: list[StoredMessage]
) -> tuple[State, str]:
    """Return (state, sentence) of a waiting message; `others` are other records of the same message."""
    real_topic = topic_in(message, properties.REAL_TOPIC)
    goes = f"for {real_topic or 'a topic that it does not name'}"
    if _is_recall(message):
        return (
            "done",
            f"Asks to take back {message.properties[properties.TIMER_DELETE_KEY]}, which is {goes}: "
            f"that one is dropped when its time comes, if it waits still.",
        )
    later = [other for other in others if other.log_offset > message.log_offset]
    # It waits no longer once its real record is there, or once it was put on the wheel again. Then its fate
    # is not asked for: the broker may no longer know it.
    is_over = any(
        other.topic in (real_topic, CHECK_MAX_TOPIC)
        or (form == "timed" and properties.TIMER_ROLL_TIMES in other.properties and not _is_recall(other))
        for other in later
    )
    fate = None if is_over else facts.fate(message)
    is_waiting = False if is_over else None if fate is None else fate.waits
    due_ms = None if fate is None else fate.due_ms
    if not due_ms and form == "timed":
        due_ms = number_in(message, properties.TIMER_OUT_MS)
    words = _form_words(form, message, goes) + (f", due at {clock_text(due_ms)}" if due_ms else "")
    if form == "timed" and not is_over and any(_takes_back(other, message, real_topic) for other in later):
        words += ". It was recalled: it is not delivered, but dropped then"
    if is_waiting is None:
        return "unknown" if form != "timed" else "done", f"{words}."
    return ("waiting", f"{words}.") if is_waiting else ("done", f"{words}. That is over.")


def _form_words(form: Form, message: StoredMessage, goes: str) -> str:
    if form == "delayed":
        return f"Put aside {goes} by delay level {message.queue_id + 1}"
    if form == "timed":
        return f"Put on the timer wheel {goes}"
    asked = number_in(message, CHECK_TIMES)
    return f"Prepared {goes}, to wait for its producer's word" + (
        f"; stored again to ask for it, for the {traces.ordinal(asked)} time" if asked else ""
    )


def _is_recall(message: StoredMessage) -> bool:
    """Return whether a message waits on the timer wheel to have another one dropped."""
    return message.topic == timer_log.TIMER_TOPIC and properties.TIMER_DELETE_KEY in message.properties


def _takes_back(recall: StoredMessage, message: StoredMessage, real_topic: str | None) -> bool:
    """Return whether a recall names this message, as either version of Apache's writes it."""
    return _is_recall(recall) and recall.properties[properties.TIMER_DELETE_KEY] in (
        message.unique_key,
        f"{real_topic}+{message.unique_key}",
    )


def topic_in(message: StoredMessage, name: str) -> str | None:
    """Return the topic that a property names; None for what can be no topic: clients write properties."""
    try:
        return check_stored_topic(message.properties.get(name, ""))
    except NameError_:
        return None


def number_in(message: StoredMessage, name: str) -> int | None:
    """Return the number that a property has; None for what is none: clients write properties."""
    text = message.properties.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
