"""Unique keys of messages: read from the properties, or created if the producer set none."""

from __future__ import annotations

import itertools
import os
import random

from broker_store.formats.message_id import UniqueId, encode_unique_id
from broker_store.server.parts import BrokerParts


class UniqueIds:
    """Creates unique keys in the format of producers."""

    def __init__(self, parts: BrokerParts):
        self._parts = parts
        self._process = os.getpid()
        self._loader = random.getrandbits(32)
        self._counter = itertools.count(random.getrandbits(15))
        self._address = parts.endpoint.store_host[0]

    def next(self) -> str:
        month_ms = self._parts.clock() % (31 * 86_400_000)
        return encode_unique_id(
            UniqueId(self._address, self._process, self._loader, month_ms, next(self._counter))
        )


def find_unique_key(text: str) -> str | None:
    """Return the value of UNIQ_KEY in an encoded properties text, None if it has none."""
    at = text.find("UNIQ_KEY\x01")
    while at > 0 and text[at - 1] != "\x02":
        at = text.find("UNIQ_KEY\x01", at + 1)
    if at < 0:
        return None
    end = text.find("\x02", at + 9)
    return (text[at + 9 :] if end < 0 else text[at + 9 : end]) or None
