"""What users read of an error is words: no name of a class of ours leaves the process through wire, REST or
pages."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest

import broker_store
from broker_store.errors import BrokerStoreError, PeerError, ProtocolError, StoreError
from tests.support.broker_harness import Harness

ROOMS = ("broker", "engine", "formats", "nameserver", "protocol", "server")
OTHERS = (ZeroDivisionError, KeyError, OSError)


def tree(kind: type[BrokerStoreError] = BrokerStoreError) -> Iterator[type[BrokerStoreError]]:
    """Each error of the broker's rooms."""
    for room in ROOMS if kind is BrokerStoreError else ():
        for module in pkgutil.iter_modules([f"{broker_store.__path__[0]}/{room}"]):
            importlib.import_module(f"broker_store.{room}.{module.name}")
    for child in kind.__subclasses__():
        if child.__module__.split(".")[1] in (*ROOMS, "errors"):
            yield child
        yield from tree(child)


KINDS = [*tree(), *OTHERS]


def test_the_tree_was_walked():
    assert len(KINDS) > 20 and {PeerError, ProtocolError, StoreError} < set(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_an_error_is_answered_and_counted_in_words(kind):
    """`/refusals` and the remarks on the wire named FieldError, DamagedStoreError and others."""
    harness = Harness()

    def fail(topic, queue_id):
        error = kind.__new__(kind)
        Exception.__init__(error, "a sentence")
        error.__dict__ |= {name: None for name in ("value", "limit") if not hasattr(error, name)}
        raise error

    harness.store.max_offset = fail
    answer = await harness.ask(30, topic="TopicX", queueId=0)
    texts = [answer.remark, *harness.parts.statistics.refusals.counts()]
    assert len(texts) == 2 and not [text for text in texts if re.search(r"[a-z][A-Z]|Error", text)], texts
