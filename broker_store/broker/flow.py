"""Flow control: how long a request may wait, and a record of every refusal
(docs/spec/store-behaviour.md section 15).

One loop handles each request when it has read it, so there are no queues of requests in front of thread
pools. A request still waits in two places:

- after others of its connection, while the peer does not read its answers or has its limit of cold reads;
- as a send in the group of its turn, when more arrived than one group takes.

A request that has waited longer than Apache's limit for its kind is answered SYSTEM_BUSY when its turn comes,
with Apache's words, and changes nothing. Apache checks every 10 ms instead; but while a connection stalls its
answers could not leave either.

Every refusal, here or elsewhere, is counted by cause. For each cause the last case is kept with its numbers:
the value, the limit, the time and the peer. Causes are fixed words of this program, so their number is
bounded.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass

from broker_store.config.broker import BrokerSettings
from broker_store.protocol.codes import RequestCode as R

REJECTED = "[REJECTREQUEST]system busy, start flow control for a while"
TOO_MANY_OF_USER = "too many connections of this user are open (maxPercentOfUser)"
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
RECENT_MS = 5 * 60_000  # "recently" in counts of refusals
BUCKET_MS = 10_000  # of one bucket of such counts
MAX_SAID_CHARACTERS = 200

# Requests without a limit in Apache's broker: lookups, offsets, replies, and requests between clients.
_UNLIMITED = (
    R.QUERY_MESSAGE, R.VIEW_MESSAGE_BY_ID, R.QUERY_CONSUMER_OFFSET, R.UPDATE_CONSUMER_OFFSET,
    R.UNREGISTER_CLIENT, R.CHECK_CLIENT_CONFIG, R.GET_CONSUMER_LIST_BY_GROUP, R.QUERY_ASSIGNMENT,
    R.SET_MESSAGE_REQUEST_MODE, R.SEND_REPLY_MESSAGE, R.SEND_REPLY_MESSAGE_V2,
)  # fmt: skip


# The settings that the limits are made of.
KEYS = (
    "brokerFastFailureEnable",
    "waitTimeMillsInAdminBrokerQueue",
    "waitTimeMillsInHeartbeatQueue",
    "waitTimeMillsInLitePullQueue",
    "waitTimeMillsInPullQueue",
    "waitTimeMillsInSendQueue",
    "waitTimeMillsInTransactionQueue",
)


class WaitLimits:
    """The longest wait of a request of each code, in milliseconds; None without a limit."""

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
    """One cause: its count and its last case. `value` exceeded `limit`, both None where no number decides;
    `said` is the text of the answer."""

    cause: str
    count: int = 0
    at_ms: int = 0
    value: int | None = None
    limit: int | None = None
    who: str = ""
    said: str = ""


class Refusals:
    """What was refused since the start, by cause. `clock` returns milliseconds."""

    def __init__(self, clock: Callable[[], int]):
        self._clock = clock
        self._causes: dict[str, Refused] = {}
        # (begin, count by cause, sends by cause)
        self._buckets: deque[tuple[int, Counter[str], Counter[str]]] = deque()

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
        """Count a refusal of a send or another request; `cause` is a word of this program, never text from
        outside."""
        refused = self._causes.get(cause)
        if refused is None:
            refused = self._causes[cause] = Refused(cause)
        refused.count += count
        refused.at_ms = now_ms = self._clock()
        if not self._buckets or not 0 <= now_ms - self._buckets[-1][0] < BUCKET_MS:
            self._forget(now_ms)
            self._buckets.append((now_ms, Counter(), Counter()))
        _, of_all, of_sends = self._buckets[-1]
        of_all[cause] += count
        if is_send:
            of_sends[cause] += count
        refused.value, refused.limit = value, limit
        refused.who, refused.said = who[:MAX_WHO_CHARACTERS], said[:MAX_SAID_CHARACTERS]

    def counts(self) -> dict[str, int]:
        return {refused.cause: refused.count for refused in self._causes.values()}

    def recent(self) -> Counter[str]:
        """Return how often each cause occurred in the last RECENT_MS, to BUCKET_MS exactly."""
        self._forget(self._clock())
        return sum((counts for _, counts, _ in self._buckets), Counter())

    def recent_sends(self) -> Counter[str]:
        """Return the same for sends only."""
        self._forget(self._clock())
        return sum((counts for _, _, counts in self._buckets), Counter())

    def _forget(self, now_ms: int) -> None:
        while self._buckets and not 0 <= now_ms - self._buckets[0][0] < RECENT_MS:
            self._buckets.popleft()

    def cases(self) -> list[Refused]:
        """Return every cause with its last case, the latest first. They change with the next refusals."""
        return sorted(self._causes.values(), key=lambda refused: (-refused.at_ms, refused.cause))

    def facts(self) -> list[dict]:
        """Return the same as of now."""
        return [asdict(refused) for refused in self.cases()]
