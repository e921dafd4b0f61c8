"""The journey of one message, with all its stops in their order."""

from __future__ import annotations

import time

from broker_store.errors import NotFoundError
from broker_store.facts import references
from broker_store.facts.body_view import SHOWN_KEYS
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.journey.copies import copies, copy_stop
from broker_store.facts.journey.ordered_pops import ordered_stop
from broker_store.facts.journey.own import born, in_index, in_queue, on_disk, stored
from broker_store.facts.journey.pops import pop_stop, pops_of
from broker_store.facts.journey.readers import readers
from broker_store.facts.journey.search import SEARCH_SECONDS, of_texts
from broker_store.facts.journey.stop import Journey, JourneyMessage, Stop, stop
from broker_store.facts.journey.waiting import waits
from broker_store.facts.store_facts import StoreFacts
from broker_store.formats import index_file, traces
from broker_store.formats.compression import inflate
from broker_store.formats.record import StoredMessage


def journey(directory: StoreDirectory, facts: StoreFacts, log_offset: int) -> Journey:
    """Return the journey of the message at `log_offset`. NotFoundError when no record begins there that
    states this place."""
    message = references.message_at(directory, log_offset)
    if message is None:
        raise NotFoundError(f"no message begins at position {log_offset:,} of the log")
    others, has_all_copies = copies(directory, facts, message)
    later = [copy for copy in others if copy.log_offset > log_offset]
    records = [*others, message]
    popped = pops_of(directory, records)
    around = [(copy.log_offset, copy_stop(copy, records, facts)) for copy in others]
    around += [(pop.stored.log_offset, pop_stop(pop, popped.pops, records, facts)) for pop in popped.pops]
    around += [(pop.stored.log_offset, ordered_stop(pop)) for pop in popped.in_order]
    around.sort(key=lambda pair: pair[0])
    stops = [one for at, one in around if at < log_offset]
    stops += [
        born(message),
        stored(directory, message),
        on_disk(facts, message),
        in_queue(directory, facts, message),
    ]
    stops += in_index(directory, facts, message)
    # A topic of the broker's own has no readers
    waiting = waits(facts, message, later)
    popped_by = {pop.key.group for pop in popped.pops if pop.key.topic == message.topic}
    popped_by |= {pop.group for pop in popped.in_order if pop.queue_id == message.queue_id}
    stops += readers(facts, message, later, popped_by, popped.doubt) if waiting is None else [waiting]
    stops += [one for at, one in around if at > log_offset]
    traced, has_all_traces = _traces(directory, facts, message)
    doubts = [popped.doubt] if popped.doubt else []
    if not (has_all_copies and has_all_traces):
        doubts.append(f"copies were searched for during {SEARCH_SECONDS:g} s, and there may be more")
    return Journey(
        at_ms=time.time_ns() // 1_000_000,
        source=facts.source,
        message=_message(message),
        stops=stops + traced,
        complete=not doubts,
        reason="; ".join(doubts),
    )


def _message(message: StoredMessage) -> JourneyMessage:
    return JourneyMessage(
        message_id=message.message_id,
        offset_message_id=message.offset_id,
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        log_offset=message.log_offset,
        tag=message.tags,
        keys=list(message.keys[:SHOWN_KEYS]),
        keys_left_out=max(0, len(message.keys) - SHOWN_KEYS),
    )


def _traces(directory: StoreDirectory, facts: StoreFacts, message: StoredMessage) -> tuple[list[Stop], bool]:
    """Return what clients wrote of a message, oldest first, and whether this is all."""
    topic, key = facts.trace_topic, message.unique_key
    if not key or message.topic == topic:
        return [], True
    found, is_complete = of_texts(
        directory, [index_file.key_text(topic, key)], lambda one: one.topic == topic and key in one.keys
    )
    bodies = [inflate(one.body, one.sys_flag) or b"" for one in found]
    events = traces.in_order(
        event for body in bodies for event in traces.decode(body) if event.message_id == key
    )
    return [_traced(event) for event in events], is_complete


def _traced(event: traces.TraceEvent) -> Stop:
    took = "" if event.took_ms is None else f", in {event.took_ms:,} ms"
    sentence = f"{event.group} {event.words}{took}."
    return stop("trace", "Its client says", "done", sentence, at_ms=event.at_ms)
