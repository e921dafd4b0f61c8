"""What Hypothesis may invent for the engine: messages of every shape the record knows, and a store that takes
them."""

from __future__ import annotations

import struct
from pathlib import Path

from hypothesis import strategies as st

from broker_store.formats import properties
from broker_store.messages import Message
from tests.support.hand_store import START_MS, Clock, HandStore, small_settings
from tests.support.simulated_disk import SimulatedDisk

ROOT = Path("/data/store")

# Text as a client may send it: no separator, no NUL, all of Unicode beside.
_TEXT = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\0\1\2"), min_size=1, max_size=12
)
topics = st.one_of(
    st.sampled_from(("T", "orders", "%RETRY%group")),
    st.text("abcXYZ019_-|%", min_size=1, max_size=40),
    st.integers(100, 255).map(lambda length: "%RETRY%" + "g" * (length - 7)),
)
hosts = st.one_of(
    st.tuples(st.binary(min_size=4, max_size=4), st.integers(0, 65535)),
    st.tuples(st.binary(min_size=16, max_size=16), st.integers(0, 65535)),
)
encoded_properties = st.one_of(
    st.just(b""),
    st.dictionaries(
        st.one_of(st.sampled_from(("KEYS", "TAGS", "UNIQ_KEY", "WAIT", "KEY", "TAGSX")), _TEXT),
        _TEXT,
        max_size=5,
    ).map(properties.encode),
    # As old clients leave it: without the last separator, with pieces that are no pair, with a name twice.
    st.lists(
        st.sampled_from(
            (
                b"KEYS\1a b\2",
                b"KEYS\1  \2",
                b"KEYS\1\2",
                b"TAGS\1t\2",
                b"\1x\2",
                b"UNIQ_KEY\1u\2",
                b"KEYS\2",
                b"TAGS",
                b"KEYS\1z",
            )
        ),
        max_size=6,
    ).map(b"".join),
)
bodies = st.one_of(st.binary(max_size=200), st.binary(max_size=40).map(lambda part: part * 61))
messages = st.builds(
    Message,
    topic=topics,
    queue_id=st.integers(0, 3),
    body=bodies,
    properties=encoded_properties,
    flag=st.integers(-(2**31), 2**31 - 1),
    sys_flag=st.sampled_from((0, 0, 0, 1, 2, 4, 8, 12, 0x301)),
    born_timestamp=st.integers(0, 2**62),
    born_host=hosts,
    store_host=st.one_of(st.none(), hosts),
    reconsume_times=st.integers(0, 2**31 - 1),
    prepared_transaction_offset=st.integers(0, 2**62),
)
inner_messages = st.lists(
    st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=120), encoded_properties),
    min_size=1,
    max_size=6,
)


def encode_batch(inner) -> bytes:
    """The body of a batch: (flag, body, properties) each (docs/spec/store-format.md section 2.6)."""
    chain = b""
    for flag, body, own in inner:
        chain += (
            struct.pack(">iiiii", 22 + len(body) + len(own), 0, 0, flag, len(body))
            + body
            + struct.pack(">h", len(own))
            + own
        )
    return chain


def hand_store(**changes) -> HandStore:
    """A running store in memory."""
    clock = Clock(START_MS)
    return HandStore(small_settings(ROOT, **changes), clock, SimulatedDisk(clock)).begin()


def log_files(store: HandStore) -> list[tuple[int, bytes]]:
    """(start offset, content) of each file of its log."""
    return [(file.base, store.disk.files[file.path].array.tobytes()) for file in store.log.files]
