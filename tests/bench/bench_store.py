"""Our engine's twin of peers/bench-store: `python -m tests.bench.bench_store DIR MODE key=value...`, one JSON
line a measurement.

Modes and keys are those of BenchStore.java where both have them, so that a row of the table holds like
against like: the same topics, queues, properties (KEYS, TAGS, UNIQ_KEY, WAIT), bodies of the same bytes,
messages made inside the measured loop where Java makes them there. `given=1` takes messages that were made
before, which is what the engine alone costs.

keys of all: flush= queues= run= cl= (bytes of a log file) unique= end=halt

put      n= size= [given=]            one by one
objects  n= size= per= [given=]       groups of `per` message objects
batch    n= size= per=                encoded batches, as a producer's client sends them
sync     n= size= producers=          SYNC_FLUSH; each producer waits for its answer before it sends the next
fill     bytes= size= [topic=]        a store of that many bytes, quickly; end=halt leaves it as kill -9 does
read     [per= rounds=]               every queue of a store, from its lowest offset to its highest
reread   n= size= [per= rounds=]      the same of what was just written
query    n= samples=                  key lookups: hits and misses
recover                               open and start
check                                 the store doctor beside recovery's scan of the same log, in memory both
"""

import asyncio
import gc
import json
import os
import random
import sys
import time
from dataclasses import replace
from pathlib import Path

from broker_store.check.walk import check_store
from broker_store.config.load import load_settings
from broker_store.engine.store import MessageStore
from broker_store.messages import GetRequest, GetStatus, Message, PutStatus

# Java's bench-store names its topics and hosts so.
TOPIC, BATCH_TOPIC = "BenchTopic0", "BenchBatch"
HOST = (b"\x7f\x00\x00\x01", 10911)
TAGS = [b"Tag" + bytes([65 + i]) for i in range(5)]


def body_of(size: int) -> bytes:
    return random.Random(7).randbytes(size)


# A Java client's unique key has 32 hexadecimal digits, 56 on a machine that it knows by an IPv6 address;
# `unique=` says which.
unique_prefix = b"FD000000000000000000"


def properties(key: bytes, tag: bytes, number: int) -> bytes:
    """As the Java client writes them."""
    return b"KEYS\x01%s\x02UNIQ_KEY\x01%s%012X\x02WAIT\x01true\x02TAGS\x01%s" % (
        key,
        unique_prefix,
        number,
        tag,
    )


def message(topic: str, queue_id: int, body: bytes, key: bytes, tag: bytes, number: int) -> Message:
    return Message(
        topic,
        queue_id,
        body,
        properties(key, tag, number),
        born_timestamp=time.time_ns() // 1_000_000,
        born_host=HOST,
    )


def encoded_batch(body: bytes, run: bytes, first: int, per: int) -> bytes:
    """The chain of messages that a client's MessageDecoder.encodeMessages writes (docs/spec/store-format.md
    section 2.6)."""
    pieces = []
    for number in range(first, first + per):
        named = properties(b"%skey%d" % (run, number), b"TagA", number)
        size = 4 + 4 + 4 + 4 + 4 + len(body) + 2 + len(named)
        pieces += [
            size.to_bytes(4, "big"),
            bytes(12),
            len(body).to_bytes(4, "big"),
            body,
            len(named).to_bytes(2, "big"),
            named,
        ]
    return b"".join(pieces)


