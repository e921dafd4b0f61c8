"""Reads at another broker what was popped there (broker/pop/others.py).

Source: Apache's `EscapeBridge.getMessageFromRemoteAsync`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from broker_store.broker.pop.others import Fetched
from broker_store.errors import BrokerStoreError, PeerError
from broker_store.formats import record
from broker_store.formats.names import popped_topic
from broker_store.formats.pop_records import PopKey
from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.headers import PULL_SUBSCRIPTION, PullHeader, read_long, write_pull
from broker_store.repeated_log import RepeatedLog
from broker_store.server.other_brokers import OtherBrokers

# Reads at the same time; others wait for their next attempt
MAX_READS = 16

log = logging.getLogger(__name__)


class ReadsAtOthers:
    """Loop's thread."""

    def __init__(self, brokers: OtherBrokers):
        self._brokers = brokers
        self._reads: set[asyncio.Task[None]] = set()
        self._log = RepeatedLog(log)

    def fetch(self, key: PopKey, run: list[int], came: Callable[[Fetched | None], None]) -> None:
        """Read the messages at the queue offsets `run`, which follow each other. `came` gets them later."""
        if len(self._reads) >= MAX_READS:
            came(None)
            return
        task = asyncio.get_running_loop().create_task(self._fetch(key, run, came))
        self._reads.add(task)
        task.add_done_callback(self._reads.discard)

    def given_up(self, key: PopKey) -> None:
        """Log that messages of a pop do not come again."""
        self._log.write(
            logging.WARNING,
            "pops of other brokers",
            time.monotonic(),
            "messages of %s/%d from %d on, which group %s popped at broker %s, do not come again: that "
            "broker did not give them in time",
            key.topic,
            key.queue_id,
            key.start_offset,
            key.group,
            key.broker_name,
        )

    def stop(self) -> None:
        """End what is being read; `came` is not called any more."""
        for task in self._reads:
            task.cancel()

    async def _fetch(self, key: PopKey, run: list[int], came: Callable[[Fetched | None], None]) -> None:
        try:
            fetched = await self._read(key, run)
        except (OSError, TimeoutError, BrokerStoreError) as error:
            self._log.write(
                logging.WARNING,
                "reads at other brokers",
                time.monotonic(),
                "what group %s popped of %s at broker %s is read again later: %s",
                key.group,
                key.topic,
                key.broker_name,
                str(error) or type(error).__name__,
            )
            came(None)
        else:
            came(fetched)

    async def _read(self, key: PopKey, run: list[int]) -> Fetched:
        address = await self._brokers.address_of(key.broker_name, popped_topic(key.topic, key.group))
        header = PullHeader(
            key.group, key.topic, key.queue_id, run[0], len(run), PULL_SUBSCRIPTION, 0, 0, "*", 0, "TAG", None
        )  # fmt: skip
        answer = await self._brokers.request(address, RequestCode.PULL_MESSAGE, write_pull(header))
        if answer.code == ResponseCode.SUCCESS:
            return _found(key, run, answer.body)
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            begin = read_long("nextBeginOffset", (answer.fields or {}).get("nextBeginOffset"))
            gone = [offset for offset in run if offset < begin]
            if gone:
                return Fetched([], gone)
        raise PeerError(f"it answered a pull at {run[0]} with {answer.code} {answer.remark or '':.120}")


def _found(key: PopKey, run: list[int], body: bytes) -> Fetched:
    """Return the records of an answer that were asked for. Raises FormatError."""
    wanted = set(run)
    found = [
        stored
        for stored in record.decode_all(body, check_crc=True)
        if (stored.topic, stored.queue_id) == (key.topic, key.queue_id) and stored.queue_offset in wanted
    ]
    if not found:
        raise PeerError(f"it answered a pull at {run[0]} with other messages")
    return Fetched(found, [])
