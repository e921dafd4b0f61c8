"""`make bench`: our figures beside Apache's, measured in one run and alternating, with ratios and bounds.

    make bench                          everything, three times each (about an hour)
    make bench ONLY=put,batch           some sections; `--list` names them
    make bench ARGS="--repeats 1 --quick"   a look, a tenth of the messages

Each measurement is a process of its own that has the machine to itself, with nothing left to write back and
memory full of file cache; ours and Apache's take turns, and which of them goes first changes with each
repeat. A row is the median over the repeats with lowest and highest, and the ratio of the medians. Lines as
they were printed go to build/bench/results.jsonl; `--write` puts the table of each section that was run into
docs/BENCHMARKS.md, with the day and the machine it was measured on.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench import access_rows, filled_queues, grpc_rows, many, memory, replay, replicated
from tests.bench.page_cache import PageCache
from tests.interop.brokers import ApacheBroker, OurBroker, OurBrokerAlone
from tests.interop.clients import BUILD, JAVA_5, java_missing
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "tests" / "bench" / "peers"
WORK = ROOT / "build" / "bench"
STILL_S = 60  # until the host has taken what was freed
OURS, APACHE = "ours", "Apache"


@dataclass
class Row:
    """One figure. `bound` is what the ratio ours : Apache must reach (at most, when lower is better); ours
    alone is held to `limit` at most, `least` at least."""

    name: str
    unit: str
    bound: float | None = None
    lower_is_better: bool = False
    limit: float | None = None
    least: float | None = None
    values: dict[str, list[float]] = field(default_factory=lambda: {OURS: [], APACHE: []})

    @property
    def ratio(self) -> float | None:
        if not self.values[OURS] or not self.values[APACHE]:
            return None
        theirs = statistics.median(self.values[APACHE])
        return statistics.median(self.values[OURS]) / theirs if theirs else None

    @property
    def verdict(self) -> str:
        if self.limit is not None and self.values[OURS]:
            return "met" if statistics.median(self.values[OURS]) <= self.limit else "MISSED"
        if self.least is not None and self.values[OURS]:
            return "met" if statistics.median(self.values[OURS]) >= self.least else "MISSED"
        if self.bound is None or self.ratio is None:
            return ""
        return (
            "met"
            if (self.ratio <= self.bound if self.lower_is_better else self.ratio >= self.bound)
            else "MISSED"
        )


class Run:
    """Rows by name in the order they first appear, and the file of raw lines."""

    def __init__(self, repeats: int, quick: bool, seconds: int):
        self.repeats, self.quick, self.seconds = repeats, quick, seconds
        self.rows: dict[str, Row] = {}
        self.unique = 32
        WORK.mkdir(parents=True, exist_ok=True)
        self._raw = open(WORK / "results.jsonl", "a")
        self._page_cache = PageCache(WORK / "holes")

    def level_ground(self) -> None:
        """What an earlier measurement left dirty, or free, is not the next one's to write or to touch."""
        os.sync()
        self._page_cache.fill()

    def still_ground(self) -> None:
        """For times of single requests, which need little memory. Where memory is full the kernel makes room
        all the while, and a virtual machine gives that back to its host: then everything stands still, for up
        to a second."""
        os.sync()
        if self._page_cache.remove():
            time.sleep(STILL_S)

    def close(self) -> None:
        self._page_cache.remove()
        self._raw.close()

    def n(self, count: int) -> int:
        return count // 10 if self.quick else count

    def row(self, name: str, unit: str, **bounds) -> Row:
        return self.rows.setdefault(name, Row(name, unit, **bounds))

    def add(self, side: str, name: str, unit: str, value: float, **bounds) -> None:
        self.row(name, unit, **bounds).values[side].append(value)

    def keep(self, side: str, line: dict) -> dict:
        self._raw.write(json.dumps({"side": side, **line}) + "\n")
        self._raw.flush()
        return line

    def say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)

    def sides(self) -> list[str]:
        """Both, as often as it is repeated, in turns."""
        return [side for order in self.turns() for side in order]

    def turns(self) -> list[tuple[str, str]]:
        """For each repeat the two sides in order, the other one first each time."""
        return [(OURS, APACHE) if repeat % 2 == 0 else (APACHE, OURS) for repeat in range(self.repeats)]


# ---- the store alone


def store_lines(run: Run, side: str, directory: Path, mode: str, **options) -> list[dict]:
    """Runs one bench-store mode on one side, ours by bench_store.py, and gives the lines it printed."""
    run.level_ground()
    words = [f"{name}={value}" for name, value in options.items() if value is not None]
    if side == OURS:
        command = [
            sys.executable,
            "-m",
            "tests.bench.bench_store",
            str(directory),
            mode,
            f"unique={run.unique}",
            *words,
        ]
    else:
        command = [str(PEERS / "bench-store.sh"), str(directory), mode, *words]
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=dict(os.environ, RMQ_BUILD=str(BUILD)),
        timeout=900,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
    halted = options.get("end") == "halt" and done.returncode == 9
    if not lines or (done.returncode and not halted):
        raise SystemExit(f"{side} {mode} {words} failed ({done.returncode}): {done.stderr.decode()[-2000:]}")
    for line in lines:
        run.keep(side, {"options": options, **line})
    return lines


def fresh(name: str) -> Path:
    directory = WORK / name
    shutil.rmtree(directory, ignore_errors=True)
    return directory


def like_java(run: Run) -> None:
    """Java's unique keys are longer on some machines; ours are made as long, so that records have the same
    size."""
    java = store_lines(run, APACHE, fresh("probe-java"), "put", n=100, size=100)[0]
    ours = store_lines(run, OURS, fresh("probe-ours"), "put", n=100, size=100)[0]
    run.unique += java["avg_record"] - ours["avg_record"]
    fresh("probe-java"), fresh("probe-ours")


def written(run: Run, side: str, mode: str, **options) -> dict:
    directory = fresh("store")
    line = store_lines(run, side, directory, mode, **options)[0]
    assert line["bad"] == 0, line
    shutil.rmtree(directory)
    return line