class Bench:
    def __init__(self, directory: Path, options: dict[str, str]):
        self._options = options
        self.directory = directory
        self.flush = self.text("flush", "ASYNC_FLUSH")
        self.size, self.queues = self.number("size", 100), self.number("queues", 4)
        self.run = self.text("run", "a").encode()
        self.body = body_of(self.size)

    def text(self, name: str, otherwise: str) -> str:
        return self._options.get(name, otherwise)

    def number(self, name: str, otherwise: int) -> int:
        return int(self._options.get(name, otherwise))

    def store(self, **more) -> MessageStore:
        keys = {"flushDiskType": self.flush}
        if "cl" in self._options:
            keys["mappedFileSizeCommitLog"] = self._options["cl"]
        return MessageStore(load_settings(None, keys, store_root=self.directory).store, **more)

    def opened(self) -> MessageStore:
        store = self.store()
        store.open()
        store.start()
        return store

    def end(self, store: MessageStore) -> None:
        if self.text("end", "shutdown") == "halt":
            sys.stdout.flush()
            os._exit(9)
        store.close()

    # ---- writing

    def put(self) -> None:
        n, warm, given = self.number("n", 1_000_000), self.number("warmup", 0), "given" in self._options
        store = self.opened()
        body, run, queues = self.body, self.run, self.queues
        for k in range(warm):
            store.appender.put(message(TOPIC, k % queues, body, b"warm%d" % k, b"TagA", k))
        made = (
            [message(TOPIC, k % queues, body, b"%skey%d" % (run, k), TAGS[k % 5], k) for k in range(n)]
            if given
            else None
        )
        quiet_collector()
        bad = 0
        latencies = [0] * n
        clock = time.perf_counter_ns
        start_bytes = store.status.positions().wrote
        began = clock()
        for k in range(n):
            before = clock()
            if made is None:
                result = store.appender.put(
                    message(TOPIC, k % queues, body, b"%skey%d" % (run, k), TAGS[k % 5], k)
                )
            else:
                result = store.appender.put(made[k])
            bad += not result.ok
            latencies[k] = clock() - before
        self.wrote("put", store, n, bad, began, start_bytes, latencies, per=1, given=int(given))

    def objects(self) -> None:
        n, per, given = self.number("n", 1_000_000), self.number("per", 64), "given" in self._options
        store = self.opened()
        body, run, queues = self.body, self.run, self.queues

        def group(first: int) -> list[Message]:
            return [
                message(BATCH_TOPIC, first // per % queues, body, b"%skey%d" % (run, k), b"TagA", k)
                for k in range(first, first + per)
            ]

        store.appender.put_many(group(0))
        made = [group(first) for first in range(0, n, per)] if given else None
        quiet_collector()
        bad = 0
        start_bytes = store.status.positions().wrote
        began = time.perf_counter_ns()
        for first in range(0, n, per):
            results = store.appender.put_many(group(first) if made is None else made[first // per])
            for result in results:
                bad += not result.ok
        self.wrote(
            "objects", store, (n + per - 1) // per * per, bad, began, start_bytes, per=per, given=int(given)
        )

    def batch(self) -> None:
        n, per = self.number("n", 1_000_000), self.number("per", 64)
        store = self.opened()
        store.appender.put_batch(
            Message(
                BATCH_TOPIC, 0, encoded_batch(self.body, b"warm", 0, per), born_timestamp=1, born_host=HOST
            )
        )
        bodies = [encoded_batch(self.body, self.run, first, per) for first in range(0, n, per)]
        quiet_collector()
        bad = 0
        start_bytes = store.status.positions().wrote
        began = time.perf_counter_ns()
        for number, encoded in enumerate(bodies):
            result = store.appender.put_batch(
                Message(
                    BATCH_TOPIC,
                    number % self.queues,
                    encoded,
                    born_timestamp=time.time_ns() // 1_000_000,
                    born_host=HOST,
                )
            )
            bad += not result.ok
        self.wrote("batch", store, len(bodies) * per, bad, began, start_bytes, per=per)

    def wrote(
        self,
        mode: str,
        store: MessageStore,
        n: int,
        bad: int,
        began: int,
        start_bytes: int,
        latencies=None,
        **more,
    ) -> None:
        """The line of a writing run; its time ends when queues and index hold everything."""
        at = store.status.positions()
        seconds = (time.perf_counter_ns() - began) / 1e9
        assert at.dispatched == at.wrote, (
            "dispatch is inline, so nothing may be left when the last put returns"
        )
        length = at.wrote - start_bytes
        show(
            {
                "mode": mode,
                "flush": self.flush,
                "body": self.size,
                "n": n,
                "bad": bad,
                "sec": seconds,
                "msg_s_incl_dispatch": n / seconds,
                "MB_s": length / seconds / 1e6,
                "avg_record": length // n,
                **more,
                **percentiles(latencies),
            }
        )
        self.end(store)

    def sync(self) -> None:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self.sync_on_loop())

    async def sync_on_loop(self) -> None:
        """Producers as tasks; what they send in one turn of the loop is appended in one call, as the broker
        does it."""
        n, producers, seconds_at_most = (
            self.number("n", 2_000_000),
            self.number("producers", 64),
            float(self.text("maxsec", "10")),
        )
        loop = asyncio.get_running_loop()
        self.flush = "SYNC_FLUSH"
        store = self.store(wake=loop.call_soon_threadsafe)
        await loop.run_in_executor(None, store.open)
        store.start()
        waiting: list[tuple[Message, asyncio.Future]] = []
        segment_bytes = store.settings.mapped_file_size_commit_log

        def append() -> None:
            group = waiting.copy()
            waiting.clear()
            for (_, future), result in zip(
                group, store.appender.put_many([one for one, _ in group]), strict=True
            ):
                if result.ok:
                    store.confirmation.when_confirmed(
                        result.log_end,
                        lambda status, future=future, at=result.log_offset: future.set_result((status, at)),
                    )
                else:
                    future.set_result((result.status, -1))

        def send(one: Message) -> asyncio.Future:
            if not waiting:
                loop.call_soon(append)
            future = loop.create_future()
            waiting.append((one, future))
            return future

        clock = time.perf_counter_ns
        answers: list[tuple[int, int]] = []  # (log offset, latency)
        numbers = iter(range(n))
        body, run, queues = self.body, self.run, self.queues
        bad = 0

        async def producer() -> None:
            nonlocal bad
            for k in numbers:
                before = clock()
                if before - began > seconds_at_most * 1e9:
                    return
                status, at = await send(
                    message(TOPIC, k % queues, body, b"%skey%d" % (run, k), TAGS[k % 5], k)
                )
                bad += status != 0
                answers.append((at, clock() - before))

        for k in range(self.number("warmup", 1000)):
            await send(message(TOPIC, k % queues, body, b"warm%d" % k, b"TagA", k))
        quiet_collector()
        start_bytes = store.status.positions().wrote
        began = clock()
        await asyncio.gather(*(producer() for _ in range(producers)))
        seconds = (clock() - began) / 1e9
        length = store.status.positions().wrote - start_bytes
        # Where a file rolls: the answers of a thousand messages after the first record of each new log file.
        order = sorted(answers)
        rolled = [
            i
            for i in range(1, len(order))
            if order[i][0] // segment_bytes != order[i - 1][0] // segment_bytes
        ]
        near = sorted(order[j][1] for i in rolled for j in range(i, min(i + 1000, len(order))))
        show(
            {
                "mode": "sync",
                "flush": self.flush,
                "threads": producers,
                "body": self.size,
                "n": len(answers),
                "bad": bad,
                "sec": seconds,
                "msg_s": len(answers) / seconds,
                "msg_s_incl_dispatch": len(answers) / seconds,
                "MB_s": length / seconds / 1e6,
                "rolls": len(rolled),
                "roll_p99_us": near[len(near) * 99 // 100] / 1e3 if near else None,
                **percentiles([latency for _, latency in answers]),
            }
        )
        await loop.run_in_executor(None, self.end, store)

    def fill(self) -> None:
        """Encoded batches until the log has so many bytes; the same keys again in each, since only the bytes
        matter."""
        total, per, topic = self.number("bytes", 1 << 30), 64, self.text("topic", TOPIC)
        store = self.opened()
        number = 0
        while store.status.positions().wrote < total:
            encoded = encoded_batch(self.body, self.run, number * per, per)
            result = store.appender.put_batch(
                Message(
                    topic,
                    number % self.queues,
                    encoded,
                    born_timestamp=time.time_ns() // 1_000_000,
                    born_host=HOST,
                )
            )
            if result.status is PutStatus.OS_PAGE_CACHE_BUSY:  # only the bytes matter
                time.sleep(0.1)
                continue
            assert result.ok, result
            number += 1
        show({"mode": "fill", "n": number * per, "bytes": store.status.positions().wrote})
        self.end(store)

    # ---- reading

    def read(self) -> None:
        store = self.opened()
        self.read_all(store)
        self.end(store)

    def reread(self) -> None:
        """Read what this process wrote last, which the store still has mapped."""
        n, body, run, queues = self.number("n", 1_000_000), self.body, self.run, self.queues
        store = self.opened()
        for first in range(0, n, 64):
            store.appender.put_many(
                [
                    message(TOPIC, k % queues, body, b"%skey%d" % (run, k), TAGS[k % 5], k)
                    for k in range(first, min(first + 64, n))
                ]
            )
        self.read_all(store)
        self.end(store)

    def read_all(self, store: MessageStore) -> None:
        per = self.number("per", 32)
        for round_number in range(self.number("rounds", 2)):
            n = length = calls = 0
            began = time.perf_counter()
            for queue_id in range(self.queues):
                offset = store.reads.min_offset(TOPIC, queue_id)
                while True:
                    result = store.reads.get(GetRequest(TOPIC, queue_id, offset, per))
                    calls += 1
                    if result.status is not GetStatus.FOUND:
                        break
                    n += result.count
                    length += len(result.body)
                    offset = result.next_offset
            seconds = time.perf_counter() - began
            show(
                {
                    "mode": "read",
                    "round": round_number,
                    "per": per,
                    "n": n,
                    "calls": calls,
                    "sec": seconds,
                    "msg_s": n / seconds,
                    "MB_s": length / seconds / 1e6,
                }
            )

    def query(self) -> None:
        n, samples, run = self.number("n", 1_000_000), self.number("samples", 20_000), self.run.decode()
        store = self.opened()
        numbers = random.Random(3)
        for what in ("hit_first", "hit", "miss"):
            found, latencies = 0, [0] * samples
            began = time.perf_counter()
            for x in range(samples):
                key = f"{'nokey' if what == 'miss' else run + 'key'}{numbers.randrange(n)}"
                before = time.perf_counter_ns()
                result = store.reads.query_keys(TOPIC, key, 32, 0, 1 << 62)
                latencies[x] = time.perf_counter_ns() - before
                found += len(result.records)
            show(
                {
                    "mode": "query",
                    "what": what,
                    "samples": samples,
                    "found": found,
                    "q_s": samples / (time.perf_counter() - began),
                    **percentiles(latencies),
                }
            )
        self.end(store)

    def check(self) -> None:
        """Of a store that was left as kill -9 leaves it, so that recovery scans all of it; it is opened
        read-only, so it stays so."""
        settings = replace(self.store().settings, inspect=True)
        for number in range(self.number("repeats", 3) + 1):
            with MessageStore(settings) as store:
                steps = store.report.as_dict()["steps"]
            scan_s = sum(step["duration_ms"] for step in steps if step["name"] == "scan the log") / 1e3
            began = time.perf_counter()
            report = check_store(settings.store_path_root_dir)
            check_s = time.perf_counter() - began
            if number:  # the first brought the pages into memory
                show(
                    {
                        "mode": "check",
                        "bytes": report.counts["log_bytes"],
                        "ok": report.ok,
                        "scan_s": scan_s,
                        "check_s": check_s,
                        "of_scan_pct": 100 * scan_s / check_s,
                    }
                )

    def recover(self) -> None:
        abort = (self.directory / "abort").exists()
        store = self.store()
        began = time.perf_counter()
        store.open()
        opened = time.perf_counter()
        store.start()
        while (at := store.status.positions()).dispatched < at.wrote:
            time.sleep(0.001)
        ended = time.perf_counter()
        report = store.report.as_dict()
        show(
            {
                "mode": "recover",
                "abort_file": "yes" if abort else "no",
                "load_ms": (opened - began) * 1e3,
                "start_ms": (ended - opened) * 1e3,
                "total_ms": (ended - began) * 1e3,
                "max_phy": at.wrote,
                "q0": store.reads.max_offset(TOPIC, 0),
                "scanned_bytes": report["scanned_bytes"],
                "kind": report["kind"],
            }
        )
        self.end(store)


def quiet_collector() -> None:
    """What was made before the measured part is not walked again and again in it."""
    gc.collect()
    gc.freeze()


def percentiles(latencies: list[int] | None) -> dict[str, float]:
    if not latencies:
        return {}
    ordered = sorted(latencies)
    facts = {
        f"p{p:g}_us": ordered[min(len(ordered) - 1, int(len(ordered) * p / 100))] / 1e3
        for p in (50, 90, 99, 99.9)
    }
    return {**facts, "max_us": ordered[-1] / 1e3}


def show(facts: dict) -> None:
    print(
        json.dumps(
            {name: round(value, 3) if isinstance(value, float) else value for name, value in facts.items()}
        ),
        flush=True,
    )


def main() -> None:
    options = dict(word.split("=", 1) for word in sys.argv[3:])
    global unique_prefix
    unique_prefix = unique_prefix.ljust(int(options.get("unique", "32")) - 12, b"0")
    bench = Bench(Path(sys.argv[1]), options)
    sys.setswitchinterval(0.0005)  # as runbroker does
    getattr(bench, sys.argv[2])()


if __name__ == "__main__":
    main()
