"""Ports for the servers that tests start as processes of their own, which must know their port before they bind
it and must find it free again after a kill.

A port that the system chose is of the range from which it takes those of outgoing connections too, so while a
server is down another program's connection can take it. These are below that range. Each process of the tests
has a block of them for itself: it keeps the first port of the block bound as long as it lives.
"""

import itertools
import os
import random
import socket
from functools import cache
from pathlib import Path

FIRST = 15_000
BLOCK = 250
OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(*beside: int) -> int:
    """Return a port of loopback on which nothing listens, and nothing at these distances from it.

    Raises AssertionError when the block of this process has none.
    """
    taken = (0, *beside)
    ports = _own_block(os.getpid())
    for _ in range(BLOCK):
        port = next(ports) - min(taken)
        if all(_is_free(port + distance) for distance in taken):
            for _ in range(max(taken) - min(taken)):
                next(ports)
            return port
    raise AssertionError(f"no free port on loopback for this process, of its block of {BLOCK}")


def server_ports() -> tuple[int, int]:
    """Return a name server port and a broker port; the broker also takes the one two below, and Apache's the
    one above."""
    return free_port(), free_port(-2, 1)


@cache
def _own_block(_process: int) -> "itertools.cycle[int]":
    """Return the ports of a block that no other process of tests has, again and again."""
    end = int(OUTGOING.read_text().split()[0]) if OUTGOING.exists() else 32_768
    blocks = list(range(FIRST, end - BLOCK, BLOCK))
    for first in random.sample(blocks, len(blocks)):
        claim = socket.socket()
        try:
            claim.bind(("127.0.0.1", first))
        except OSError:
            claim.close()
        else:
            _claims.append(claim)
            # Some ports stay unused at the end: the neighbours of a port must not be of another block.
            return itertools.cycle(range(first + 1, first + BLOCK - 4))
    raise AssertionError(f"no block of ports is left from {FIRST} to {end}")


_claims: list[socket.socket] = []


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