def bench_put(run: Run) -> None:
    for size in (100, 1024):
        name = f"one by one, {size} B"
        for order in run.turns():
            for side in order:
                line = written(run, side, "put", n=run.n(1_000_000), size=size, warmup=run.n(100_000))
                run.add(side, name, "msg/s", line["msg_s_incl_dispatch"], bound=1.0)
                run.add(side, f"{name}: p50", "us", line["p50_us"])
            line = written(run, OURS, "put", n=run.n(1_000_000), size=size, warmup=run.n(100_000), given=1)
            run.add(OURS, f"{name}: from messages made before", "msg/s", line["msg_s_incl_dispatch"])


def bench_batch(run: Run) -> None:
    # 800 MB of 1 KiB messages: beyond that the disk decides, which the last rows show.
    for size, n, note in ((100, 3_000_000, ""), (1024, 650_000, ", 800 MB"), (1024, 3_000_000, ", 3.7 GB")):
        objects, encoded = (3.0, 6.0) if size == 100 else (2.5, 2.5)
        if note == ", 3.7 GB":
            objects = encoded = None
        for order in run.turns():
            for side in order:
                if side == APACHE:
                    rate = written(run, APACHE, "batch", n=run.n(n), size=size, per=64)["msg_s_incl_dispatch"]
                    for kind, bound in (
                        ("64 message objects", objects),
                        ("64 message objects and their making", None),
                        ("64 messages encoded", encoded),
                    ):
                        run.add(APACHE, f"{kind}, {size} B{note}", "msg/s", rate, bound=bound)
                else:
                    line = written(run, OURS, "objects", n=run.n(n), size=size, per=64, given=1)
                    run.add(
                        OURS,
                        f"64 message objects, {size} B{note}",
                        "msg/s",
                        line["msg_s_incl_dispatch"],
                        bound=objects,
                    )
                    line = written(run, OURS, "objects", n=run.n(n), size=size, per=64)
                    run.add(
                        OURS,
                        f"64 message objects and their making, {size} B{note}",
                        "msg/s",
                        line["msg_s_incl_dispatch"],
                    )
                    line = written(run, OURS, "batch", n=run.n(n), size=size, per=64)
                    run.add(
                        OURS,
                        f"64 messages encoded, {size} B{note}",
                        "msg/s",
                        line["msg_s_incl_dispatch"],
                        bound=encoded,
                    )


def bench_sync(run: Run) -> None:
    seconds = 3 if run.quick else 10
    name = "sync flush, 64 waiting producers, 1 KiB"
    for order in run.turns():
        for side in order:
            mode = (
                {"mode": "put", "threads": 64, "flush": "SYNC_FLUSH"}
                if side == APACHE
                else {"mode": "sync", "producers": 64}
            )
            line = written(run, side, n=2_000_000, size=1024, maxsec=seconds, warmup=1000, **mode)
            run.add(side, name, "msg/s", line["msg_s_incl_dispatch"], bound=1.7)
            run.add(side, f"{name}: p99", "us", line["p99_us"])
        # Small log files, so that many roll in these seconds.
        line = written(
            run, OURS, "sync", n=2_000_000, size=1024, maxsec=seconds, warmup=1000, producers=64, cl=64 << 20
        )
        if line["rolls"]:
            run.add(OURS, "sync flush, log files of 64 MiB: p99", "us", line["p99_us"])
            run.add(
                OURS,
                "sync flush, log files of 64 MiB: p99 of the 1,000 answers after a roll",
                "us",
                line["roll_p99_us"],
            )


def bench_read(run: Run) -> None:
    n = run.n(1_000_000)
    for size in (100, 1024):
        for order in run.turns():
            for side in order:
                directory = fresh("store")
                store_lines(run, side, directory, "put", n=n, size=size)
                rate = store_lines(run, side, directory, "read", per=32)[1]["msg_s"]
                run.add(side, f"queue read by 32, {size} B, store opened again", "msg/s", rate, bound=1.0)
                written_last = f"queue read by 32, {size} B, written last"
                run.add(
                    side,
                    written_last,
                    "msg/s",
                    rate
                    if side == APACHE
                    else store_lines(run, OURS, fresh("again"), "reread", n=n, size=size, per=32)[1]["msg_s"],
                    bound=1.0,
                )
                for line in store_lines(run, side, directory, "query", n=n):
                    what = {
                        "hit_first": "key lookup, first",
                        "hit": "key lookup",
                        "miss": "key lookup of no key",
                    }[line["what"]]
                    if line["what"] != "hit_first":
                        run.add(
                            side,
                            f"{what}, {size} B: p50",
                            "us",
                            line["p50_us"],
                            bound=0.5,
                            lower_is_better=True,
                        )
                shutil.rmtree(directory)
    fresh("again")


def bench_recover(run: Run) -> None:
    """1 GiB left as kill -9 leaves it; each recovery starts from the same copy."""
    for order in run.turns():
        for side in order:
            directory = fresh("store")
            store_lines(run, side, directory, "put", n=run.n(850_000), size=1024, end="halt")
            line = store_lines(run, side, directory, "recover", end="halt")[0]
            took = line["load_ms"] + line["start_ms"] + line.get("dispatch_s", 0) * 1e3
            run.add(side, "recovery of 1 GiB after kill -9", "ms", took, bound=0.25, lower_is_better=True)
            shutil.rmtree(directory)


def bench_doctor(run: Run) -> None:
    """The store doctor over 1 GiB in memory, beside recovery's scan of the same."""
    directory = fresh("store")
    store_lines(run, OURS, directory, "fill", bytes=run.n(1 << 30), size=1024, end="halt")
    for line in store_lines(run, OURS, directory, "check", repeats=run.repeats):
        run.add(OURS, "store doctor, 1 KiB, 1 GiB", "s", line["check_s"])
        run.add(OURS, "store doctor: speed, of recovery's scan", "%", line["of_scan_pct"], least=50)
    shutil.rmtree(directory)


def bench_clean(run: Run) -> None:
    directory = fresh("store")
    store_lines(run, OURS, directory, "fill", bytes=(1 << 30) if run.quick else (10 << 30), size=1024)
    for _ in range(run.repeats):
        line = store_lines(run, OURS, directory, "recover")[0]
        run.add(
            OURS,
            f"start on a clean store of {1 if run.quick else 10} GiB",
            "ms",
            line["total_ms"],
            limit=3000,
        )
    shutil.rmtree(directory)


