"""Where the time of a put goes: `python -m tests.bench.parts` prints the pieces, each timed in place, as a table for docs/BENCHMARKS.md.

A piece is timed by a wrapper around the function the store calls; what the wrapper itself takes is measured first and taken off. The median of nine rounds.
"""

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from broker_store.engine.store import MessageStore
from tests.bench.bench_store import TAGS, TOPIC, Bench, message

ROUNDS, N = 9, 20_000


class Piece:
    """Calls `function` and adds up how long it took."""

    def __init__(self, function: Callable):
        self._function = function
        self.ns = self.calls = 0

    def __call__(self, *arguments):
        began = time.perf_counter_ns()
        result = self._function(*arguments)
        self.ns += time.perf_counter_ns() - began
        self.calls += 1
        return result


def wrapper_ns() -> tuple[float, float]:
    """(what an empty piece reads, what its caller pays) for each call."""
    def nothing(_):
        return None

    piece = Piece(nothing)
    bare = per_call(lambda: nothing(1), N)
    paid = per_call(lambda: piece(1), N)
    return piece.ns / piece.calls - bare, paid - bare


def per_call(function: Callable[[], object], n: int) -> float:
    began = time.perf_counter_ns()
    for _ in range(n):
        function()
    return (time.perf_counter_ns() - began) / n


def put_pieces(store: MessageStore, size: int, per: int) -> Iterator[tuple[str, float]]:
    """(name, ns a message) of puts one by one, or in groups of `per`."""
    bench = Bench(Path(), {"size": str(size)})
    writer = store.appender
    places = {"kernel: describe, append, dispatch": "_append", "clock": "_clock"}
    reads, pays = wrapper_ns()
    rounds: dict[str, list[float]] = {}
    number = 0
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        made = [message(TOPIC, k % 4, bench.body, b"akey%d" % k, TAGS[k % 5], k) for k in range(number, number + N)]
        rounds.setdefault("making the message (the caller)", []).append((time.perf_counter_ns() - began) / N)
        number += N
        groups = [made[first : first + per] for first in range(0, N, per)]
        gc.collect()
        gc.freeze()
        pieces = {name: Piece(getattr(writer, place)) for name, place in places.items()}
        for name, place in places.items():
            setattr(writer, place, pieces[name])
        began = time.perf_counter_ns()
        results = list(map(store.put, made)) if per == 1 else list(map(store.put_many, groups))
        total = time.perf_counter_ns() - began
        for name, place in places.items():
            setattr(writer, place, pieces[name]._function)
            total -= pieces[name].calls * pays
            rounds.setdefault(name, []).append((pieces[name].ns - pieces[name].calls * reads) / N)
        rounds.setdefault("the rest: Python around them", []).append(total / N - sum(rounds[name][-1] for name in places))
        if per > 1:
            began = time.perf_counter_ns()
            assert all(result.ok for group in results for result in group)
            rounds.setdefault("looking at each result (the caller)", []).append((time.perf_counter_ns() - began) / N)
    for name, values in rounds.items():
        yield name, statistics.median(values)


def main() -> None:
    print("| ns a message | 100 B | 1 KiB |\n|---|---|---|")
    for per, title in ((1, "one by one"), (64, "in groups of 64")):
        columns = []
        for size in (100, 1024):
            with tempfile.TemporaryDirectory(dir=".") as directory:
                store = Bench(Path(directory), {}).opened()
                columns.append(list(put_pieces(store, size, per)))
                store.close()
        for (name, small), (_, large) in zip(*columns, strict=True):
            print(f"| {title}: {name} | {small:,.0f} | {large:,.0f} |")


if __name__ == "__main__":
    main()
