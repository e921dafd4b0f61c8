"""A process with a store of its own: `python -m tests.support.write_until_stopped ROOT WHAT`, for tests that
damage its files meanwhile.

It writes 200 messages, prints `ready`, waits for a line on standard input, and goes on as WHAT says: `put`
more messages, `read` them through the maps, or `sync`. It prints the log end of each message that was
acknowledged.
"""

from __future__ import annotations

import sys
from pathlib import Path

from broker_store.engine.status.live_page import LivePage
from broker_store.messages import GetRequest
from tests.support.hand_store import HandStore, message, small_settings

MESSAGES = 200
MORE_MESSAGES = 2000


def settings(root: Path):
    return small_settings(
        root,
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=200_000,
        max_hash_slot_num=1000,
        max_index_num=20_000,
    )


def put(store: HandStore, number: int) -> None:
    result = store.appender.put(
        message("topic", 0, b"body of %d" % number, keys=[f"k{number}"], unique=f"u{number}")
    )
    assert result.ok, result
    print("stored", number, result.log_offset, result.log_end, flush=True)


def main(root: Path, what: str) -> None:
    store = HandStore(settings(root), live_page_path=root.parent / "run" / "live").begin()
    assert isinstance(store._parts.live.page, LivePage)
    for number in range(MESSAGES):
        put(store, number)
    store.flush()
    store.round()
    store.tick()
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(MESSAGES, MESSAGES + MORE_MESSAGES):
        if what == "put":
            put(store, number)
        elif what == "read":
            store.reads.get(GetRequest("topic", 0, number % MESSAGES, 1))
        store.tick()
    print("flags", *(flag.name for flag in store.status.snapshot().flags), flush=True)
    store.close()
    print("closed", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
