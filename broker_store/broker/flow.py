"""Flow control: how long a request may wait, and what is remembered of every refusal
(docs/spec/store-behaviour.md section 15).

One loop handles each request when it has read it, so there are no queues of requests in front of thread
pools. A request waits in two places all the same:

- behind others of its connection, while the peer does not read its answers or has as many cold reads under
  way as it may;
- a send in the group of its turn, when more came than one group takes.

Who has waited longer than Apache's limit for its kind is answered SYSTEM_BUSY when its turn comes, with
Apache's words, and changes nothing. Apache looks every 10 ms instead; but while a connection stalls its
answers would not leave either.

What is refused, here or elsewhere, is counted by cause, and of each cause the last case is kept with its
numbers: what was found, what the limit is, when, and who it was. Causes are words of ours, so their number is
bounded.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass

from broker_store.config import BrokerSettings
from broker_store.protocol.codes import RequestCode as R

REJECTED = "[REJECTREQUEST]system busy, start flow control for a while"
OVERLOADED = "[OVERLOAD]system busy, start flow control for a while"
WAITED = (
    "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: {waited_ms}ms, "
    "size of queue: {waiting}"
)
PAGE_CACHE_BUSY = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
PAGE_CACHE_BUSY_WAITED = (
    "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: {waited_ms}ms, "
    "size of queue: {waiting}"
)

MAX_WHO_CHARACTERS = 120
RECENT_MS = 5 * 60_000  # what counts as refused of late
STRETCH_MS = 10_000  # that such refusals are counted by
MAX_SAID_CHARACTERS = 200

# Requests for which Apache has no limit: lookups, offsets, replies, and what clients ask of each other.
_UNLIMITED = (
    R.QUERY_MESSAGE, R.VIEW_MESSAGE_BY_ID, R.QUERY_CONSUMER_OFFSET, R.UPDATE_CONSUMER_OFFSET,
    R.UNREGISTER_CLIENT, R.CHECK_CLIENT_CONFIG, R.GET_CONSUMER_LIST_BY_GROUP, R.QUERY_ASSIGNMENT,
    R.SET_MESSAGE_REQUEST_MODE, R.SEND_REPLY_MESSAGE, R.SEND_REPLY_MESSAGE_V2,
)  # fmt: skip


class WaitLimits:
    """How long a request of each code may wait, in milliseconds; None for any time."""

    def __init__(self, settings: BrokerSettings):
        send_ms = settings.wait_time_mills_in_send_queue
        self._limits_ms: dict[int, int | None] = {
            **dict.fromkeys(map(int, _UNLIMITED)),
            **dict.fromkeys(
                map(
                    int,
                    (
                        R.SEND_MESSAGE,
                        R.SEND_MESSAGE_V2,
                        R.SEND_BATCH_MESSAGE,
                        R.CONSUMER_SEND_MSG_BACK,
                        R.RECALL_MESSAGE,
                    ),
                ),
                send_ms,
            ),
            int(R.PULL_MESSAGE): settings.wait_time_mills_in_pull_queue,
            int(R.LITE_PULL_MESSAGE): settings.wait_time_mills_in_lite_pull_queue,
            int(R.HEART_BEAT): settings.wait_time_mills_in_heartbeat_queue,
            int(R.END_TRANSACTION): settings.wait_time_mills_in_transaction_queue,
        }
        self._others_ms = settings.wait_time_mills_in_admin_broker_queue
        self._enabled = settings.broker_fast_failure_enable

    def limit_ms(self, code: int) -> int | None:
        return self._limits_ms.get(code, self._others_ms) if self._enabled else None


@dataclass(slots=True)
class Refused:
    """One cause: how often, and its last case. `value` went over `limit`, both None where no number decides;
    `said` is what the peer was told."""

    cause: str
    count: int = 0
    at_ms: int = 0
    value: int | None = None
    limit: int | None = None
    who: str = ""
    said: str = ""


class Refusals:
    """What was refused since the start, by cause. `clock` gives milliseconds."""

    def __init__(self, clock: Callable[[], int]):
        self._clock = clock
        self._causes: dict[str, Refused] = {}
        # (when it began, how often by cause, sends of it)
        self._stretches: deque[tuple[int, Counter[str], Counter[str]]] = deque()

    def add(
        self,
        cause: str,
        count: int = 1,
        *,
        value: int | None = None,
        limit: int | None = None,
        who: str = "",
        said: str = "",
        is_send: bool = False,
    ) -> None:
        """Something was refused, a send or another request; `cause` is a word of ours, never text from
        outside."""
        refused = self._causes.get(cause)
        if refused is None:
            refused = self._causes[cause] = Refused(cause)
        refused.count += count
        refused.at_ms = now_ms = self._clock()
        if not self._stretches or not 0 <= now_ms - self._stretches[-1][0] < STRETCH_MS:
            self._forget(now_ms)
            self._stretches.append((now_ms, Counter(), Counter()))
        _, of_all, of_sends = self._stretches[-1]
        of_all[cause] += count
        if is_send:
            of_sends[cause] += count
        refused.value, refused.limit = value, limit
        refused.who, refused.said = who[:MAX_WHO_CHARACTERS], said[:MAX_SAID_CHARACTERS]

    def counts(self) -> dict[str, int]:
        return {refused.cause: refused.count for refused in self._causes.values()}

    def recent(self) -> Counter[str]:
        """How often each cause was met in the last RECENT_MS, exact to STRETCH_MS."""
        self._forget(self._clock())
        return sum((counts for _, counts, _ in self._stretches), Counter())

    def recent_sends(self) -> Counter[str]:
        """The same of sends alone."""
        self._forget(self._clock())
        return sum((counts for _, _, counts in self._stretches), Counter())

    def _forget(self, now_ms: int) -> None:
        while self._stretches and not 0 <= now_ms - self._stretches[0][0] < RECENT_MS:
            self._stretches.popleft()

    def facts(self) -> list[dict]:
        """Every cause with its last case, the latest first."""
        return [
            asdict(refused)
            for refused in sorted(self._causes.values(), key=lambda refused: (-refused.at_ms, refused.cause))
        ]
