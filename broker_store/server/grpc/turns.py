"""Turns of the gRPC port: its connections share the event loop.

    data of a connection ──► handled at once, while the port has time left in this turn of the loop
                         └─► waits ──► later turns, the connection with the least expected work first

In each turn of the loop the port handles requests for MAX_PORT_TURN_S, over all connections. So a thousand
connections that send much take no longer turns than one. A client with a short request goes before those with
much to do: what one expects of a connection is how long its last turn took, and how many bytes wait. A part
of each turn is for the connection that has waited longest, so that none waits without end.

Calls that end with their connection, or are cancelled, are forgotten in the same turns.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

MAX_PORT_TURN_S = 0.005
# Of a turn, for the connection that has waited longest.
LONGEST_WAIT_S = 0.001
# Of a turn, for calls that are forgotten.
MAX_FORGET_S = 0.001
# Usual requests take some 50 us for 500 bytes.
S_PER_BYTE = 1e-7


class Turned(Protocol):
    """A connection that waits for its turn."""

    waits_for_turn: bool
    turn_times_s: tuple[float, float]  # of its last two turns

    @property
    def unread(self) -> int:
        """Return the bytes that wait."""

    def take_turn(self, until_s: float) -> bool:
        """Handle what waits, until this time of `time.perf_counter`. Return True if more is left to do
        now."""


Connection = TypeVar("Connection", bound=Turned)
Forgotten = TypeVar("Forgotten")


class Turns(Generic[Connection, Forgotten]):
    """The turns of all connections of a port. `forget` is called for each call that has ended."""

    def __init__(self, forget: Callable[[Forgotten], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._forget = forget
        self._left_s = MAX_PORT_TURN_S
        self._is_scheduled = False
        self._least: list[tuple[float, int, Connection]] = []  # heap by expected work
        self._oldest: deque[tuple[int, Connection]] = deque()
        self._numbers = itertools.count()
        self._places: dict[Connection, int] = {}  # the number of its entries that count
        self._ended: deque[Forgotten] = deque()

    def begin(self, connection: Connection) -> None:
        """Give a connection to which data came its turn: at once, or later if others wait, or if the time of
        this turn is over."""
        if self._left_s > 0 and not self._places:
            self._give(connection, self._left_s)
            self._schedule()
        else:
            self.wait(connection)

    def wait(self, connection: Connection) -> None:
        """Have a connection take its turn later."""
        if connection in self._places:
            return
        number = self._places[connection] = next(self._numbers)
        connection.waits_for_turn = True
        # The shorter of two: the garbage collector, or another program, may have come in one of them
        expected_s = max(min(connection.turn_times_s), connection.unread * S_PER_BYTE)
        heapq.heappush(self._least, (expected_s, number, connection))
        self._oldest.append((number, connection))
        self._schedule()

    def leave(self, connection: Connection) -> None:
        """Forget a connection that waits, because it ends."""
        self._places.pop(connection, None)
        connection.waits_for_turn = False
        if len(self._oldest) > 2 * len(self._places) + 64:
            # Entries of connections that had their turn, or ended, are left behind
            places = self._places
            self._oldest = deque(entry for entry in self._oldest if places.get(entry[1]) == entry[0])
            self._least = [entry for entry in self._least if places.get(entry[2]) == entry[1]]
            heapq.heapify(self._least)

    def forget(self, ended: Iterable[Forgotten]) -> None:
        """Forget calls that have ended, some in each turn."""
        self._ended.extend(ended)
        if self._ended:
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Give turns to connections that wait, and begin the next turn."""
        self._is_scheduled = False
        self._left_s = MAX_PORT_TURN_S
        if self._ended:
            self._forget_some()
        is_first = True
        while self._places and (is_first or self._left_s > 0):
            oldest = self._next_oldest() if is_first else None
            if oldest is not None:
                self._give(oldest, min(LONGEST_WAIT_S, self._left_s))
            elif (least := self._next_least()) is not None:
                self._give(least, self._left_s)
            is_first = False
        if self._places or self._ended or self._left_s < MAX_PORT_TURN_S:
            self._schedule()

    def _forget_some(self) -> None:
        began_s = time.perf_counter()
        while self._ended:
            self._forget(self._ended.popleft())
            taken_s = time.perf_counter() - began_s
            if taken_s > MAX_FORGET_S:
                break
        self._left_s -= taken_s

    def _next_oldest(self) -> Connection | None:
        while self._oldest:
            number, connection = self._oldest.popleft()
            if self._places.get(connection) == number:
                return connection
        return None

    def _next_least(self) -> Connection | None:
        while self._least:
            _, number, connection = heapq.heappop(self._least)
            if self._places.get(connection) == number:
                return connection
        return None

    def _give(self, connection: Connection, most_s: float) -> None:
        if connection.waits_for_turn:
            self.leave(connection)
        began_s = time.perf_counter()
        has_more = connection.take_turn(began_s + most_s)
        taken_s = time.perf_counter() - began_s
        self._left_s -= taken_s
        connection.turn_times_s = (connection.turn_times_s[1], taken_s)
        if has_more:
            self.wait(connection)