# ---- over the wire


def client_lines(
    run: Run, side: str, nameserver: str, scenario: str, *, by_tls: bool = False, **options
) -> list[dict]:
    run.level_ground()
    words = [f"{name}={value}" for name, value in options.items()]
    done = subprocess.run(
        [str(PEERS / "bench-client.sh"), nameserver, scenario, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=dict(os.environ, RMQ_BUILD=str(BUILD))
        | ({"CLIENT_FLAGS": "-Dtls.enable=true"} if by_tls else {}),
        timeout=600,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
    if done.returncode or not lines:
        raise SystemExit(
            f"bench-client {scenario} {words} against {side} failed: {done.stdout.decode()[-500:]} "
            f"{done.stderr.decode()[-1500:]}"
        )
    return [run.keep(side, {"options": options, **line}) for line in lines]


def wire_scenarios(
    run: Run,
) -> list[tuple[str, dict, Callable[[list[dict]], list[tuple[str, str, float, dict]]]]]:
    """Scenario, its options, and what of its lines goes into the table: those of
    peers/bench-client-all.sh."""
    timed = {"sec": run.seconds, "warm": 3}
    rate = {"bound": 1.0}

    def one(name: str):
        return lambda lines: [(name, "msg/s", lines[-1]["msg_s"], rate)]

    def end_to_end(name: str):
        return lambda lines: [
            (f"{name}: p50", "us", lines[0]["p50_us"], {"bound": 0.5, "lower_is_better": True}),
            (f"{name}: p99", "us", lines[0]["p99_us"], {}),
            (f"{name}: send p50", "us", lines[1]["p50_us"], {}),
        ]

    scenarios = [
        (
            "sync",
            {"threads": threads, "size": size, **timed},
            one(f"wire: sync send, {threads} threads, {size} B"),
        )
        for size in (100, 1024)
        for threads in (1, 8, 64)
    ]
    scenarios += [
        (
            "async",
            {"window": window, "size": size, **timed},
            one(f"wire: async send, window {window}, {size} B"),
        )
        for window, size in ((256, 1024), (64, 100))
    ]
    scenarios += [
        (
            "batch",
            {"per": 32, "size": 1024, "threads": threads, **timed},
            one(f"wire: batches of 32, {threads} threads, 1 KiB"),
        )
        for threads in (1, 4)
    ]
    scenarios += [
        ("push", {"n": run.n(300_000), "size": 1024}, one("wire: push consumer, 1 KiB")),
        ("pull", {"n": run.n(100_000), "size": 1024}, one("wire: pull, 1 KiB")),
    ]
    scenarios += [
        ("e2e", {"rate": rate_, "size": size, **timed}, end_to_end(f"wire: end to end, {rate_}/s, {size} B"))
        for rate_, size in ((200, 1024), (1000, 100))
    ]
    return scenarios


def broker_of(side: str, **more):
    os.environ["BROKER_HEAP"] = "1g"  # Apache's, as its own scripts have it in these figures
    return (OurBrokerAlone if side == OURS else ApacheBroker)(fresh("broker"), **more)


@contextmanager
def running(side: str, **more) -> Iterator[OurBroker | ApacheBroker]:
    """A broker with a new store, until the end of the block; `more` is what its class takes."""
    broker = broker_of(side, **more).start()
    try:
        yield broker
    finally:
        broker.stop()
        fresh("broker")


def bench_wire(run: Run) -> None:
    for side in run.sides():
        with running(side) as broker:
            # Warms the broker; not kept
            client_lines(
                run, side, broker.nameserver, "sync", threads=8, size=100, sec=3 if run.quick else 15
            )
            for scenario, options, figures in wire_scenarios(run):
                run.say(f"{side} {scenario} {options}")
                for name, unit, value, bounds in figures(
                    client_lines(run, side, broker.nameserver, scenario, **options)
                ):
                    run.add(side, name, unit, value, **bounds)


def bench_tls(run: Run) -> None:
    """Java clients with TLS and without, at the broker port."""
    timed = {"sec": run.seconds, "warm": 3}
    scenarios = {
        "sync sends, 8 threads, 1 KiB": ("sync", {"threads": 8, "size": 1024, **timed}),
        "sync sends, 64 threads, 1 KiB": ("sync", {"threads": 64, "size": 1024, **timed}),
        "async sends, window 256, 1 KiB": ("async", {"window": 256, "size": 1024, **timed}),
        "batches of 32, 4 threads, 1 KiB": ("batch", {"per": 32, "size": 1024, "threads": 4, **timed}),
        "push consumer, 1 KiB": ("push", {"n": run.n(300_000), "size": 1024}),
    }
    for side in run.sides():
        with running(side, settings={"tls.server.mode": "permissive"} if side == OURS else {}) as broker:
            warm_s = 3 if run.quick else 15
            for by_tls in (True, False):  # warms the broker; not kept
                client_lines(
                    run, side, broker.nameserver, "sync", by_tls=by_tls, threads=8, size=100, sec=warm_s
                )
            for name, (scenario, options) in scenarios.items():
                run.say(f"{side} {name}")
                for by_tls in (True, False):
                    lines = client_lines(run, side, broker.nameserver, scenario, by_tls=by_tls, **options)
                    run.add(
                        side, f"wire{' by TLS' if by_tls else ''}: {name}", "msg/s", lines[-1]["msg_s"],
                        bound=1.0,
                    )  # fmt: skip


def bench_access(run: Run) -> None:
    """Java clients that send with access control and without: a broker of each kind, one after another."""
    timed = {"sec": run.seconds, "warm": 3}
    scenarios = {
        "sync sends, 8 threads, 1 KiB": ("sync", {"threads": 8, "size": 1024, **timed}),
        "sync sends, 64 threads, 1 KiB": ("sync", {"threads": 64, "size": 1024, **timed}),
        "async sends, window 256, 1 KiB": ("async", {"window": 256, "size": 1024, **timed}),
    }
    for side in run.sides():
        rates: dict[str, list[float]] = {name: [] for name in scenarios}
        for is_on in (False, True):
            with running(side, settings=access_rows.SETTINGS if is_on else {}) as broker:
                signed = {}
                if is_on:
                    signed = access_rows.add_user(broker.nameserver, f"127.0.0.1:{broker.broker_port}")
                client_lines(
                    run,
                    side,
                    broker.nameserver,
                    "sync",
                    threads=8,
                    size=100,
                    sec=3 if run.quick else 15,
                    **signed,
                )  # warms the broker; not kept
                for name, (scenario, options) in scenarios.items():
                    run.say(f"{side} {name}, access control {'on' if is_on else 'off'}")
                    line = client_lines(run, side, broker.nameserver, scenario, **options, **signed)[-1]
                    if line["bad"] > line["n"] / 10:  # a loaded machine refuses some
                        raise SystemExit(
                            f"{side} {name}: {line['bad']:,} sends failed, {line['n']:,} did not"
                        )
                    rates[name].append(line["msg_s"])
                    how = "access control" if is_on else "no access control"
                    run.add(side, f"wire, {how}: {name}", "msg/s", line["msg_s"], bound=1.0)
        for name, (off, on) in rates.items():
            run.add(side, f"access control costs: {name}", "%", 100 * (1 - on / off))


def bench_replay(run: Run) -> None:
    """A group that reads 4 GiB from the disk while another client sends 1,000 messages a second."""
    for _ in range(run.repeats):
        broker = broker_of(OURS)
        store_lines(
            run,
            OURS,
            broker.store,
            "fill",
            bytes=(1 << 29) if run.quick else (4 << 30),
            size=1024,
            topic=replay.TOPIC,
        )
        broker.start()
        try:

            def send_p99(broker=broker) -> float:
                return client_lines(
                    run, OURS, broker.nameserver, "e2e", rate=1000, size=1024, sec=run.seconds, warm=3
                )[1]["p99_us"]

            alone = send_p99()
            with replay.Reader(broker) as reader:
                beside = send_p99()
            run.keep(
                OURS,
                {
                    "scenario": "replay",
                    "alone_us": alone,
                    "beside_us": beside,
                    "read_bytes": reader.read_bytes,
                    "rounds": reader.rounds,
                },
            )
            run.add(OURS, "wire: p99 of sends at 1,000/s", "us", alone)
            run.add(OURS, "wire: the same beside a group that replays cold log", "us", beside)
            run.add(
                OURS, "wire: p99 of sends beside a replay, times that without", "x", beside / alone, limit=2.0
            )
            run.add(OURS, "wire: speed of that replay", "MB/s", reader.read_bytes / reader.seconds / 1e6)
        finally:
            broker.stop()
    shutil.rmtree(WORK / "broker", ignore_errors=True)


def bench_memory(run: Run) -> None:
    for order in run.turns():
        for side in order:
            run.level_ground()
            broker = broker_of(
                side, **({"arguments": ("--web-port", str(free_port()))} if side == OURS else {})
            ).start()
            try:
                run.add(
                    side,
                    "start on an empty store to READY",
                    "s",
                    broker.seconds_to_ready,
                    **({"limit": 4.0} if side == OURS else {}),
                )
                facts = memory.at_rest(broker.pid)
                run.keep(side, {"scenario": "memory", **facts})
                run.add(
                    side,
                    "anonymous memory of the broker process at rest",
                    "MB",
                    facts["broker_anon_mb"],
                    limit=300,
                )
                run.add(
                    side,
                    "anonymous memory of all its processes at rest",
                    "MB",
                    facts["all_anon_mb"],
                    limit=550,
                )
            finally:
                broker.stop()
    shutil.rmtree(WORK / "broker", ignore_errors=True)


def bench_queues(run: Run) -> None:
    """5,000 topics of 8 queues, each queue with a message."""
    broker = broker_of(OURS)
    filled_queues.fill(broker.store)
    broker.start()
    try:
        filled_queues.give(broker.broker_port)
        facts = filled_queues.facts(broker.pid)
        run.keep(OURS, {"scenario": "queues", **facts})
        for name, unit in (
            ("descriptors", ""),
            ("maps", ""),
            ("anonymous", "MB"),
            ("file", "MB"),
            ("page_tables", "MB"),
        ):
            value = facts[f"{name}_mb" if unit else name]
            run.add(OURS, f"5,000 topics of 8 filled queues: {name.replace('_', ' ')}", unit, value)
    finally:
        broker.kill9()  # a stop would sync 40,000 files first, and the store is not needed
    shutil.rmtree(WORK / "broker", ignore_errors=True)


# ---- a master and its slave


def bench_ha(run: Run) -> None:
    """Sends to a master whose slave follows, the slave's lag at 20,000 sends a second, how fast a new slave
    catches up, and how long no send is acknowledged when a controller elects another master."""
    for side in run.sides():
        is_ours = side == OURS
        run.say(f"{side}, a master and its slave")
        for role in ("ASYNC_MASTER", "SYNC_MASTER"):
            pair = replicated.Pair(fresh("broker"), is_ours, role)
            with pair.running():
                for threads in (1, 64):
                    options = {
                        "threads": threads,
                        "size": 1024,
                        "sec": run.seconds,
                        "warm": 3 if run.quick else 10,
                    }
                    lines = client_lines(run, side, pair.master.nameserver, "sync", **options)
                    name = f"{role}: sync send, {threads} threads, 1 KiB"
                    run.add(side, name, "msg/s", lines[-1]["msg_s"], bound=1.3)
                if role == "ASYNC_MASTER":
                    _add_lag(run, side, pair)
        _add_catch_up(run, side)
        _add_failovers(run, side)
    fresh("broker")


def _add_lag(run: Run, side: str, pair: replicated.Pair) -> None:
    run.level_ground()
    with replicated.Sender(pair.master.broker_port, replicated.RATE, 1024) as sender:
        time.sleep(3)  # until the rate is even
        found = sorted(replicated.lag_ms(pair, run.seconds))
    name = "slave's lag at 20,000 sends/s, 1 KiB"
    run.add(side, f"{name}: refused sends", "%", 100 * sender.refused / sender.sent)
    run.add(side, f"{name}: p50", "ms", found[len(found) // 2])
    run.add(side, f"{name}: p99", "ms", found[len(found) * 99 // 100], bound=1.0, lower_is_better=True)


def _add_catch_up(run: Run, side: str) -> None:
    directory = fresh("store")
    # The last file is nearly full.
    line = store_lines(
        run, OURS, directory, "fill", bytes=(1 if run.quick else 4) * 1_065_000_000, size=1024
    )[0]
    pair = replicated.Pair(fresh("broker"), side == OURS, "ASYNC_MASTER", directory)
    rate = replicated.disk_rate(WORK / "disk", run.n(4 << 30))
    run.level_ground()
    with pair.running():
        found = replicated.caught_up(pair, int(line["bytes"]))
    run.add(side, "catching up on 4 GiB", "MB/s", found / 1e6, bound=2.0)
    if side == OURS:
        run.add(side, "catching up, of what the disk writes", "%", 100 * found / rate, least=50)


def _add_failovers(run: Run, side: str) -> None:
    run.level_ground()
    for seconds in replicated.failover_s(fresh("broker"), side == OURS, 1 if run.quick else 3):
        run.add(
            side,
            "the master is killed: until a send is acknowledged",
            "s",
            seconds,
            bound=1.0,
            lower_is_better=True,
        )


# ---- the Store pages, watched


LOG_IN = """
from django.contrib.auth import get_user_model
from django.test import Client
client = Client()
client.force_login(get_user_model().objects.KIND("bench"))
print("SESSION", client.cookies["mqadmin_session"].value)
"""


def log_in(data: Path, kind: str = "create_user") -> str:
    """The session of a new user of the dashboard of a broker that runs; `kind` is the method that makes the
    user."""
    done = subprocess.run(
        [sys.executable, "manage.py", "shell", "-c", LOG_IN.replace("KIND", kind)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=dict(os.environ, BROKER_DATA_DIR=str(data)),
        timeout=120,
    )
    if done.returncode:
        raise SystemExit(f"no session for the dashboard: {done.stderr[-1500:]}")
    return next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("SESSION"))


def watched_rounds(run: Run, seconds: float, first: str) -> list[dict]:
    """A round without, and one with the Store pages open in five browsers, on a broker of its own; `first`
    says which begins."""
    run.still_ground()
    web_port = free_port()
    broker = broker_of(OURS, arguments=("--web-port", str(web_port))).start()
    try:
        words = [
            broker.nameserver,
            str(broker.broker_port),
            str(web_port),
            str(broker.pid),
            log_in(broker.data),
            str(seconds),
            first,
        ]
        done = subprocess.run(
            [sys.executable, "-m", "tests.bench.watched", *words],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=300,
        )
        if done.returncode:
            raise SystemExit(f"watched Store pages failed: {done.stderr.decode()[-3000:]}")
        lines = [
            run.keep(OURS, {"scenario": "watched", **json.loads(line)}) for line in done.stdout.splitlines()
        ]
        return sorted(lines, key=lambda line: line["watched"])
    finally:
        broker.stop()


def bench_pages(run: Run) -> None:
    """What open Store pages cost a broker. Ours alone: Apache has nothing to stand beside it."""
    rounds = [
        watched_rounds(run, 3 if run.quick else 15, ("without", "with")[repeat % 2])
        for repeat in range(run.repeats)
    ]
    rates = [alone["full_speed_s"] for alone, _ in rounds]
    for alone, watched in rounds:
        more = watched["cpu_ms_per_s"] - alone["cpu_ms_per_s"]
        run.add(OURS, "processor time at 2,000 sends/s, a second", "ms", alone["cpu_ms_per_s"])
        run.add(OURS, "more with every Store page open in 5 browsers", "ms", more, limit=40)
        run.add(OURS, "p99 of a send at that rate", "us", alone["p99_us"])
        run.add(
            OURS,
            "p99 with the pages, times that without",
            "x",
            watched["p99_us"] / alone["p99_us"],
            limit=1.1,
        )
        run.add(
            OURS,
            "refused at that rate, 200 ms after they came, with and without",
            "sends",
            watched["refused"] + alone["refused"],
        )
        run.add(OURS, "sends at full speed, 64 waiting", "msg/s", alone["full_speed_s"])
        # Within the spread of the runs without.
        run.add(OURS, "the same with the pages", "msg/s", watched["full_speed_s"], least=min(rates))
    shutil.rmtree(WORK / "broker", ignore_errors=True)


SETTLE_S = 45


def bench_many(run: Run) -> None:
    """What a send waits while pages of 100,000 topics are read. Ours alone: what is visited is our dashboard, and
    Apache has no figure beside it."""
    run.still_ground()
    web_port = free_port()
    topics = many.TOPICS // 10 if run.quick else many.TOPICS
    directory = fresh("broker")
    many.fill(directory / "store", topics, topics // 5)
    # What requests make comes on top of what the store has.
    broker = OurBrokerAlone(directory, {"maxTopics": 2 * many.TOPICS}, ("--web-port", str(web_port))).start()
    try:
        words = [
            broker.nameserver,
            str(broker.broker_port),
            str(web_port),
            str(broker.data),
            log_in(broker.data, "create_superuser"),
        ]
        subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.bench.many",
                "give",
                str(broker.broker_port),
                str(many.WITH_MESSAGES * topics // many.TOPICS),
            ],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            check=True,
            timeout=300,
        )
        time.sleep(SETTLE_S)  # what was sent is synced: 25,000 queue files
        done = subprocess.run(
            [sys.executable, "-m", "tests.bench.many", *words],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=1_800,
        )
        if done.returncode:
            raise SystemExit(f"many topics failed: {done.stderr.decode()[-3000:]}")
        quiet_ms = longest_quiet_ms = None
        for line in (
            run.keep(OURS, {"scenario": "many", **json.loads(line)}) for line in done.stdout.splitlines()
        ):
            name = f"longest wait of a send, {topics:,} topics: {line['what']}"
            # What a send waits with nothing asked is the machine's; what is asked for may add 20 ms.
            limit = {} if longest_quiet_ms is None else {"limit": longest_quiet_ms + 20.0}
            run.add(OURS, name, "ms", line["longest_ms"], **limit)
            if longest_quiet_ms is None:  # the first line is that of nothing
                longest_quiet_ms, quiet_ms = line["longest_ms"], line["p999_ms"]
                run.add(OURS, f"p99.9 of sends, {topics:,} topics, nothing", "ms", quiet_ms)
            else:
                run.add(
                    OURS,
                    f"p99.9 of sends, times that with nothing: {line['what']}",
                    "x",
                    line["p999_ms"] / quiet_ms,
                )
            if "failed" in line:
                raise SystemExit(f"{line['what']}: {line['failed']}")
    finally:
        broker.stop()
    shutil.rmtree(directory, ignore_errors=True)


# ---- kinds of messages, filters, parked pulls


def kinds_scenarios(run: Run) -> list[tuple[str, dict, str]]:
    """Scenario of the Java client, its options, the row's name; each is held against Apache's rate."""
    timed = {"size": 1024, "sec": run.seconds, "warm": 3}
    scenarios = [
        (
            "sync",
            {"level": 1, "threads": threads, **timed},
            f"wire: sends with a delay level of 1 s, {threads} threads, 1 KiB",
        )
        for threads in (8, 64)
    ]
    scenarios += [
        (
            "sync",
            {"timer": 5000, "threads": 64, **timed},
            "wire: sends with a timer of 5 s, 64 threads, 1 KiB",
        )
    ]
    scenarios += [
        (
            "tran",
            {"threads": threads, **timed},
            f"wire: transactions, sent and committed, {threads} threads, 1 KiB",
        )
        for threads in (8, 64)
    ]
    scenarios += [
        (
            "pull",
            {"n": run.n(320_000), "size": size, "tags": tags},
            f"wire: pull of one tag of {tags}, messages passed, {size} B",
        )
        for tags, size in ((8, 100), (8, 1024), (32, 100))
    ]
    return scenarios


def parked_line(run: Run, side: str, broker, mode: str) -> dict:
    run.still_ground()
    command = [
        sys.executable,
        "-m",
        "tests.bench.parked",
        broker.nameserver,
        str(broker.broker_port),
        str(broker.pid),
        mode,
    ]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"parked pulls, {mode}, on {side} failed: {done.stderr.decode()[-1500:]}")
    return run.keep(side, json.loads(done.stdout))


def due_rows(run: Run, side: str, broker, waiting: int, due: int) -> None:
    """How late messages come whose time is the same, of either kind."""
    for kind in ("timer", "level"):
        run.say(f"{side} {due:,} {kind} messages due at once, {waiting:,} waiting")
        run.still_ground()
        command = [sys.executable, "-m", "tests.bench.due", broker.nameserver, kind, str(waiting), str(due)]
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=1800)
        if done.returncode:
            raise SystemExit(
                f"messages due at once, {kind}, on {side} failed: {done.stderr.decode()[-1500:]}"
            )
        line = run.keep(side, json.loads(done.stdout))
        name = (
            f"{due:,} messages with {'a timer' if kind == 'timer' else 'a delay level'} due at once, "
            f"{waiting:,} waiting"
        )
        run.add(side, f"{name}: the soonest, after its time", "ms", line["soonest_ms"], least=0)
        run.add(side, f"{name}: the latest", "ms", line["latest_ms"], limit=1000)


def bench_kinds(run: Run) -> None:
    """Delayed, timed and transactional sends, and pulls with a filter."""
    for side in run.sides():
        with running(side) as broker:
            # Warms the broker; not kept
            client_lines(
                run, side, broker.nameserver, "sync", threads=8, size=100, sec=3 if run.quick else 15
            )
            for scenario, options, name in kinds_scenarios(run):
                run.say(f"{side} {scenario} {options}")
                line = client_lines(run, side, broker.nameserver, scenario, **options)[-1]
                if line.get("bad"):
                    run.say(f"{side} refused {line['bad']} of {line['bad'] + line['n']}")
                if line["n"]:  # a broker that does not serve this kind has no figure
                    run.add(side, name, "msg/s", line["msg_s"], bound=1.0)


def bench_due(run: Run) -> None:
    """How late messages come whose time is the same; ten times as many on ours alone, once, to see what
    gives."""
    for side in run.sides():
        with running(side) as broker:
            due_rows(run, side, broker, run.n(100_000), run.n(1_000))
    with running(OURS) as broker:
        due_rows(run, OURS, broker, run.n(1_000_000), run.n(10_000))


def bench_parked(run: Run) -> None:
    """10,000 pulls that wait."""
    for side in run.sides():
        with running(side) as broker:
            run.say(f"{side} 10,000 parked pulls")
            spread, burst, one = (parked_line(run, side, broker, mode) for mode in ("spread", "burst", "one"))
            name = "10,000 pulls parked on 10,000 queues, messages into 100"
            run.add(side, f"{name}: p50 from send to answer", "us", spread["p50_us"])
            run.add(side, f"{name}: p99 from send to answer", "us", spread["p99_us"], limit=1000)
            run.add(side, f"{name}, all at once: p99", "us", burst["p99_us"])
            run.add(
                side,
                "10,000 pulls parked on one queue: until the last is answered",
                "ms",
                one["p50_us"] / 1e3,
                limit=300,
            )
            idle = parked_line(run, side, broker, "idle")
            run.add(
                side, "processor time while 10,000 pulls are parked, a second", "ms", idle["parked_ms_per_s"]
            )
            run.add(
                side,
                "the same, more than without them",
                "ms",
                max(0.0, idle["parked_ms_per_s"] - idle["without_ms_per_s"]),
                limit=1,
            )


def raw_line(run: Run, side: str, broker, module: str, messages: int) -> dict:
    """Run a program whose client costs little on a broker, and return the line that it prints."""
    run.level_ground()
    words = [broker.nameserver, str(broker.broker_port), str(run.seconds), str(run.n(messages))]
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=900,
    )
    if done.returncode:
        raise SystemExit(f"{module} on {side} failed: {done.stderr.decode()[-1500:]}")
    return run.keep(side, json.loads(done.stdout))


def bench_sql(run: Run) -> None:
    """Pulls with a SQL92 expression that passes one message of eight."""
    for side in run.sides():
        with running(side, settings={"enablePropertyFilter": "true"}) as broker:
            run.say(f"{side} pulls with SQL92")
            line = raw_line(run, side, broker, "tests.bench.sql", 800_000)
            name = "wire: pulls with `a > 5 AND b = 'x'`, which passes 1 of 8, 100 B"
            run.add(side, f"{name}: messages read", "msg/s", line["looked_s"], bound=2.0)
            run.add(side, f"{name}: pulls", "1/s", line["pulls_s"])


def bench_pop(run: Run) -> None:
    """Pops of 32 messages by four connections, each message acknowledged by a request of its own."""
    for side in run.sides():
        with running(side) as broker:
            run.say(f"{side} pops")
            line = raw_line(run, side, broker, "tests.bench.pop", 1_500_000)
            name = "wire: pops of 32 by 4 connections, each message acknowledged, 100 B"
            run.add(side, f"{name}: messages", "msg/s", line["given_s"], bound=1.0)


def grpc_figures(run: Run, side: str, broker: OurBroker | ApacheBroker) -> None:
    """The figures of one broker that serves gRPC."""
    topic = "BenchGrpc"
    grpc_rows.make_topic(broker, topic)
    timed = {"warm": 3, "sec": run.seconds}
    grpc_rows.java(broker, topic, "sync", threads=16, warm=0, sec=3 if run.quick else 20)  # warms; not kept
    for threads, bound in ((1, 1.3), (8, 1.4), (64, 1.5)):
        run.level_ground()
        line = run.keep(side, grpc_rows.java(broker, topic, "sync", threads=threads, **timed))
        name = f"gRPC: sync sends, {threads} thread{'s' if threads > 1 else ''}, 1 KiB"
        run.add(side, name, "msg/s", line["msg_s"], bound=bound)
        run.add(side, f"{name}: p50", "us", line["p50_us"])
        run.add(side, f"{name}: p99", "us", line["p99_us"], bound=0.8, lower_is_better=True)
        if threads == 64:
            run.add(
                side, f"{name}: processor time a message", "us", line["cpu_us"], bound=0.5,
                lower_is_better=True,
            )  # fmt: skip
    line = run.keep(side, grpc_rows.java(broker, topic, "async", window=256, **timed))
    run.add(side, "gRPC: async sends, 256 under way, 1 KiB", "msg/s", line["msg_s"], bound=1.0)
    line = run.keep(side, grpc_rows.java(broker, topic, "sync", threads=64, ssl="false", **timed))
    run.add(side, "gRPC: sync sends, 64 threads, 1 KiB, without TLS", "msg/s", line["msg_s"])
    for tls, bound in ((False, 1.8), (True, 2.0)):
        run.level_ground()
        grpc_rows.h2load(broker, topic, 3, WORK, tls=tls)  # warms; not kept
        line = run.keep(side, grpc_rows.h2load(broker, topic, run.seconds, WORK, tls=tls))
        name = f"gRPC: sends of a C client, 4 × 16 streams, 1 KiB{', TLS' if tls else ''}"
        run.add(side, name, "calls/s", line["calls_s"], bound=bound)
    run.level_ground()
    grpc_rows.make_topic(broker, "BenchReceive")
    line = run.keep(side, grpc_rows.java(broker, "BenchReceive", "receive", n=run.n(250_000), **timed))
    name = "gRPC: receives of 32 and their acknowledgements, 4 threads, 1 KiB"
    run.add(side, name, "msg/s", line["msg_s"], bound=1.2)
    run.add(side, f"{name}: processor time a message", "us", line["cpu_us"])


def bench_grpc(run: Run) -> None:
    """Clients of RocketMQ 5, beside Apache's proxy with a broker in it."""
    for side in run.sides():
        run.say(f"{side} gRPC")
        with running(side, has_grpc=True) as broker:
            grpc_figures(run, side, broker)


# ---- the pipeline


def pipeline_lines(run: Run, store: Path, mode: str, **options) -> list[dict]:
    """Runs one mode of tests/bench/pipeline.py, in a Spark session of its own."""
    run.level_ground()
    command = [
        sys.executable,
        "-m",
        "tests.bench.pipeline",
        str(store),
        mode,
        *(f"{name}={value}" for name, value in options.items()),
    ]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=1800)
    if done.returncode:
        raise SystemExit(f"{mode} of {store} failed: {done.stderr.decode()[-3000:]}")
    return [run.keep(OURS, {"options": options, **json.loads(line)}) for line in done.stdout.splitlines()]


def command_seconds(*words: str) -> float:
    """How long a command of manage.py takes from its start to its end."""
    data = WORK / "data"
    data.mkdir(mode=0o700, exist_ok=True)
    environment = dict(os.environ, BROKER_DATA_DIR=str(data))
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment,
        timeout=1800,
    )
    if done.returncode:
        raise SystemExit(f"manage.py {' '.join(words)} failed: {done.stderr.decode()[-3000:]}")
    return time.perf_counter() - began


def bench_pipeline(run: Run) -> None:
    """Spark in local[2] over stores made by the engine. Ours alone: Apache has nothing to stand beside it."""
    store, seconds = fresh("store"), {}
    for size in (1, 4):
        store_lines(run, OURS, fresh("store"), "fill", bytes=run.n(size << 30), size=100)
        for line in pipeline_lines(run, store, "scan", repeats=run.repeats):
            name = f"pipeline: scan of {line['what']}, 100 B, {size} GiB"
            run.add(
                OURS,
                name,
                "records/s",
                line["records_s"],
                **({"least": 1_500_000} if line["what"] == "numbers" else {}),
            )
            if line["what"] == "numbers" and size == 4:
                # Of the longer run, where less of the time is Spark's planning and starting.
                run.add(
                    OURS,
                    "pipeline: kernels and Arrow, CPU, of the tasks' time",
                    "%",
                    line["made_pct"],
                    limit=25,
                )
                run.add(OURS, "pipeline: reading the log, CPU, of the tasks' time", "%", line["file_pct"])
                run.add(
                    OURS,
                    "pipeline: Python handing batches on, CPU, of the tasks' time",
                    "%",
                    line["handed_pct"],
                )
                run.add(OURS, "pipeline: Java on the rows, CPU, of the tasks' time", "%", line["jvm_pct"])
            seconds.setdefault((line["what"], size), []).append(line["sec"])
    for one, four in zip(seconds["numbers", 1], seconds["numbers", 4], strict=True):
        run.add(OURS, "pipeline: scan of numbers, 4 GiB beside 1 GiB", "x the time", four / one, limit=4.4)
    audits, archives = {}, {1: [], 4: []}
    for size in (1, 4):
        store_lines(run, OURS, fresh("store"), "fill", bytes=run.n(size << 30), size=1024)
        if size == 1:
            for _ in range(run.repeats):
                run.add(
                    OURS,
                    "pipeline: the command audit, 1 KiB, 1 GiB",
                    "s",
                    command_seconds("pipeline", "audit", "--store", str(store)),
                )
                run.add(
                    OURS, "pipeline: check_store of the same", "s", command_seconds("check_store", str(store))
                )
        for _ in range(run.repeats if size == 1 else 1):  # 4 GiB take two minutes
            line = pipeline_lines(run, store, "archive", out=str(fresh("archive")))[0]
            run.add(OURS, f"pipeline: archive to Parquet, 1 KiB, {size} GiB", "MB/s", line["MB_s"])
            archives[size].append(line["sec"])
        audits[size] = [line["sec"] for line in pipeline_lines(run, store, "audit", repeats=run.repeats)]
        for value in audits[size]:
            run.add(OURS, f"pipeline: audit in an open session, 1 KiB, {size} GiB", "s", value)
    for one, four in zip(audits[1], audits[4], strict=True):
        run.add(OURS, "pipeline: audit, 4 GiB beside 1 GiB", "x the time", four / one, limit=4.4)
    for one in archives[1]:
        run.add(OURS, "pipeline: archive, 4 GiB beside 1 GiB", "x the time", archives[4][0] / one, limit=4.4)
    fresh("store"), fresh("archive")


# ---- scans of a store


def bench_inside(run: Run) -> None:
    """What the Store pages ask for. Ours alone: Apache has nothing to stand beside it."""
    for module, mode, name, limit in (
        ("inside", "cache", "inside: which pages of 10 GiB of log are in memory", 200),
        ("inside", "layout", "inside: how 4 million messages lie in the log", None),
        ("index", "slots", "inside: heat map of a full index file of 420 MB", 300),
        ("index", "chains", "inside: its chains of 20 million entries", None),
    ):
        for _ in range(run.repeats):
            command = [sys.executable, "-m", f"tests.bench.{module}", str(fresh("inside")), mode]
            done = subprocess.run(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=600
            )
            if done.returncode:
                raise SystemExit(f"{mode} failed: {done.stderr.decode()[-3000:]}")
            line = run.keep(OURS, {"scenario": f"inside {mode}", **json.loads(done.stdout)})
            run.add(OURS, name, "ms", line["ms"], limit=limit)
            run.add(OURS, f"{name}, processor time", "ms", line["cpu_ms"])
    fresh("inside")


SECTIONS = {
    "put": bench_put,
    "batch": bench_batch,
    "sync": bench_sync,
    "read": bench_read,
    "recover": bench_recover,
    "doctor": bench_doctor,
    "clean": bench_clean,
    "wire": bench_wire,
    "kinds": bench_kinds,
    "due": bench_due,
    "sql": bench_sql,
    "pop": bench_pop,
    "grpc": bench_grpc,
    "tls": bench_tls,
    "access": bench_access,
    "parked": bench_parked,
    "replay": bench_replay,
    "memory": bench_memory,
    "queues": bench_queues,
    "ha": bench_ha,
    "pages": bench_pages,
    "many": bench_many,
    "pipeline": bench_pipeline,
    "inside": bench_inside,
}


# ---- the table


def number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread(values: list[float]) -> str:
    if not values:
        return ""
    text = number(statistics.median(values))
    return text if len(values) == 1 else f"{text} ({number(min(values))}–{number(max(values))})"


def bound_text(row: Row) -> str:
    if row.limit is not None:
        return f"≤ {number(row.limit)} {row.unit}"
    if row.least is not None:
        return f"≥ {number(row.least)} {row.unit}"
    return "" if row.bound is None else f"{'≤' if row.lower_is_better else '≥'} {row.bound:g}"


def table(rows: list[Row]) -> str:
    head = [
        "figure",
        "unit",
        "ours: median (range)",
        f"Apache {JAVA_5}: median (range)",
        "ratio",
        "bound",
        "",
    ]
    cells = [
        [
            row.name,
            row.unit,
            spread(row.values[OURS]),
            spread(row.values[APACHE]),
            f"{row.ratio:.2f}" if row.ratio is not None else "",
            bound_text(row),
            row.verdict,
        ]
        for row in rows
    ]
    widths = [max(len(line[i]) for line in [head, *cells]) for i in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in [head, *cells]
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def machine() -> str:
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    return (
        f"{os.cpu_count()} cores ({model}), {memory_gb:.0f} GB, Linux {platform.release()}, Python "
        f"{platform.python_version()}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, between commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=10, help="of each timed client scenario")
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the messages: to see that everything works"
    )
    parser.add_argument("--write", action="store_true", help="put the table into docs/BENCHMARKS.md")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(SECTIONS))
        return
    wanted = arguments.only.split(",")
    if unknown := [section for section in wanted if section not in SECTIONS]:
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    if reason := java_missing(JAVA_5):
        raise SystemExit(f"make bench measures beside Apache's store and broker: {reason}")
    with closing(Run(arguments.repeats, arguments.quick, arguments.seconds)) as run:
        measure(run, wanted, arguments.write)


def measure(run: Run, wanted: list[str], write: bool) -> None:
    load = os.getloadavg()[0]
    run.say(f"{machine()}; load before the run {load:.1f}")
    like_java(run)
    for section in wanted:
        run.say(section)
        seen = len(run.rows)
        SECTIONS[section](run)
        text = table(list(run.rows.values())[seen:])
        print(f"\n{text}", flush=True)
        if write:
            how = (
                f"{time.strftime('%Y-%m-%d')}, {machine()}. {run.repeats} "
                f"repeat{'s' if run.repeats > 1 else ''}, load {load:.1f} before the run."
            )
            path = ROOT / "docs" / "BENCHMARKS.md"
            path.write_text(renewed(path.read_text(), section, f"{how}\n\n{text}"))


def renewed(page: str, section: str, text: str) -> str:
    """The page with `text` between the two marks of a section."""
    begin, end = f"<!-- make bench ONLY={section} ARGS=--write -->\n", f"<!-- end of {section} -->"
    before, rest = page.split(begin)
    return before + begin + text + "\n" + end + rest.split(end)[1]


if __name__ == "__main__":
    main()
